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

    enum: WR_SILENT

    enum WrEventKind:
        WR_EVENT_KIND_FED
        WR_EVENT_KIND_MESSAGE
        WR_EVENT_KIND_ENDED
        WR_EVENT_KIND_BLOCKED

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
        size_t ids_reused
        const uint8_t *body
        size_t body_len
        int64_t max_new_tokens

    struct WrNet:
        pass

    struct WrCall:
        pass

    struct WrEvent:
        uint64_t tag
        uint32_t kind
        uint32_t flags
        uint32_t messages
        int32_t status
        const uint8_t *data
        size_t len

    enum: WR_MOST_HEADERS

    struct WrPart:
        uint32_t start
        uint32_t len

    struct WrHeader:
        WrPart name
        WrPart value

    struct WrHead:
        WrPart method
        WrPart target
        WrPart path
        WrPart query
        uint32_t end
        bint close
        uint64_t content_length
        uint32_t header_count
        WrHeader headers[WR_MOST_HEADERS]

    struct WrBounds:
        uint32_t line
        uint32_t headers
        uint32_t header

    enum: WR_PREFIX_BLOCK

    struct WrKnown:
        uint32_t matched
        uint32_t fed
        uint64_t held

    struct WrFollowed:
        uint64_t sequence
        uint64_t blocks
        bint whole
        bint gap

    struct WrFollower:
        pass

    void wr_facts(WrBytes *out)
    void wr_settle_heap()
    uint64_t wr_json_work(const uint8_t *data, size_t len)
    int32_t wr_plain_head(const uint8_t *data, size_t len, WrBounds bounds, WrHead *out)
    void wr_bytes_free(WrBytes bytes)
    int32_t wr_tokenizer_load(const uint8_t *path, size_t path_len, const uint8_t *template_, size_t template_len,
                              size_t prompt_cache, WrTokenizer **out, WrError *err)
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
    int32_t wr_net_new(const uint8_t *options, size_t options_len, const uint8_t *roots, size_t roots_len,
                       WrNet **out, WrError *err)
    int32_t wr_net_fd(const WrNet *handle)
    void wr_net_events(WrNet *handle, const WrEvent **out, size_t *count)
    int32_t wr_net_generate(WrNet *handle, const uint8_t *address, size_t address_len, const uint8_t *request,
                            size_t request_len, WrStream *stream, uint32_t choice, uint64_t tag, uint64_t first_ms,
                            uint64_t token_ms, WrCall **out, WrError *err)
    void wr_net_submit(const WrNet *handle)
    int32_t wr_net_unary(WrNet *handle, const uint8_t *address, size_t address_len, const uint8_t *method,
                         size_t method_len, const uint8_t *request, size_t request_len, uint64_t tag,
                         uint64_t timeout_ms, WrCall **out, WrError *err)
    bint wr_call_cancel(WrCall *handle, bint unfed)
    void wr_call_hold(WrCall *handle)
    void wr_call_give(WrCall *handle, const uint8_t *message, size_t message_len)
    void wr_call_free(WrCall *handle)
    void wr_net_forget(WrNet *handle, const uint8_t *address, size_t address_len)
    int64_t wr_net_heard(const WrNet *handle, const uint8_t *address, size_t address_len)
    void wr_net_free(WrNet *handle)
    int32_t wr_stream_lend(WrStream *handle, int32_t fd, WrError *err)
    int32_t wr_stream_rest(WrStream *handle, WrBytes *out, WrError *err)
    int32_t wr_stream_resume(WrStream *handle, WrError *err)
    int32_t wr_stream_reclaim(WrStream *handle, uint64_t *written, WrError *err)
    int32_t wr_stream_ping(WrStream *handle, const uint8_t *data, size_t len, uint64_t idle_ms, WrError *err)
    int32_t wr_prefix_marks(const uint64_t *memory, size_t words, const uint8_t *adapter, size_t adapter_len,
                            const uint32_t *ids, size_t len, uint64_t *out, WrError *err)
    int32_t wr_prefix_match(const uint64_t *memory, size_t words, const uint64_t *marks, size_t len,
                            const uint32_t *columns, size_t count, uint32_t now, WrKnown *out, WrError *err)
    int32_t wr_prefix_note(const uint64_t *memory, size_t words, const uint64_t *marks, size_t len, uint32_t at,
                           uint32_t now, WrError *err)
    int32_t wr_prefix_clear(const uint64_t *memory, size_t words, uint32_t at, WrError *err)
    int32_t wr_follower_new(const uint64_t *memory, size_t words, uint32_t at, WrFollower **out, WrError *err)
    int32_t wr_follower_apply(WrFollower *handle, const uint8_t *message, size_t len, uint32_t now,
                              WrFollowed *out, WrError *err)
    void wr_follower_free(WrFollower *handle)
