//! Text ↔ token ids.
//!
//! Encoding is the library's ([`backend`], [`han`]); decoding is ours, because it must go on token by token:
//! - [`file`]: `tokenizer.json` taken apart without parsing its bulk
//! - [`vocab`]: id → bytes
//! - [`plan`]: the file's decoder, turned into what runs for each token ([`stage`])
//! - [`decoder`]: [`TextDecoder`], text as it comes
//! - [`config`]: the files beside it, [`declared`]: the tokens they name
//! - [`prompts`]: the ids of parts of earlier prompts
//! - [`ranks`]: tiktoken's files, made into a `tokenizer.json`; [`families`]: whose they are

mod backend;
mod config;
mod declared;
mod decoder;
mod families;
mod file;
mod han;
mod plan;
mod prompts;
mod ranks;
mod stage;
mod vocab;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::error::{Code, Error, Result};
use backend::{Around, Backend};
use config::{Config, unreadable};
use declared::Declared;
pub use decoder::TextDecoder;
use decoder::{Machine, decode_all};
use file::File;
use plan::Plan;
use prompts::{LEAST, PromptCache};
use vocab::{ByteAlphabet, RAW_BYTE, SPECIAL, Table};

/// A model's tokenizer: immutable, shared by all threads without a lock of ours (but for the look-ups in the
/// prompt cache).
pub struct Tokenizer {
    backend: Box<dyn Backend>,
    plan: Plan,
    /// What each token brings into the decoder, see [`Plan::fold`].
    table: Table,
    /// What each token reads like within a text, where that differs from `table`.
    display: Option<Table>,
    added: HashMap<String, u32>,
    alphabet: ByteAlphabet,
    config: Config,
    prompts: Option<PromptCache>,
}

impl Tokenizer {
    /// `path`: a folder with a `tokenizer.json` or a file of tiktoken ranks (and the files that
    /// transformers puts beside them), or such a file, whose siblings are read too.
    ///
    /// Errors: [`Code::Load`] with one line that names the file.
    pub fn load(path: &Path) -> Result<Self> {
        let file = if path.is_dir() { vocabulary(path) } else { path.to_path_buf() };
        let bytes = std::fs::read(&file).map_err(|e| unreadable(&file, &e.to_string()))?;
        let folder = file.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        let mut config = Config::load(&folder)?;
        let text = if is_json(&file, &bytes) {
            String::from_utf8(bytes).map_err(|e| e.to_string())
        } else {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            ranks::definition(&bytes, name, &mut config)
        };
        text.and_then(|text| Self::new(&text, config)).map_err(|why| unreadable(&file, &why))
    }

    fn new(text: &str, config: Config) -> std::result::Result<Self, String> {
        let mut file = File::read(text)?;
        let alphabet = ByteAlphabet::new();
        let byte_level = file.rest["model"]["byte_level"].as_bool().unwrap_or(false);
        let plan = Plan::new(&file.rest["decoder"], byte_level)?;

        let mut table = Table::default();
        let declared: HashSet<&str> = config.declared.contents().collect();
        let (mut known, mut size) = (HashMap::new(), 0);
        vocab::read(file.vocab, |id, token| {
            size += 1;
            if declared.contains(token) {
                known.insert(token.to_string(), id);
            }
            let (bytes, flags) = plan.fold(token, &alphabet, false);
            table.set(id, &bytes, flags)
        })?;
        let changed = file.add(&config.declared, &known, size);
        let backend = backend::load((!changed).then_some(text), &file)?;
        let mut added = HashMap::new();
        for token in backend.added_tokens() {
            let (bytes, flags) = plan.fold(&token.content, &alphabet, true);
            table.set(token.id, &bytes, if token.special { flags | SPECIAL } else { flags })?;
            added.insert(token.content, token.id);
        }
        for (content, id) in file.added_tokens() {
            added.entry(content).or_insert(id);
        }
        table.shrink();
        let display = if plan.displays() { Some(display(&plan, &table)?) } else { None };
        let mut tokenizer = Self { backend, plan, table, display, added, alphabet, config, prompts: None };
        tokenizer.complete_config();
        Ok(tokenizer)
    }

    /// What the files beside it leave open.
    fn complete_config(&mut self) {
        self.config.tokenizer = Value::Null;
        self.config.declared = Declared::default();
        for (role, token) in self.backend.roles() {
            self.config.special_tokens.entry(role).or_insert(token);
        }
        if self.config.eos_token_ids.is_empty() {
            let eos = self.config.special_tokens.get("eos_token");
            self.config.eos_token_ids = eos.and_then(|token| self.token_id(token)).into_iter().collect();
        }
    }

    /// The ids of `text`: those of Hugging Face's `encode(text, add_special_tokens)`, never padded
    /// or cut.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 8);
        let encoded = self.backend.encode(text, add_special_tokens, &mut ids);
        encoded.map_err(untokenisable)?;
        Ok(ids)
    }

    /// Keeps ids of prompts' parts, in `bytes` of memory at most; 0 keeps none.
    pub fn cache_prompts(&mut self, bytes: usize) {
        self.prompts = (bytes > 0).then(|| PromptCache::new(bytes));
    }

    /// The ids of a prompt, those of [`Self::encode`]. The second number tells how many of them were known from
    /// earlier prompts.
    pub fn encode_prompt(&self, text: &str, add_special_tokens: bool) -> Result<(Vec<u32>, usize)> {
        let nothing = Around::default();
        let around = if add_special_tokens { self.backend.around() } else { Some(&nothing) };
        let prompts = self.prompts.as_ref().filter(|_| text.len() >= LEAST);
        let (Some(prompts), Some(around)) = (prompts, around) else {
            return Ok((self.encode(text, add_special_tokens)?, 0));
        };
        let mut ids = Vec::with_capacity(text.len() / 3 + 8);
        ids.extend_from_slice(&around.before);
        let reused = prompts.encode(self.backend.as_ref(), text, &mut ids).map_err(untokenisable)?;
        ids.extend_from_slice(&around.after);
        Ok((ids, reused))
    }

    /// The text of `ids`, as Hugging Face's `decode` gives it. Unknown ids are skipped. (An added
    /// token of a byte-level vocabulary is always its own content.)
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let mut text = String::with_capacity(ids.len() * 4);
        if let Plan::Window(decoder) = &self.plan {
            let kept = ids.iter().filter(|&&id| !(skip_special_tokens && self.is_special(id)));
            let tokens: Vec<String> = kept
                .filter_map(|&id| Some(String::from_utf8_lossy(self.table.get(id)?).into_owned()))
                .collect();
            return decode_all(decoder, &tokens);
        }
        let mut machine = Machine::new(self);
        for &id in ids {
            machine.push(self, id, skip_special_tokens, &mut text);
        }
        machine.flush(self, &mut text);
        text
    }

    /// A decoder for one choice.
    pub fn decoder(self: &Arc<Self>, skip_special_tokens: bool) -> TextDecoder {
        TextDecoder::new(Arc::clone(self), skip_special_tokens)
    }

    /// The exact bytes of a token within a text; None for ids that the vocabulary lacks.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.display.as_ref().unwrap_or(&self.table).get(id)
    }

    /// The id of a token as the vocabulary writes it. Added tokens are found at once, others by a
    /// search through the vocabulary: for start-up, not for each request.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        let added = self.added.get(token).copied();
        added.or_else(|| self.table.find(&self.plan.fold(token, &self.alphabet, false).0))
    }

    /// Whether `skip_special_tokens` hides the token.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is(id, SPECIAL)
    }

    /// How many ids have a token, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// The length in bytes of the longest token. A text of more than a context times this cannot be
    /// meant to fit the context, and need not be tokenised to know it: the older backend takes over a
    /// hundred times a text's size while it works.
    pub fn longest_token(&self) -> usize {
        self.table.longest()
    }

    /// From `generation_config.json`, else `config.json`, else the tokenizer's `eos_token`.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.config.eos_token_ids
    }

    /// Special tokens under the names that templates see: `bos_token`, `eos_token` …
    pub fn special_tokens(&self) -> &BTreeMap<String, String> {
        &self.config.special_tokens
    }

    /// The default chat template: `chat_template.jinja`, else `chat_template.json`, else that of
    /// `tokenizer_config.json`.
    pub fn chat_template_source(&self) -> Option<&str> {
        self.config.chat_template.as_deref()
    }

    /// All chat templates by name (`default`, `tool_use` …).
    pub fn named_templates(&self) -> &BTreeMap<String, String> {
        &self.config.named_templates
    }

    /// The length in tokens that `tokenizer_config.json` gives, if it is one.
    pub fn model_max_length(&self) -> Option<u64> {
        self.config.model_max_length
    }

    /// Which library encodes: `tokenizers-1.0` or `tokenizers-0.23`.
    pub fn backend(&self) -> &'static str {
        self.backend.name()
    }
}

fn untokenisable(why: String) -> Error {
    Error::new(Code::InvalidRequest, format!("the text cannot be tokenised: {why}"))
}

/// The file in `folder` that has the vocabulary: `tokenizer.json`, else a file of ranks.
fn vocabulary(folder: &Path) -> PathBuf {
    let json = folder.join("tokenizer.json");
    if json.exists() {
        return json;
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let ranks = |path: &PathBuf| path.extension().is_some_and(|end| end == "tiktoken");
    let named = ["tiktoken.model", "tokenizer.model"].map(|name| folder.join(name));
    paths.filter(ranks).min().or_else(|| named.into_iter().find(|path| path.exists())).unwrap_or(json)
}

/// Whether a file is to be read as `tokenizer.json`, whatever it is called.
fn is_json(file: &Path, bytes: &[u8]) -> bool {
    file.extension().is_some_and(|end| end == "json") || bytes.trim_ascii_start().starts_with(b"{")
}

/// `table` as its tokens read within a text.
fn display(plan: &Plan, table: &Table) -> std::result::Result<Table, String> {
    let mut display = Table::default();
    for (id, token) in table.iter() {
        match std::str::from_utf8(token) {
            Ok(text) if !table.is(id, RAW_BYTE) => display.set(id, plan.display(text).as_bytes(), 0)?,
            _ => display.set(id, token, 0)?,
        }
    }
    display.shrink();
    Ok(display)
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<Tokenizer {} tokens, {}>", self.vocab_size(), self.backend())
    }
}
