# Tokenizers, and what they make of jobs. A part of _core.pyx.

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
        check(code, &err)
        self.pid = getpid()
        check(wr_tokenizer_info(self.handle, &told, &err), &err)
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
        check(code, &err)
        return memoryview(owned(ids)).cast("I").tolist()

    def decode(self, ids, bint skip_special_tokens=True):
        cdef bytes packed = array("I", ids).tobytes()
        cdef const uint32_t *data = <const uint32_t *> PyBytes_AS_STRING(packed)
        cdef size_t count = PyBytes_GET_SIZE(packed) // 4
        cdef WrBytes text
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_decode(self.handle, data, count, skip_special_tokens, &text, &err)
        check(code, &err)
        return owned(text).decode()

    def render(self, bytes job not None, uint64_t fuel=0):
        cdef const uint8_t *data = data_of(job)
        cdef size_t size = PyBytes_GET_SIZE(job)
        cdef WrBytes prompt
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_render(self.handle, data, size, fuel, &prompt, &err)
        check(code, &err)
        return owned(prompt).decode()

    def prepare(self, bytes job not None, uint64_t fuel=0):
        cdef const uint8_t *data = data_of(job)
        cdef size_t size = PyBytes_GET_SIZE(job)
        cdef Prepared prepared = Prepared.__new__(Prepared)
        cdef WrError err
        cdef int32_t code
        with nogil:
            code = wr_prepare(self.handle, data, size, fuel, &prepared.handle, &err)
        check(code, &err)
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
