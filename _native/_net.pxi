# The native transport. A part of _core.pyx.

import logging

cimport cython
from libc.math cimport isinf

_LOG = logging.getLogger("wsgi_router.native")

CANCELLED = 1  # gRPC's status

cdef double MOST_SECONDS = 1e9


cdef uint64_t milliseconds(double seconds):
    return <uint64_t> max(min(seconds, MOST_SECONDS) * 1000, 1)


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

    def hold(self):
        if self.handle is not NULL:
            wr_call_hold(self.handle)

    def give(self, bytes message not None):
        if self.handle is not NULL:
            wr_call_give(self.handle, data_of(message), PyBytes_GET_SIZE(message))

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

    def __cinit__(self, bytes options not None, bytes roots not None=b""):
        cdef const uint8_t *data = data_of(options)
        cdef size_t size = PyBytes_GET_SIZE(options)
        cdef const uint8_t *pem = data_of(roots)
        cdef size_t pem_size = PyBytes_GET_SIZE(roots)
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_net_new(data, size, pem, pem_size, &self.handle, &err)
        check(code, &err)
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
            check(code, err)
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
