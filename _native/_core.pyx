# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""Bindings to the native core: one class owns one handle and frees it once.

Every call releases the GIL, but for the freeing of handles and the taking of ready bytes. What the classes do is
said in ``wsgi_router/_core.pyi``.
"""

import json
import logging

import msgspec

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.math cimport isinf
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport getpid

from wsgi_router_core cimport *

DECODER = msgspec.json.Decoder()
_LOG = logging.getLogger("wsgi_router.native")

OUTPUT = 1
CHOICE_DONE = 2
CANCEL = 4
ALL_DONE = 8
FAILED = 16

CANCELLED = 1  # gRPC's status

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


cdef bytes owned(WrBytes data):
    """Copies owned bytes into Python and frees them."""
    try:
        return PyBytes_FromStringAndSize(<const char *> data.ptr, <Py_ssize_t> data.len)
    finally:
        wr_bytes_free(data)


cdef object failure(WrError *err):
    message = owned(err.message)
    param = owned(err.param)
    return NativeError(err.code, message.decode("utf-8", "replace"), param.decode("utf-8", "replace"))


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


cdef class Tokenizer:
    cdef WrTokenizer *handle
    cdef int pid
    cdef readonly dict info

    def __cinit__(self, str path not None, str chat_template=None, size_t prompt_cache=0):
        cdef bytes encoded = path.encode("utf-8", "surrogateescape")
        cdef bytes template = None if chat_template is None else chat_template.encode()
        cdef const uint8_t *path_data = data_of(encoded)
        cdef size_t path_size = PyBytes_GET_SIZE(encoded)
        cdef const uint8_t *template_data = NULL
        cdef size_t template_size = 0
        cdef WrError err
        cdef WrBytes told
        cdef int32_t code
        if template is not None:
            template_data = data_of(template)
            template_size = PyBytes_GET_SIZE(template)
        with nogil:
            code = wr_tokenizer_load(path_data, path_size, template_data, template_size, prompt_cache, &self.handle,
                                     &err)
        if code:
            raise failure(&err)
        self.pid = getpid()
        if wr_tokenizer_info(self.handle, &told, &err):
            raise failure(&err)
        self.info = json.loads(owned(told))

    def __dealloc__(self):
        # A forked child shares the parent's pages; freeing there would only copy them.
        if self.handle is not NULL and self.pid == getpid():
            wr_tokenizer_free(self.handle)

    def encode(self, str text not None, bint add_special_tokens=True):
        cdef bytes encoded = text.encode()
        cdef const uint8_t *data = data_of(encoded)
        cdef size_t size = PyBytes_GET_SIZE(encoded)
        cdef WrBytes ids
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_encode(self.handle, data, size, add_special_tokens, &ids, &err)
        if code:
            raise failure(&err)
        return memoryview(owned(ids)).cast("I").tolist()

    def decode(self, ids, bint skip_special_tokens=True):
        cdef bytes packed = b"".join([int(token).to_bytes(4, "little") for token in ids])
        cdef const uint32_t *data = <const uint32_t *> PyBytes_AS_STRING(packed)
        cdef size_t count = PyBytes_GET_SIZE(packed) // 4
        cdef WrBytes text
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_decode(self.handle, data, count, skip_special_tokens, &text, &err)
        if code:
            raise failure(&err)
        return owned(text).decode()

    def render(self, bytes job not None, uint64_t fuel=0):
        cdef const uint8_t *data = data_of(job)
        cdef size_t size = PyBytes_GET_SIZE(job)
        cdef WrBytes prompt
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_render(self.handle, data, size, fuel, &prompt, &err)
        if code:
            raise failure(&err)
        return owned(prompt).decode()

    def prepare(self, bytes job not None, uint64_t fuel=0):
        cdef const uint8_t *data = data_of(job)
        cdef size_t size = PyBytes_GET_SIZE(job)
        cdef Prepared prepared = Prepared.__new__(Prepared)
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_prepare(self.handle, data, size, fuel, &prepared.handle, &err)
        if code:
            raise failure(&err)
        wr_prepared_view(prepared.handle, &prepared.view)
        return prepared


cdef class Prepared:
    cdef WrPrepared *handle
    cdef WrPreparedView view

    def __dealloc__(self):
        wr_prepared_free(self.handle)

    @property
    def prompt_tokens(self):
        return self.view.ids_len

    @property
    def reused_tokens(self):
        return self.view.ids_reused

    @property
    def max_new_tokens(self):
        return None if self.view.max_new_tokens < 0 else self.view.max_new_tokens

    @property
    def prompt(self):
        return PyBytes_FromStringAndSize(<const char *> self.view.prompt, self.view.prompt_len).decode()

    @property
    def body(self):
        return PyBytes_FromStringAndSize(<const char *> self.view.body, self.view.body_len)

    def token_ids(self):
        cdef size_t index
        return [self.view.ids[index] for index in range(self.view.ids_len)]

    def prefix(self, size_t count):
        cdef size_t size = min(count, self.view.ids_len) * sizeof(uint32_t)
        return PyBytes_FromStringAndSize(<const char *> self.view.ids, size)


cdef uint32_t now():
    """Seconds of a clock that all processes of the machine have."""
    cdef timespec moment
    clock_gettime(CLOCK_MONOTONIC, &moment)
    return <uint32_t> moment.tv_sec


PREFIX_BLOCK = WR_PREFIX_BLOCK


cdef class PrefixTable:
    cdef Py_buffer buffer
    cdef const uint64_t *memory
    cdef size_t words

    def __cinit__(self, memory not None):
        PyObject_GetBuffer(memory, &self.buffer, PyBUF_WRITABLE)
        self.memory = <const uint64_t *> self.buffer.buf
        self.words = self.buffer.len // sizeof(uint64_t)

    def __dealloc__(self):
        if self.memory is not NULL:
            PyBuffer_Release(&self.buffer)

    def prompt(self, Prepared prepared not None, str adapter not None=""):
        cdef bytes name = adapter.encode()
        cdef const uint8_t *name_data = data_of(name)
        cdef size_t name_size = PyBytes_GET_SIZE(name)
        cdef const uint32_t *ids = prepared.view.ids
        cdef size_t count = prepared.view.ids_len
        cdef size_t size = count // WR_PREFIX_BLOCK * sizeof(uint64_t)
        cdef bytes marks = PyBytes_FromStringAndSize(NULL, size)
        cdef uint64_t *out = <uint64_t *> PyBytes_AS_STRING(marks)
        cdef Prompt prompt = Prompt.__new__(Prompt)
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_prefix_marks(self.memory, self.words, name_data, name_size, ids, count, out, &err)
        if code:
            raise failure(&err)
        prompt.table, prompt.marks = self, marks
        return prompt

    def is_fed(self, uint32_t column):
        cdef WrKnown known
        cdef WrError err
        if wr_prefix_match(self.memory, self.words, NULL, 0, &column, 1, 0, &known, &err):
            raise failure(&err)
        return known.fed != 0

    def clear(self, uint32_t column):
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_prefix_clear(self.memory, self.words, column, &err)
        if code:
            raise failure(&err)

    def follow(self, uint32_t column):
        cdef Follower follower = Follower.__new__(Follower)
        cdef WrError err
        if wr_follower_new(self.memory, self.words, column, &follower.handle, &err):
            raise failure(&err)
        follower.table, follower.pid = self, getpid()
        return follower


cdef class Prompt:
    cdef PrefixTable table
    cdef bytes marks

    @property
    def blocks(self):
        return PyBytes_GET_SIZE(self.marks) // sizeof(uint64_t)

    def known(self, columns not None):
        cdef const uint64_t *marks = <const uint64_t *> PyBytes_AS_STRING(self.marks)
        cdef size_t size = PyBytes_GET_SIZE(self.marks) // sizeof(uint64_t)
        cdef size_t count = len(columns)
        cdef bytes asked = b"".join([int(column).to_bytes(4, "little") for column in columns])
        cdef const uint32_t *at = <const uint32_t *> PyBytes_AS_STRING(asked)
        cdef bytes told = PyBytes_FromStringAndSize(NULL, count * sizeof(WrKnown))
        cdef WrKnown *out = <WrKnown *> PyBytes_AS_STRING(told)
        cdef PrefixTable table = self.table
        cdef uint32_t second = now()
        cdef WrError err
        cdef int32_t code
        cdef size_t index
        with nogil:
            code = wr_prefix_match(table.memory, table.words, marks, size, at, count, second, out, &err)
        if code:
            raise failure(&err)
        return [(out[index].matched, out[index].held) for index in range(count)]

    def note(self, uint32_t column):
        cdef const uint64_t *marks = <const uint64_t *> PyBytes_AS_STRING(self.marks)
        cdef size_t size = PyBytes_GET_SIZE(self.marks) // sizeof(uint64_t)
        cdef PrefixTable table = self.table
        cdef uint32_t second = now()
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_prefix_note(table.memory, table.words, marks, size, column, second, &err)
        if code:
            raise failure(&err)


@cython.no_gc_clear  # __dealloc__ writes to the table's memory
cdef class Follower:
    cdef WrFollower *handle
    cdef PrefixTable table
    cdef int pid

    def apply(self, bytes message not None):
        cdef const uint8_t *data = data_of(message)
        cdef size_t size = PyBytes_GET_SIZE(message)
        cdef uint32_t second = now()
        cdef WrFollowed told
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_follower_apply(self.handle, data, size, second, &told, &err)
        if code:
            raise failure(&err)
        return told.sequence, bool(told.whole), bool(told.gap)

    def close(self):
        cdef WrFollower *handle = self.handle
        self.handle = NULL
        if handle is not NULL and self.pid == getpid():
            wr_follower_free(handle)

    def __dealloc__(self):
        if self.handle is not NULL and self.pid == getpid():
            wr_follower_free(self.handle)


cdef class Stream:
    cdef WrStream *handle

    def __cinit__(self, Tokenizer tokenizer not None, bytes options not None):
        cdef const uint8_t *data = data_of(options)
        cdef size_t size = PyBytes_GET_SIZE(options)
        cdef WrError err
        if wr_stream_new(tokenizer.handle, data, size, &self.handle, &err):
            raise failure(&err)

    def __dealloc__(self):
        wr_stream_free(self.handle)

    def feed(self, uint32_t choice, bytes message not None):
        cdef const uint8_t *data = data_of(message)
        cdef size_t size = PyBytes_GET_SIZE(message)
        cdef uint32_t flags = 0
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_stream_feed(self.handle, choice, data, size, &flags, &err)
        if code:
            raise failure(&err)
        return flags

    def end(self, uint32_t choice):
        cdef uint32_t flags = 0
        cdef WrError err
        if wr_stream_end(self.handle, choice, &flags, &err):
            raise failure(&err)
        return flags

    def fail(self, bytes error not None):
        cdef WrError err
        if wr_stream_fail(self.handle, data_of(error), PyBytes_GET_SIZE(error), &err):
            raise failure(&err)

    def take(self):
        cdef WrBytes ready
        cdef WrError err
        if wr_stream_take(self.handle, &ready, &err):
            raise failure(&err)
        return PyBytes_FromStringAndSize(<const char *> ready.ptr, <Py_ssize_t> ready.len)

    cdef bytes report(self, uint32_t kind):
        cdef WrBytes told
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_stream_report(self.handle, kind, &told, &err)
        if code:
            raise failure(&err)
        return owned(told)

    def result(self):
        return self.report(WR_REPORT_RESULT)

    def failure(self):
        return self.report(WR_REPORT_FAILURE).decode() or None

    def stats(self):
        return DECODER.decode(self.report(WR_REPORT_STATS))

    def lend(self, int descriptor):
        cdef WrError err
        if wr_stream_lend(self.handle, descriptor, &err):
            raise failure(&err)

    def rest(self):
        cdef WrBytes ready
        cdef WrError err
        if wr_stream_rest(self.handle, &ready, &err):
            raise failure(&err)
        return PyBytes_FromStringAndSize(<const char *> ready.ptr, <Py_ssize_t> ready.len)

    def resume(self):
        cdef WrError err
        if wr_stream_resume(self.handle, &err):
            raise failure(&err)

    def reclaim(self):
        cdef uint64_t written = 0
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_stream_reclaim(self.handle, &written, &err)
        if code:
            raise failure(&err)
        return written

    def ping(self, bytes data not None, double idle_seconds):
        cdef WrError err
        cdef uint64_t idle = <uint64_t> (idle_seconds * 1000)
        if wr_stream_ping(self.handle, data_of(data), PyBytes_GET_SIZE(data), idle, &err):
            raise failure(&err)


cdef uint64_t milliseconds(double seconds):
    return <uint64_t> max(min(seconds, MOST_SECONDS) * 1000, 1)


cdef double MOST_SECONDS = 1e9


@cython.no_gc_clear  # __dealloc__ asks the net
cdef class Call:
    cdef WrCall *handle
    cdef uint64_t tag
    cdef Net net

    def close(self):
        cdef WrCall *handle = self.handle
        if handle is not NULL:
            self.net.sinks.pop(self.tag, None)
            with nogil:
                wr_call_cancel(handle, False)

    def withdraw(self):
        cdef WrCall *handle = self.handle
        cdef bint withdrawn = False
        if handle is not NULL:
            with nogil:
                withdrawn = wr_call_cancel(handle, True)
            if withdrawn:
                self.net.sinks.pop(self.tag, None)
        return withdrawn

    def __dealloc__(self):
        if self.handle is not NULL and self.net.pid == getpid():
            wr_call_free(self.handle)


cdef class Net:
    cdef WrNet *handle
    cdef int pid
    cdef uint64_t tags
    cdef dict sinks
    cdef WrNet *closing  # closed while other threads were inside of it; the last of them frees it
    cdef unsigned int inside

    def __cinit__(self, bytes options not None):
        cdef const uint8_t *data = data_of(options)
        cdef size_t size = PyBytes_GET_SIZE(options)
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_net_new(data, size, &self.handle, &err)
        if code:
            raise failure(&err)
        self.pid = getpid()
        self.sinks = {}

    def fileno(self):
        return wr_net_fd(self.alive())

    cdef WrNet *alive(self) except NULL:
        if self.handle is NULL:
            raise ValueError("the transport is closed")
        return self.handle

    def generate(
        self,
        str url not None,
        bytes request not None,
        Stream stream,
        uint32_t choice,
        double first_seconds,
        double token_seconds,
        sink,
    ):
        cdef WrNet *net = self.alive()
        cdef bytes host = url.encode()
        cdef const uint8_t *host_data = data_of(host)
        cdef size_t host_size = PyBytes_GET_SIZE(host)
        cdef const uint8_t *data = data_of(request)
        cdef size_t size = PyBytes_GET_SIZE(request)
        cdef WrStream *answer = NULL if stream is None else stream.handle
        cdef uint64_t first = milliseconds(first_seconds)
        cdef uint64_t token = milliseconds(token_seconds)
        cdef WrError err
        cdef int32_t code
        cdef Call call = self.enter(sink)
        with nogil:
            code = wr_net_generate(
                net, host_data, host_size, data, size, answer, choice, call.tag, first, token, &call.handle, &err
            )
        return self.leave(call, code, &err)

    def submit(self):
        # With the GIL: nobody closes the net meanwhile.
        wr_net_submit(self.alive())

    def unary(
        self, str url not None, str method not None, bytes request not None, double seconds, sink
    ):
        cdef WrNet *net = self.alive()
        cdef bytes host = url.encode()
        cdef bytes name = method.encode()
        cdef const uint8_t *host_data = data_of(host)
        cdef size_t host_size = PyBytes_GET_SIZE(host)
        cdef const uint8_t *name_data = data_of(name)
        cdef size_t name_size = PyBytes_GET_SIZE(name)
        cdef const uint8_t *data = data_of(request)
        cdef size_t size = PyBytes_GET_SIZE(request)
        cdef uint64_t timeout = 0 if isinf(seconds) else milliseconds(seconds)
        cdef WrError err
        cdef int32_t code
        cdef Call call = self.enter(sink)
        with nogil:
            code = wr_net_unary(
                net, host_data, host_size, name_data, name_size, data, size, call.tag, timeout, &call.handle, &err
            )
        return self.leave(call, code, &err)

    cdef Call enter(self, sink):
        cdef Call call = Call.__new__(Call)
        self.tags += 1
        call.tag = self.tags
        call.net = self
        self.sinks[call.tag] = sink
        self.inside += 1
        return call

    cdef Call leave(self, Call call, int32_t code, WrError *err):
        self.inside -= 1
        if self.inside == 0 and self.closing is not NULL:
            self.free(self.closing)
        if code:
            self.sinks.pop(call.tag, None)
            raise failure(err)
        return call

    def deliver(self):
        cdef const WrEvent *events
        cdef const WrEvent *event
        cdef size_t count = 0, index
        if self.handle is NULL:
            return
        with nogil:
            wr_net_events(self.handle, &events, &count)
        for index in range(count):
            event = &events[index]
            if event.kind == WR_EVENT_KIND_ENDED:
                sink = self.sinks.pop(event.tag, None)
            else:
                sink = self.sinks.get(event.tag)
            if sink is not None:
                try:
                    tell(sink, event)
                except Exception:  # the other events have to be told
                    _LOG.exception("an event of a call was lost")

    def forget(self, str url not None):
        cdef bytes host = url.encode()
        wr_net_forget(self.alive(), data_of(host), PyBytes_GET_SIZE(host))

    def heard(self, str url not None):
        cdef bytes host = url.encode()
        cdef int64_t silence = wr_net_heard(self.alive(), data_of(host), PyBytes_GET_SIZE(host))
        return None if silence < 0 else silence / 1000

    def close(self):
        cdef WrNet *handle = self.handle
        self.handle = NULL
        if handle is not NULL and self.inside:
            self.closing = handle
        elif handle is not NULL:
            self.free(handle)
        self.end_all()

    cdef free(self, WrNet *handle):
        self.closing = NULL
        if self.pid == getpid():
            with nogil:
                wr_net_free(handle)
        self.end_all()

    cdef end_all(self):
        """What is still open will have no events."""
        while self.sinks:
            self.sinks.popitem()[1].ended(CANCELLED, "the transport was closed", False)

    def __dealloc__(self):
        if self.handle is not NULL and self.pid == getpid():
            wr_net_free(self.handle)

    def __repr__(self):
        return f"<Net {'closed' if self.handle is NULL else 'open'} calls={len(self.sinks)}>"


cdef bytes data_in(const WrEvent *event):
    return PyBytes_FromStringAndSize(<const char *> event.data, <Py_ssize_t> event.len)


cdef tell(sink, const WrEvent *event):
    if event.kind == WR_EVENT_KIND_FED:
        sink.fed(event.flags, None if event.data is NULL else data_in(event))
    elif event.kind == WR_EVENT_KIND_MESSAGE:
        sink.message(data_in(event))
    elif event.kind == WR_EVENT_KIND_BLOCKED:
        sink.blocked()
    else:
        sink.ended(event.status, data_in(event).decode("utf-8", "replace"), event.flags != 0)
