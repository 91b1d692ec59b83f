// The native core's C ABI. Made by cbindgen from core/src/ffi.rs, ffi/*.rs and error.rs: `make header` writes it, `make check` compares it.

#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// Goes up with every change of the ABI's functions or structs; the extension checks it on import.
#define WR_ABI_VERSION 8

// Headers of a plain head at most.
#define MOST_HEADERS 64

#define OK 0

#define CANCELLED 1

#define UNKNOWN 2

#define DEADLINE_EXCEEDED 4

#define PERMISSION_DENIED 7

#define RESOURCE_EXHAUSTED 8

#define UNIMPLEMENTED 12

#define INTERNAL 13

#define UNAVAILABLE 14

#define UNAUTHENTICATED 16

// Headers of a head at most.
#define WR_MOST_HEADERS 64

// Flag of an ended call: its worker was silent for too long.
#define WR_SILENT 1

// Tokens that a mark stands for, beyond the one before it.
#define WR_PREFIX_BLOCK 16

// Whose fault an error is and what the HTTP side makes of it.
enum WrCode
#if __STDC_VERSION__ >= 202311L
  : int32_t
#endif // __STDC_VERSION__ >= 202311L
 {
  // The client's input cannot be served: 400.
  WR_CODE_INVALID_REQUEST = 1,
  // Prompt and answer do not fit the model's context: 400 `context_length_exceeded`.
  WR_CODE_CONTEXT_LENGTH = 2,
  // The chat template refused the conversation (`raise_exception`) or failed on it: 400.
  WR_CODE_TEMPLATE = 3,
  // Rendering used up its fuel or its output limit: 400, or once more with more fuel in the pool.
  WR_CODE_FUEL = 4,
  // A file that start-up needs is missing or unreadable: the start stops with this message.
  WR_CODE_LOAD = 5,
  // A message of the worker could not be read: 502-class failure of the backend.
  WR_CODE_WORKER = 6,
  // A bug of ours, a caught panic included: that request's 500.
  WR_CODE_INTERNAL = 7,
};
#if __STDC_VERSION__ >= 202311L
typedef enum WrCode WrCode;
#else
typedef int32_t WrCode;
#endif // __STDC_VERSION__ >= 202311L

// What `WrEvent::kind` says.
typedef enum WrEventKind {
  // `messages` of the worker were fed to the call's stream, with `flags` (`stream::flags`) of all of them. Where
  // those say that it failed, `data` is the message that led to it; else it is null.
  WR_EVENT_KIND_FED = 0,
  // `data` is a message that was not fed.
  WR_EVENT_KIND_MESSAGE = 1,
  // The call's last event: `status` is a gRPC code, `data` its details; `flags` may be `WR_SILENT`.
  WR_EVENT_KIND_ENDED = 2,
  // The client's socket takes no more: see `wr_stream_rest`. `status` is 1 if it is broken, else 0.
  WR_EVENT_KIND_BLOCKED = 3,
} WrEventKind;

// What `wr_stream_report` can tell.
typedef enum WrReport {
  // The whole answer as one JSON object (not streaming).
  WR_REPORT_RESULT = 0,
  // The worker's words when it gave up; empty when it did not.
  WR_REPORT_FAILURE = 1,
  // Token counts and inter-token times as a JSON object.
  WR_REPORT_STATS = 2,
} WrReport;

// One gRPC call.
typedef struct WrCall WrCall;

// Follows one worker's events. Its table outlives it.
typedef struct WrFollower WrFollower;

// The process's connections to its workers, with a thread of their own.
typedef struct WrNet WrNet;

// A rendered, tokenised and encoded request.
typedef struct WrPrepared WrPrepared;

// The answer to one request, all its choices.
typedef struct WrStream WrStream;

// A tokenizer with its chat template.
typedef struct WrTokenizer WrTokenizer;

// Bytes that the core made. Owned ones (`cap` > 0) are freed by `wr_bytes_free`; borrowed ones (`cap` 0) live
// until the next call on the handle they came from.
typedef struct WrBytes {
  uint8_t *ptr;
  size_t len;
  size_t cap;
} WrBytes;

// Filled when a function fails; `message` and `param` are owned by the caller.
typedef struct WrError {
  int32_t code;
  struct WrBytes message;
  struct WrBytes param;
} WrError;

// What a `WrPrepared` holds; the pointers live as long as it does.
typedef struct WrPreparedView {
  const uint8_t *prompt;
  size_t prompt_len;
  const uint32_t *ids;
  size_t ids_len;
  // How many of the ids the prompt cache had.
  size_t ids_reused;
  const uint8_t *body;
  size_t body_len;
  // Tokens the worker may make at most; −1 when nothing limits them.
  int64_t max_new_tokens;
} WrPreparedView;

// The server's bounds, see `http1::Bounds`.
typedef struct WrBounds {
  uint32_t line;
  uint32_t headers;
  uint32_t header;
} WrBounds;

// A part of the data that a head was read from.
typedef struct WrPart {
  uint32_t start;
  uint32_t len;
} WrPart;

// A header; its name as it was sent.
typedef struct WrHeader {
  struct WrPart name;
  struct WrPart value;
} WrHeader;

// The plain head of a request, see `http1::Head`.
typedef struct WrHead {
  struct WrPart method;
  struct WrPart target;
  struct WrPart path;
  struct WrPart query;
  // Where the body begins.
  uint32_t end;
  bool close;
  uint64_t content_length;
  uint32_t header_count;
  struct WrHeader headers[WR_MOST_HEADERS];
} WrHead;

// Something that happened to a call; the pointer lives until the next `wr_net_events`.
typedef struct WrEvent {
  // As given to `wr_net_generate` or `wr_net_unary`.
  uint64_t tag;
  // A `WrEventKind`.
  uint32_t kind;
  uint32_t flags;
  uint32_t messages;
  int32_t status;
  const uint8_t *data;
  size_t len;
} WrEvent;

// What a worker is known to have.
typedef struct WrKnown {
  // Blocks of the prompt, from its beginning.
  uint32_t matched;
  // 1 if the worker's own events say so, 0 if it is what it was sent.
  uint32_t fed;
  // Blocks in all.
  uint64_t held;
} WrKnown;

// What a batch of events has led to; see `prefix::follower::Followed`.
typedef struct WrFollowed {
  uint64_t sequence;
  uint64_t blocks;
  bool whole;
  bool gap;
} WrFollowed;

// Facts as a JSON object (owned bytes): `abi_version`, `live_handles` (`tokenizers`, `prepared`, `streams`, `nets`, `calls`,
// `followers`) and `itl_bounds` (upper bounds in seconds of the inter-token buckets that `wr_stream_report` tells).
//
// # Safety
// `out` points to room for a `WrBytes`.
void wr_facts(struct WrBytes *out);

// Makes the heap ready for forks: what is free goes back to the system, or is never used again.
void wr_settle_heap(void);

// How much work it is to decode a JSON text, see `body::work`.
//
// # Safety
// See the module's conventions.
uint64_t wr_json_work(const uint8_t *data, size_t len);

// Frees owned bytes; borrowed and empty ones are left alone.
//
// # Safety
// `bytes` came from this library and is freed once.
void wr_bytes_free(struct WrBytes bytes);

// Loads a tokenizer from a folder or a tokenizer.json, and its chat template. `template` (the template's text)
// replaces the folder's own when it is not null. `prompt_cache`: how many bytes the ids of earlier prompts may
// take, 0 for no cache.
//
// # Safety
// See the module's conventions.
int32_t wr_tokenizer_load(const uint8_t *path,
                          size_t path_len,
                          const uint8_t *template_,
                          size_t template_len,
                          size_t prompt_cache,
                          struct WrTokenizer **out,
                          struct WrError *err);

// # Safety
// `handle` came from `wr_tokenizer_load` and is freed once; no other call on it is under way.
void wr_tokenizer_free(struct WrTokenizer *handle);

// What is known of a tokenizer, as a JSON object (owned bytes).
//
// # Safety
// See the module's conventions.
int32_t wr_tokenizer_info(const struct WrTokenizer *handle, struct WrBytes *out, struct WrError *err);

// Text to token ids (owned bytes: native-endian u32).
//
// # Safety
// See the module's conventions.
int32_t wr_encode(const struct WrTokenizer *handle,
                  const uint8_t *data,
                  size_t len,
                  bool add_special_tokens,
                  struct WrBytes *out,
                  struct WrError *err);

// Token ids to text (owned bytes: UTF-8).
//
// # Safety
// See the module's conventions.
int32_t wr_decode(const struct WrTokenizer *handle,
                  const uint32_t *ids,
                  size_t len,
                  bool skip_special_tokens,
                  struct WrBytes *out,
                  struct WrError *err);

// Renders a job's messages with the chat template (owned bytes: UTF-8). `fuel` 0 means the default.
//
// # Safety
// See the module's conventions.
int32_t wr_render(const struct WrTokenizer *handle,
                  const uint8_t *job,
                  size_t job_len,
                  uint64_t fuel,
                  struct WrBytes *out,
                  struct WrError *err);

// A job (JSON) to prompt, token ids and `GenerateRequest` bytes. `fuel` 0 means the default.
//
// # Safety
// See the module's conventions.
int32_t wr_prepare(const struct WrTokenizer *handle,
                   const uint8_t *job,
                   size_t job_len,
                   uint64_t fuel,
                   struct WrPrepared **out,
                   struct WrError *err);

// # Safety
// `handle` is live; `out` points to room for a `WrPreparedView`.
void wr_prepared_view(const struct WrPrepared *handle, struct WrPreparedView *out);

// # Safety
// `handle` came from `wr_prepare` and is freed once.
void wr_prepared_free(struct WrPrepared *handle);

// Begins an answer. `options` is the JSON object that `stream::Options` describes.
//
// # Safety
// See the module's conventions.
int32_t wr_stream_new(const struct WrTokenizer *handle,
                      const uint8_t *options,
                      size_t options_len,
                      struct WrStream **out,
                      struct WrError *err);

// Takes one `GenerateResponse` of a choice; `flags` tells what it led to (`stream::flags`).
//
// # Safety
// See the module's conventions.
int32_t wr_stream_feed(struct WrStream *handle,
                       uint32_t choice,
                       const uint8_t *message,
                       size_t message_len,
                       uint32_t *flags,
                       struct WrError *err);

// The RPC of a choice ended well.
//
// # Safety
// See the module's conventions.
int32_t wr_stream_end(struct WrStream *handle, uint32_t choice, uint32_t *flags, struct WrError *err);

// Ends the answer with an error event; `error` is the whole JSON object.
//
// # Safety
// See the module's conventions.
int32_t wr_stream_fail(struct WrStream *handle, const uint8_t *error, size_t error_len, struct WrError *err);

// The bytes that are ready for the client (borrowed until the next call on this stream).
//
// # Safety
// See the module's conventions.
int32_t wr_stream_take(struct WrStream *handle, struct WrBytes *out, struct WrError *err);

// Tells the result, the failure or the figures of a stream (owned bytes). `kind` is a `WrReport`.
//
// # Safety
// See the module's conventions.
int32_t wr_stream_report(struct WrStream *handle, uint32_t kind, struct WrBytes *out, struct WrError *err);

// # Safety
// `handle` came from `wr_stream_new` and is freed once.
void wr_stream_free(struct WrStream *handle);

// Tells whether a first message is the worker's refusal: 1 and its words (owned bytes) if so, else 0.
//
// # Safety
// See the module's conventions.
int32_t wr_first_failure(const uint8_t *message, size_t message_len, struct WrBytes *out);

// Reads the head that `data` begins with; 1 if it is whole and plain, else 0, and `out` is untouched.
//
// # Safety
// See the module's conventions.
int32_t wr_plain_head(const uint8_t *data, size_t len, struct WrBounds bounds, struct WrHead *out);

// Starts the transport's thread. `options` is the JSON object that `net::Options` describes, but for the roots of
// TLS: those are PEM. Made after a fork.
//
// # Safety
// See the module's conventions.
int32_t wr_net_new(const uint8_t *options,
                   size_t options_len,
                   const uint8_t *roots,
                   size_t roots_len,
                   struct WrNet **out,
                   struct WrError *err);

// An eventfd, not blocking, that is readable when `wr_net_events` has something to tell. It lives as long as
// the net.
//
// # Safety
// `handle` is live.
int32_t wr_net_fd(const struct WrNet *handle);

// Makes the eventfd unreadable and tells what has happened. The events live until the next call.
//
// # Safety
// `handle` is live; no other thread is in this function.
void wr_net_events(struct WrNet *handle, const struct WrEvent **out, size_t *count);

// Opens `Generate` at a worker (`grpc://HOST:PORT`, or `grpcs://` with TLS). With a stream, its messages are fed
// to it as of `choice`; without one they come as events. `first_ms` is how long the worker may be silent before
// the first message, `token_ms` between messages; 0: for ever. It starts with the next `wr_net_submit`.
//
// # Safety
// See the module's conventions. The stream may be freed before the call.
int32_t wr_net_generate(struct WrNet *handle,
                        const uint8_t *url,
                        size_t url_len,
                        const uint8_t *request,
                        size_t request_len,
                        struct WrStream *stream,
                        uint32_t choice,
                        uint64_t tag,
                        uint64_t first_ms,
                        uint64_t token_ms,
                        struct WrCall **out,
                        struct WrError *err);

// Starts all calls that wait for it.
//
// # Safety
// `handle` is live.
void wr_net_submit(const struct WrNet *handle);

// Calls a method with one answer, by its short name (`HealthCheck`). `timeout_ms` 0: no deadline.
//
// # Safety
// See the module's conventions.
int32_t wr_net_unary(struct WrNet *handle,
                     const uint8_t *url,
                     size_t url_len,
                     const uint8_t *method,
                     size_t method_len,
                     const uint8_t *request,
                     size_t request_len,
                     uint64_t tag,
                     uint64_t timeout_ms,
                     struct WrCall **out,
                     struct WrError *err);

// Cancels a call, if it still runs. When this returns nothing of it is fed any more, and no event of it follows.
// `unfed`: only if no message of it was fed. Returns whether it was cancelled.
//
// # Safety
// `handle` is live or null.
bool wr_call_cancel(struct WrCall *handle,
                    bool unfed);

// Holds what the worker sends, until `wr_call_give`; to be called before the call is submitted.
//
// # Safety
// `handle` is live or null.
void wr_call_hold(struct WrCall *handle);

// Delivers a message (a `GenerateResponse`) before the worker's own, which were held. Once; else it does nothing.
//
// # Safety
// `handle` is live or null.
void wr_call_give(struct WrCall *handle,
                  const uint8_t *message,
                  size_t message_len);

// Cancels and frees.
//
// # Safety
// `handle` came from `wr_net_generate` or `wr_net_unary` and is freed once; its net may be freed before.
void wr_call_free(struct WrCall *handle);

// Drops the connections to a worker; its calls end with UNAVAILABLE.
//
// # Safety
// See the module's conventions.
void wr_net_forget(struct WrNet *handle, const uint8_t *url, size_t url_len);

// Milliseconds since anything of a call came from a worker, −1 if nothing ever did.
//
// # Safety
// See the module's conventions.
int64_t wr_net_heard(const struct WrNet *handle, const uint8_t *url, size_t url_len);

// Cancels all calls and ends the thread.
//
// # Safety
// `handle` came from `wr_net_new` and is freed once; no other call on it is under way.
void wr_net_free(struct WrNet *handle);

// Lends the client's socket: what is ready, and what will be, is written to it as chunks of HTTP/1.1, with no
// last chunk. Ask `wr_stream_rest` afterwards, as after each call of yours that may write (`wr_stream_feed`,
// `wr_stream_end`, `wr_stream_fail`, `wr_stream_ping`, `wr_stream_resume`): events tell only of what the
// transport's own thread could not write.
//
// # Safety
// `fd` is an open socket that does not block, and stays open until `wr_stream_reclaim` or `wr_stream_free`.
int32_t wr_stream_lend(struct WrStream *handle, int32_t fd, struct WrError *err);

// What the socket did not take, framed, to be sent by the caller (borrowed until the next call on this stream).
// Empty if it has taken everything, or if this was told already. May be asked after `wr_stream_reclaim` too.
//
// # Safety
// See the module's conventions.
int32_t wr_stream_rest(struct WrStream *handle,
                       struct WrBytes *out,
                       struct WrError *err);

// The rest was sent: what has come meanwhile is written, and the calls go on. Nothing happens if the socket is
// not blocked.
//
// # Safety
// See the module's conventions.
int32_t wr_stream_resume(struct WrStream *handle,
                         struct WrError *err);

// Takes the socket back: when this returns it is not touched any more, and bytes are for `wr_stream_take` again.
// `written` (may be null): bytes of the chunks' contents that were sent, or handed over as the rest.
//
// # Safety
// See the module's conventions.
int32_t wr_stream_reclaim(struct WrStream *handle,
                          uint64_t *written,
                          struct WrError *err);

// Writes `data` as a chunk to a lent socket, if nothing was written for `idle_ms` and it is not blocked.
//
// # Safety
// See the module's conventions.
int32_t wr_stream_ping(struct WrStream *handle,
                       const uint8_t *data,
                       size_t len,
                       uint64_t idle_ms,
                       struct WrError *err);

// Writes the marks of a prompt's whole blocks to `out`, which has room for `len` / `WR_PREFIX_BLOCK` of them.
// `adapter` names the prompt's LoRA adapter, or is empty.
//
// # Safety
// See the module's conventions.
int32_t wr_prefix_marks(const uint64_t *memory,
                        size_t words,
                        const uint8_t *adapter,
                        size_t adapter_len,
                        const uint32_t *ids,
                        size_t len,
                        uint64_t *out,
                        struct WrError *err);

// For each of `count` columns what it has of the prompt with these marks; `out` has room for `count`.
//
// # Safety
// See the module's conventions.
int32_t wr_prefix_match(const uint64_t *memory,
                        size_t words,
                        const uint64_t *marks,
                        size_t len,
                        const uint32_t *columns,
                        size_t count,
                        uint32_t now,
                        struct WrKnown *out,
                        struct WrError *err);

// The worker of a column is sent the prompt with these marks.
//
// # Safety
// See the module's conventions.
int32_t wr_prefix_note(const uint64_t *memory,
                       size_t words,
                       const uint64_t *marks,
                       size_t len,
                       uint32_t at,
                       uint32_t now,
                       struct WrError *err);

// Forgets what is known of a column.
//
// # Safety
// See the module's conventions.
int32_t wr_prefix_clear(const uint64_t *memory, size_t words, uint32_t at, struct WrError *err);

// Begins to follow the events of a column's worker.
//
// # Safety
// See the module's conventions; the memory stays until `wr_follower_free`.
int32_t wr_follower_new(const uint64_t *memory,
                        size_t words,
                        uint32_t at,
                        struct WrFollower **out,
                        struct WrError *err);

// Takes in a raw KvEventBatch.
//
// # Safety
// `handle` is live; see the module's conventions.
int32_t wr_follower_apply(struct WrFollower *handle,
                          const uint8_t *message,
                          size_t len,
                          uint32_t now,
                          struct WrFollowed *out,
                          struct WrError *err);

// The events are not heard any more: the column stays as it is, and what its worker is sent counts from now on.
// Not to be called in a process that did not make it.
//
// # Safety
// `handle` came from `wr_follower_new` and is freed once.
void wr_follower_free(struct WrFollower *handle);
