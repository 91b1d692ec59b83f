//! The methods of the scheduler service, as SGLang's own servicer answers them.

use super::state::{Running, State};
use crate::wire::{self, Event};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::{Instant, sleep_until};

const PREFIX: &str = "/sglang.grpc.scheduler.SglangScheduler/";
/// Requests of a bench are small; this bounds what one of them may hold.
const LARGEST_REQUEST: usize = 64 << 20;
/// A burst hands over to the other streams after this many messages.
const BURST_TURN: u32 = 16;

/// A gRPC status other than OK.
struct Status {
    code: u8,
    message: String,
}

impl Status {
    fn new(code: u8, message: impl Into<String>) -> Status {
        Status { code, message: message.into() }
    }
    fn invalid_argument(message: impl Into<String>) -> Status {
        Status::new(3, message)
    }
}

/// How a Generate came to its end.
enum End {
    Finished,
    Aborted,
    /// The peer reset the stream or left.
    Gone,
}

/// Answers one call; the peer's leaving ends it silently.
pub async fn answer(state: Arc<State>, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let path = request.uri().path().to_owned();
    let body = match read(request.into_body()).await {
        Ok(body) => body,
        Err(_) => return,
    };
    let method = path.strip_prefix(PREFIX).unwrap_or_default();
    let result = if method == "Generate" {
        generate(&state, &body, &mut respond).await
    } else {
        unary(&state, method, &body).map(|message| reply(&mut respond, message))
    };
    if let Err(status) = result {
        state.counts.refused.fetch_add(1, Relaxed);
        refuse(&mut respond, &status);
    }
}

async fn read(mut body: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        if all.len() + data.len() > LARGEST_REQUEST {
            return Err(h2::Reason::REFUSED_STREAM.into());
        }
        all.extend_from_slice(&data);
    }
    Ok(all)
}

fn unary(state: &State, method: &str, body: &[u8]) -> Result<Bytes, Status> {
    Ok(match method {
        "HealthCheck" => wire::frame(&wire::HealthCheckResponse { healthy: true, message: "ok".into() }),
        "GetModelInfo" => wire::frame(&model_info(state)),
        "GetServerInfo" => wire::frame(&server_info(state)),
        "GetLoads" => wire::frame(&loads(state)),
        "Abort" => {
            let request: wire::AbortRequest = wire::unframe(body).map_err(Status::invalid_argument)?;
            let hit = state.abort(&request.request_id);
            wire::frame(&wire::AbortResponse { success: hit > 0, message: format!("{hit} aborted") })
        }
        _ => return Err(Status::new(12, "not a method of the load worker")),
    })
}

fn model_info(state: &State) -> wire::GetModelInfoResponse {
    let model = &state.model;
    wire::GetModelInfoResponse {
        model_path: model.name.clone(),
        tokenizer_path: model.tokenizer_path.clone(),
        is_generation: true,
        weight_version: "default".into(),
        served_model_name: model.name.clone(),
        max_context_length: model.context_length,
        vocab_size: model.vocab_size,
        max_req_input_len: model.context_length - 1,
        ..Default::default()
    }
}

fn server_info(state: &State) -> wire::GetServerInfoResponse {
    let text = |text: &str| wire::Value { kind: Some(wire::ValueKind::Text(text.to_owned())) };
    let number = |number| wire::Value { kind: Some(wire::ValueKind::Number(number)) };
    let model = &state.model;
    let fields = [
        ("model_path", text(&model.name)),
        ("served_model_name", text(&model.name)),
        ("tokenizer_path", text(&model.tokenizer_path)),
        ("context_length", number(f64::from(model.context_length))),
        ("tp_size", number(1.0)),
        ("dp_size", number(1.0)),
    ];
    wire::GetServerInfoResponse {
        server_args: Some(wire::Struct {
            fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        }),
        active_requests: state.active(),
        uptime_seconds: state.uptime(),
        sglang_version: "load".into(),
        server_type: "grpc".into(),
        max_total_num_tokens: i32::MAX,
    }
}

fn loads(state: &State) -> wire::GetLoadsResponse {
    let running = state.active();
    wire::GetLoadsResponse {
        version: "load".into(),
        dp_rank_count: 1,
        loads: vec![wire::SchedulerLoad {
            num_running_reqs: running,
            num_total_reqs: running,
            max_total_num_tokens: i32::MAX,
            max_running_requests: i32::MAX,
        }],
        aggregate: Some(wire::AggregateMetrics { total_running_reqs: running, total_reqs: running }),
    }
}

/// Checks the request, then sends its answer. Statuses are those before the first byte.
async fn generate(state: &Arc<State>, body: &[u8], respond: &mut SendResponse<Bytes>) -> Result<(), Status> {
    let request: wire::GenerateRequest = wire::unframe(body).map_err(Status::invalid_argument)?;
    let prompt_tokens = request.tokenized.as_ref().map_or(0, |input| input.input_ids.len() as u32);
    if prompt_tokens == 0 {
        return Err(Status::invalid_argument("tokenized.input_ids is empty"));
    }
    let sampling = request.sampling_params.unwrap_or_default();
    if sampling.n > 1 {
        return Err(Status::invalid_argument("the load worker answers n=1 only"));
    }
    let asked = sampling.max_new_tokens.unwrap_or(state.longest);
    let running = state
        .enter(&request.request_id)
        .ok_or_else(|| Status::invalid_argument("this request id is running"))?;
    let answer = Answer {
        state,
        request_id: request.request_id,
        prompt_tokens,
        length: asked.min(state.longest),
        finish_reason: if asked <= state.longest { "length" } else { "stop" },
        running,
    };
    let Ok(mut stream) = respond.send_response(head(), false) else {
        return Ok(());
    };
    let end = if request.stream { answer.stream(&mut stream).await } else { answer.whole(&mut stream).await };
    let counts = &state.counts;
    match end {
        End::Finished => counts.finished.fetch_add(1, Relaxed),
        End::Aborted => counts.aborted.fetch_add(1, Relaxed),
        End::Gone => counts.gone.fetch_add(1, Relaxed),
    };
    Ok(())
}

/// One Generate in progress.
struct Answer<'a> {
    state: &'a State,
    request_id: String,
    prompt_tokens: u32,
    length: u32,
    finish_reason: &'static str,
    running: Running,
}

impl Answer<'_> {
    /// Chunks of one id with cumulative counts, then Complete, which repeats the last id.
    async fn stream(&self, out: &mut SendStream<Bytes>) -> End {
        let arrival = Instant::now();
        let mut first = arrival;
        let mut sent = 0;
        while sent < self.length {
            let due = match sent {
                0 => self.state.pacing.first(arrival),
                _ => self.state.pacing.nth(first, sent),
            };
            if let Err(end) = self.wait(out, due).await {
                return self.close(out, end, sent).await;
            }
            if sent == 0 {
                first = due.unwrap_or_else(Instant::now);
            }
            let chunk = wire::GenerateStreamChunk {
                token_ids: vec![self.state.id(sent)],
                prompt_tokens: self.prompt_tokens,
                completion_tokens: sent + 1,
                cached_tokens: 0,
            };
            if send(out, self.frame(Event::Chunk(chunk))).await.is_err() {
                return End::Gone;
            }
            sent += 1;
            self.state.counts.tokens.fetch_add(1, Relaxed);
            if due.is_none() && sent % BURST_TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        self.close(out, End::Finished, sent).await
    }

    /// One Complete with all ids, at the time the last of them is due.
    async fn whole(&self, out: &mut SendStream<Bytes>) -> End {
        let arrival = Instant::now();
        let pacing = &self.state.pacing;
        let first = pacing.first(arrival);
        let last = pacing.nth(first.unwrap_or(arrival), self.length.saturating_sub(1)).or(first);
        if let Err(end) = self.wait(out, last).await {
            return self.close(out, end, 0).await;
        }
        self.state.counts.tokens.fetch_add(u64::from(self.length), Relaxed);
        let ids = (0..self.length).map(|index| self.state.id(index)).collect();
        self.complete(out, End::Finished, ids, self.length).await
    }

    /// Waits until `due`; an error is the reason not to go on.
    async fn wait(&self, out: &mut SendStream<Bytes>, due: Option<Instant>) -> Result<(), End> {
        if let Some(due) = due {
            tokio::select! {
                biased;
                _ = self.running.cancel.notify.notified() => {}
                _ = poll_fn(|cx| out.poll_reset(cx)) => return Err(End::Gone),
                _ = sleep_until(due) => {}
            }
        }
        if self.running.cancel.aborted() { Err(End::Aborted) } else { Ok(()) }
    }

    async fn close(&self, out: &mut SendStream<Bytes>, end: End, sent: u32) -> End {
        let ids = sent.checked_sub(1).map(|last| self.state.id(last)).into_iter().collect();
        self.complete(out, end, ids, sent).await
    }

    async fn complete(&self, out: &mut SendStream<Bytes>, end: End, output_ids: Vec<u32>, sent: u32) -> End {
        if matches!(end, End::Gone) {
            return end;
        }
        let complete = wire::GenerateComplete {
            output_ids,
            finish_reason: if matches!(end, End::Aborted) { "abort" } else { self.finish_reason }.to_owned(),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: sent,
            cached_tokens: 0,
        };
        match send(out, self.frame(Event::Complete(complete))).await {
            Ok(()) if out.send_trailers(trailers(0, "")).is_ok() => end,
            _ => End::Gone,
        }
    }

    fn frame(&self, event: Event) -> Bytes {
        wire::frame(&wire::GenerateResponse { request_id: self.request_id.clone(), response: Some(event) })
    }
}

/// Sends within the peer's window, so that a reader who stops is felt here.
async fn send(out: &mut SendStream<Bytes>, data: Bytes) -> Result<(), h2::Error> {
    out.reserve_capacity(data.len());
    while out.capacity() < data.len() {
        match poll_fn(|cx| out.poll_capacity(cx)).await {
            Some(granted) => granted?,
            None => return Err(h2::Reason::CANCEL.into()),
        };
    }
    out.send_data(data, false)
}

fn reply(respond: &mut SendResponse<Bytes>, message: Bytes) {
    if let Ok(mut stream) = respond.send_response(head(), false)
        && stream.send_data(message, false).is_ok()
    {
        // A peer that has left needs no trailers.
        let _ = stream.send_trailers(trailers(0, ""));
    }
}

/// A trailers-only answer.
fn refuse(respond: &mut SendResponse<Bytes>, status: &Status) {
    let mut response = head();
    response.headers_mut().extend(trailers(status.code, &status.message));
    let _ = respond.send_response(response, true);
}

fn head() -> Response<()> {
    let mut response = Response::new(());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

fn trailers(code: u8, message: &str) -> HeaderMap {
    let mut map = HeaderMap::new();
    map.insert("grpc-status", HeaderValue::from(u16::from(code)));
    if let Ok(value) = HeaderValue::from_str(message)
        && !message.is_empty()
    {
        map.insert("grpc-message", value);
    }
    map
}
