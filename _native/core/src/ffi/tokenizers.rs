//! Tokenizers and their chat templates: that part of the C ABI, under the conventions of [`super`].

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::template::{ChatTemplate, ContentForm};
use crate::tokenizer::Tokenizer;

pub(super) static LIVE: AtomicU64 = AtomicU64::new(0);

/// A tokenizer with its chat template.
pub struct WrTokenizer {
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) template: Option<ChatTemplate>,
}

/// # Safety
/// `tokenizer` is a live handle or null.
pub(super) unsafe fn tokenizer<'a>(tokenizer: *const WrTokenizer) -> Result<&'a WrTokenizer> {
    unsafe { tokenizer.as_ref() }.ok_or_else(|| null("tokenizer"))
}

fn content_form(template: &ChatTemplate) -> &'static str {
    match template.content_form() {
        ContentForm::String => "string",
        ContentForm::Parts => "parts",
    }
}

/// Loads a tokenizer from a folder or a tokenizer.json, and its chat template. `template` (the template's text)
/// replaces the folder's own when it is not null. `prompt_cache`: how many bytes the ids of earlier prompts may
/// take, 0 for no cache.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_tokenizer_load(
    path: *const u8,
    path_len: usize,
    template: *const u8,
    template_len: usize,
    prompt_cache: usize,
    out: *mut *mut WrTokenizer,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let path = unsafe { text(path, path_len) }?;
        let mut tokenizer = Tokenizer::load(Path::new(path))?;
        tokenizer.cache_prompts(prompt_cache);
        let own = if template.is_null() { None } else { Some(unsafe { text(template, template_len) }?) };
        let template = own
            .or(tokenizer.chat_template_source())
            .map(|source| ChatTemplate::new(source, tokenizer.special_tokens()))
            .transpose()
            .map_err(|error| error.at("chat_template"))?;
        let handle = WrTokenizer { tokenizer: Arc::new(tokenizer), template };
        unsafe { give_handle(out, handle, &LIVE) }?;
        trim_memory();
        Ok(())
    })
}

/// # Safety
/// `handle` came from `wr_tokenizer_load` and is freed once; no other call on it is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_tokenizer_free(handle: *mut WrTokenizer) {
    unsafe { free_handle(handle, &LIVE, drop) };
}

/// What is known of a tokenizer, as a JSON object (owned bytes).
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_tokenizer_info(
    handle: *const WrTokenizer,
    out: *mut WrBytes,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let handle = unsafe { tokenizer(handle) }?;
        let tokenizer = &handle.tokenizer;
        let info = serde_json::json!({
            "vocab_size": tokenizer.vocab_size(),
            "eos_token_ids": tokenizer.eos_token_ids(),
            "special_tokens": tokenizer.special_tokens(),
            "has_chat_template": handle.template.is_some(),
            "content_form": handle.template.as_ref().map(content_form),
            "model_max_length": tokenizer.model_max_length(),
            "backend": tokenizer.backend(),
        });
        unsafe { give(out, WrBytes::owned(info.to_string().into_bytes())) }
    })
}

/// Text to token ids (owned bytes: native-endian u32).
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_encode(
    handle: *const WrTokenizer,
    data: *const u8,
    len: usize,
    add_special_tokens: bool,
    out: *mut WrBytes,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let handle = unsafe { tokenizer(handle) }?;
        let ids = handle.tokenizer.encode(unsafe { text(data, len) }?, add_special_tokens)?;
        let bytes = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
        unsafe { give(out, WrBytes::owned(bytes)) }
    })
}

/// Token ids to text (owned bytes: UTF-8).
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_decode(
    handle: *const WrTokenizer,
    ids: *const u32,
    len: usize,
    skip_special_tokens: bool,
    out: *mut WrBytes,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let handle = unsafe { tokenizer(handle) }?;
        let decoded = handle.tokenizer.decode(unsafe { input(ids, len) }, skip_special_tokens);
        unsafe { give(out, WrBytes::owned(decoded.into_bytes())) }
    })
}
