# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""Bindings to the native core: one class owns one handle and frees it once.

What may take a while, or wait for the transport's thread, is done without the GIL; what is as short as giving it up
keeps it. What the classes do is said in ``wsgi_router/_core.pyi``.
"""

import json
from array import array

import msgspec

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from posix.unistd cimport getpid

from wsgi_router_core cimport *

DECODER = msgspec.json.Decoder()

OUTPUT = 1
CHOICE_DONE = 2
CANCEL = 4
ALL_DONE = 8
FAILED = 16

INVALID_REQUEST = WR_CODE_INVALID_REQUEST
CONTEXT_LENGTH = WR_CODE_CONTEXT_LENGTH
TEMPLATE = WR_CODE_TEMPLATE
FUEL = WR_CODE_FUEL
WORKER = WR_CODE_WORKER


class NativeError(Exception):
    """An error of the native core: ``code`` (``INVALID_REQUEST`` …), ``message``, ``param``."""

    def __init__(self, int code, str message, str param):
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


cdef bytes borrowed(WrBytes data):
    """Copies borrowed bytes into Python."""
    return PyBytes_FromStringAndSize(<const char *> data.ptr, <Py_ssize_t> data.len)


cdef bytes owned(WrBytes data):
    """Copies owned bytes into Python and frees them."""
    try:
        return borrowed(data)
    finally:
        wr_bytes_free(data)


cdef inline int check(int32_t code, WrError *err) except -1:
    """Raises what a call has filled `err` with, if its code says so."""
    if code:
        message = owned(err.message)
        param = owned(err.param)
        raise NativeError(err.code, message.decode("utf-8", "replace"), param.decode("utf-8", "replace"))
    return 0


cdef dict facts():
    cdef WrBytes told
    wr_facts(&told)
    return json.loads(owned(told))


if facts()["abi_version"] != WR_ABI_VERSION:
    raise ImportError(
        f"the extension was built for version {WR_ABI_VERSION} of the native core's ABI and is linked with "
        f"version {facts()['abi_version']}: build anew"
    )

ITL_BOUNDS = tuple(facts()["itl_bounds"])


cdef inline const uint8_t *data_of(bytes data):
    return <const uint8_t *> PyBytes_AS_STRING(data)


def abi_version():
    return facts()["abi_version"]


def live_handles():
    return facts()["live_handles"]


def settle_heap():
    wr_settle_heap()


def json_work(bytes body not None):
    cdef const uint8_t *data = data_of(body)
    cdef size_t size = PyBytes_GET_SIZE(body)
    cdef uint64_t work
    with nogil:
        work = wr_json_work(data, size)
    return work


def first_failure(bytes message not None):
    cdef WrBytes words
    cdef const uint8_t *data = data_of(message)
    cdef size_t size = PyBytes_GET_SIZE(message)
    cdef int32_t refused
    with nogil:
        refused = wr_first_failure(data, size, &words)
    return owned(words).decode() if refused else None


include "_http1.pxi"
include "_tokenizers.pxi"
include "_prefix.pxi"
include "_streams.pxi"
include "_net.pxi"
