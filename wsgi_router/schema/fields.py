"""The three kinds of fields of a route, and how a body is read by them.

Those of the request's type are honoured. Inert ones change nothing in the answer and are accepted. Those that
are not supported would change it: any value but a neutral one is a 400 that names the field. All other keys
are unknown; they are accepted and named in the header X-Router-Warning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec

from wsgi_router.schema.decode import convert, only, unsupported
from wsgi_router.schema.sampling import StreamOptions

T = TypeVar("T", bound=msgspec.Struct)

_STREAM_OPTIONS: Final = frozenset(StreamOptions.__struct_encode_fields__)


class Fields(Generic[T]):
    """What a route, or an object in its body at `at` ("sampling_params."), takes.

    `not_supported`: name to the values (null besides) that ask for nothing. `filled`: fields of the type that
    the parser fills and clients cannot. `special`: names that the parser itself looks at, with their types.
    """

    def __init__(
        self,
        request: type[T],
        inert: type[msgspec.Struct],
        not_supported: Mapping[str, tuple[Any, ...]],
        filled: Collection[str] = (),
        at: str = "",
        special: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.not_supported = not_supported
        self.honoured = frozenset(request.__struct_encode_fields__) - set(filled) - not_supported.keys()
        self._unsupported = frozenset(not_supported)
        self.inert = frozenset(inert.__struct_encode_fields__)
        self.known = self.honoured | self.inert | not_supported.keys() | special.keys()
        self.special = special
        self._request = request
        self._inert = inert
        self._at = at

    def types(self) -> dict[str, msgspec.structs.FieldInfo]:
        """The honoured and the inert fields by the names that clients use."""
        taken = self.honoured | self.inert
        all_fields = (*msgspec.structs.fields(self._request), *msgspec.structs.fields(self._inert))
        return {field.encode_name: field for field in all_fields if field.encode_name in taken}

    def convert(self, value: Mapping[str, Any]) -> T:
        """The honoured fields of `value`, typed. Raises InvalidRequestError."""
        return convert(only(value, self.honoured), self._request, self._at)

    def check(self, value: Mapping[str, Any]) -> None:
        """Raises InvalidRequestError for what is not supported, and for inert fields of a wrong type."""
        if not self._unsupported.isdisjoint(value):
            for name, given in only(value, self.not_supported).items():
                if given is not None and not any(_same(given, one) for one in self.not_supported[name]):
                    raise unsupported(self._at + name)
        if not self.inert.isdisjoint(value):
            convert(only(value, self.inert), self._inert, self._at)

    def unknown(self, value: Mapping[str, Any]) -> list[str]:
        """Paths of the unknown keys."""
        names = [self._at + name for name in value if name not in self.known]
        options = value.get("stream_options") if "stream_options" in self.honoured else None
        return names + [f"stream_options.{name}" for name in options or () if name not in _STREAM_OPTIONS]


def _same(given: object, neutral: object) -> bool:
    """Equal in JSON's sense: `0` is not `false`."""
    return given == neutral and isinstance(given, bool) == isinstance(neutral, bool)
