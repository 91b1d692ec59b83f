"""Runs bench_serving out of the sglang wheel without torch: `python sglang_bench_serving.py OPTIONS…`.

`sglang/__init__` and what bench_serving imports of the server need torch; neither is used for a server that
is only spoken to by HTTP, so stand-ins take their places. To be run by an environment that has the wheel
(without its dependencies) and the few packages that the client needs: `bench/serving.py` makes one.
"""

import importlib.util
import sys
from types import ModuleType
from typing import Any, NoReturn


def _module(name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def _no_data_set(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError("data sets are not fetched here")


def _base_url(base_url: str | None, host: str, port: int) -> str:
    return base_url or f"http://{host}:{port}"


def _host_port(base_url: str | None, host: str, port: int) -> str:
    return base_url or f"{host}:{port}"


def main() -> None:
    found = importlib.util.find_spec("sglang")
    if found is None or found.submodule_search_locations is None:
        raise SystemExit("the sglang wheel is not in this environment")
    _module("sglang", __path__=list(found.submodule_search_locations))
    _module("datasets", load_dataset=_no_data_set)
    for name in ("sglang.srt", "sglang.srt.disaggregation", "sglang.srt.utils"):
        _module(name, __path__=[])
    # Only sent to a prefill/decode pair that is to be warmed up without its partner.
    _module("sglang.srt.disaggregation.utils", FAKE_BOOTSTRAP_HOST="")
    _module("sglang.srt.utils.network", resolve_base_url=_base_url, resolve_host_port=_host_port)
    from sglang.benchmark.serving import cli_main  # type: ignore[import-not-found]

    cli_main()


if __name__ == "__main__":
    main()
