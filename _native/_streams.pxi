# Answers, from a worker's messages to the client's bytes. A part of _core.pyx.

cdef class Stream:
    cdef WrStream *handle

    def __cinit__(self, Tokenizer tokenizer not None, bytes options not None):
        cdef const uint8_t *data = data_of(options)
        cdef size_t size = PyBytes_GET_SIZE(options)
        cdef WrError err
        check(wr_stream_new(tokenizer.handle, data, size, &self.handle, &err), &err)

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
        check(code, &err)
        return flags

    def end(self, uint32_t choice):
        cdef uint32_t flags = 0
        cdef WrError err
        check(wr_stream_end(self.handle, choice, &flags, &err), &err)
        return flags

    def fail(self, bytes error not None):
        cdef WrError err
        check(wr_stream_fail(self.handle, data_of(error), PyBytes_GET_SIZE(error), &err), &err)

    def take(self):
        cdef WrBytes ready
        cdef WrError err
        check(wr_stream_take(self.handle, &ready, &err), &err)
        return borrowed(ready)

    cdef bytes report(self, uint32_t kind):
        cdef WrBytes told
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_stream_report(self.handle, kind, &told, &err)
        check(code, &err)
        return owned(told)

    def result(self):
        return self.report(WR_REPORT_RESULT)

    def failure(self):
        return self.report(WR_REPORT_FAILURE).decode() or None

    def stats(self):
        return DECODER.decode(self.report(WR_REPORT_STATS))

    def lend(self, int descriptor):
        cdef WrError err
        check(wr_stream_lend(self.handle, descriptor, &err), &err)

    def rest(self):
        cdef WrBytes ready
        cdef WrError err
        check(wr_stream_rest(self.handle, &ready, &err), &err)
        return borrowed(ready)

    def resume(self):
        cdef WrError err
        check(wr_stream_resume(self.handle, &err), &err)

    def reclaim(self):
        cdef uint64_t written = 0
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_stream_reclaim(self.handle, &written, &err)
        check(code, &err)
        return written

    def ping(self, bytes data not None, double idle_seconds):
        cdef WrError err
        cdef uint64_t idle = <uint64_t> (idle_seconds * 1000)
        check(wr_stream_ping(self.handle, data_of(data), PyBytes_GET_SIZE(data), idle, &err), &err)
