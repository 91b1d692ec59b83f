# Which worker has which prefix. A part of _core.pyx.

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


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
        check(code, &err)
        prompt.table, prompt.marks = self, marks
        return prompt

    def is_fed(self, uint32_t column):
        cdef WrKnown known
        cdef WrError err
        check(wr_prefix_match(self.memory, self.words, NULL, 0, &column, 1, 0, &known, &err), &err)
        return known.fed != 0

    def clear(self, uint32_t column):
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_prefix_clear(self.memory, self.words, column, &err)
        check(code, &err)

    def follow(self, uint32_t column):
        cdef Follower follower = Follower.__new__(Follower)
        cdef WrError err
        check(wr_follower_new(self.memory, self.words, column, &follower.handle, &err), &err)
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
        cdef bytes asked = array("I", columns).tobytes()
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
        check(code, &err)
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
        check(code, &err)


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
        check(code, &err)
        return told.sequence, bool(told.whole), bool(told.gap)

    def close(self):
        cdef WrFollower *handle = self.handle
        self.handle = NULL
        if handle is not NULL and self.pid == getpid():
            wr_follower_free(handle)

    def __dealloc__(self):
        if self.handle is not NULL and self.pid == getpid():
            wr_follower_free(self.handle)
