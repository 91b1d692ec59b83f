# Declarations of the native core's C ABI; what each function does is said in wsgi_router_core.h.
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "wsgi_router_core.h" nogil:
    enum: WR_ABI_VERSION

    enum WrCode:
        WR_CODE_INVALID_REQUEST
        WR_CODE_CONTEXT_LENGTH
        WR_CODE_TEMPLATE
        WR_CODE_FUEL
        WR_CODE_WORKER

    enum WrReport:
        WR_REPORT_RESULT
        WR_REPORT_FAILURE
        WR_REPORT_STATS

    struct WrBytes:
        uint8_t *ptr
        size_t len
        size_t cap

    struct WrError:
        int32_t code
        WrBytes message
        WrBytes param

    struct WrTokenizer:
        pass

    struct WrPrepared:
        pass

    struct WrStream:
        pass

    struct WrPreparedView:
        const uint8_t *prompt
        size_t prompt_len
        const uint32_t *ids
        size_t ids_len
        const uint8_t *body
        size_t body_len
        int64_t max_new_tokens

    void wr_facts(WrBytes *out)
    uint64_t wr_json_work(const uint8_t *data, size_t len)
    void wr_bytes_free(WrBytes bytes)
    int32_t wr_tokenizer_load(const uint8_t *path, size_t path_len, const uint8_t *template_, size_t template_len,
                              WrTokenizer **out, WrError *err)
    void wr_tokenizer_free(WrTokenizer *handle)
    int32_t wr_tokenizer_info(const WrTokenizer *handle, WrBytes *out, WrError *err)
    int32_t wr_encode(const WrTokenizer *handle, const uint8_t *data, size_t len, bint add_special_tokens,
                      WrBytes *out, WrError *err)
    int32_t wr_decode(const WrTokenizer *handle, const uint32_t *ids, size_t len, bint skip_special_tokens,
                      WrBytes *out, WrError *err)
    int32_t wr_render(const WrTokenizer *handle, const uint8_t *job, size_t job_len, uint64_t fuel, WrBytes *out,
                      WrError *err)
    int32_t wr_prepare(const WrTokenizer *handle, const uint8_t *job, size_t job_len, uint64_t fuel,
                       WrPrepared **out, WrError *err)
    void wr_prepared_view(const WrPrepared *handle, WrPreparedView *out)
    void wr_prepared_free(WrPrepared *handle)
    int32_t wr_stream_new(const WrTokenizer *handle, const uint8_t *options, size_t options_len, WrStream **out,
                          WrError *err)
    int32_t wr_stream_feed(WrStream *handle, uint32_t choice, const uint8_t *message, size_t message_len,
                           uint32_t *flags, WrError *err)
    int32_t wr_stream_end(WrStream *handle, uint32_t choice, uint32_t *flags, WrError *err)
    int32_t wr_stream_fail(WrStream *handle, const uint8_t *error, size_t error_len, WrError *err)
    int32_t wr_stream_take(WrStream *handle, WrBytes *out, WrError *err)
    int32_t wr_stream_report(WrStream *handle, uint32_t kind, WrBytes *out, WrError *err)
    void wr_stream_free(WrStream *handle)
    int32_t wr_first_failure(const uint8_t *message, size_t message_len, WrBytes *out)
