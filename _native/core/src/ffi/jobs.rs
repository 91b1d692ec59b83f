//! Jobs, made ready to be sent: that part of the C ABI, under the conventions of [`super`].

use super::tokenizers::{WrTokenizer, tokenizer};
use super::*;
use crate::prepare::{self, Prepared};
use crate::template::Limits;

pub(super) static LIVE: AtomicU64 = AtomicU64::new(0);

/// A rendered, tokenised and encoded request.
pub struct WrPrepared(Prepared);

/// What a `WrPrepared` holds; the pointers live as long as it does.
#[repr(C)]
pub struct WrPreparedView {
    pub prompt: *const u8,
    pub prompt_len: usize,
    pub ids: *const u32,
    pub ids_len: usize,
    /// How many of the ids the prompt cache had.
    pub ids_reused: usize,
    pub body: *const u8,
    pub body_len: usize,
    /// Tokens the worker may make at most; −1 when nothing limits them.
    pub max_new_tokens: i64,
}

fn limits(fuel: u64) -> Limits {
    let default = Limits::default();
    if fuel == 0 { default } else { Limits { fuel, ..default } }
}

/// Renders a job's messages with the chat template (owned bytes: UTF-8). `fuel` 0 means the default.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_render(
    handle: *const WrTokenizer,
    job: *const u8,
    job_len: usize,
    fuel: u64,
    out: *mut WrBytes,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let handle = unsafe { tokenizer(handle) }?;
        let prompt = prepare::render_job(
            &handle.tokenizer,
            handle.template.as_ref(),
            unsafe { input(job, job_len) },
            &limits(fuel),
        )?;
        unsafe { give(out, WrBytes::owned(prompt.into_bytes())) }
    })
}

/// A job (JSON) to prompt, token ids and `GenerateRequest` bytes. `fuel` 0 means the default.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_prepare(
    handle: *const WrTokenizer,
    job: *const u8,
    job_len: usize,
    fuel: u64,
    out: *mut *mut WrPrepared,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let handle = unsafe { tokenizer(handle) }?;
        let prepared = prepare::prepare(
            &handle.tokenizer,
            handle.template.as_ref(),
            unsafe { input(job, job_len) },
            &limits(fuel),
        )?;
        unsafe { give_handle(out, WrPrepared(prepared), &LIVE) }
    })
}

/// # Safety
/// `handle` is live; `out` points to room for a `WrPreparedView`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_prepared_view(handle: *const WrPrepared, out: *mut WrPreparedView) {
    let Some(WrPrepared(prepared)) = (unsafe { handle.as_ref() }) else { return };
    let view = WrPreparedView {
        prompt: prepared.prompt.as_ptr(),
        prompt_len: prepared.prompt.len(),
        ids: prepared.input_ids.as_ptr(),
        ids_len: prepared.input_ids.len(),
        ids_reused: prepared.reused,
        body: prepared.body.as_ptr(),
        body_len: prepared.body.len(),
        max_new_tokens: prepared.max_new_tokens.map_or(-1, i64::from),
    };
    let _ = unsafe { give(out, view) };
}

/// # Safety
/// `handle` came from `wr_prepare` and is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_prepared_free(handle: *mut WrPrepared) {
    unsafe { free_handle(handle, &LIVE, drop) };
}
