//! One error type for the core: a stable code, a message for people, and the JSON path at fault.

use std::fmt;

/// Whose fault an error is and what the HTTP side makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// The client's input cannot be served: 400.
    InvalidRequest = 1,
    /// Prompt and answer do not fit the model's context: 400 `context_length_exceeded`.
    ContextLength = 2,
    /// The chat template refused the conversation (`raise_exception`) or failed on it: 400.
    Template = 3,
    /// Rendering used up its fuel or its output limit: 400, or once more with more fuel in the pool.
    Fuel = 4,
    /// A file that start-up needs is missing or unreadable: the start stops with this message.
    Load = 5,
    /// A message of the worker could not be read: 502-class failure of the backend.
    Worker = 6,
    /// A bug of ours, a caught panic included: that request's 500.
    Internal = 7,
}

/// An error with everything the HTTP side needs to answer in OpenAI's shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub code: Code,
    pub message: String,
    /// JSON path of the field at fault, empty if none.
    pub param: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), param: String::new() }
    }

    /// Names the field at fault.
    pub fn at(mut self, param: impl Into<String>) -> Self {
        self.param = param.into();
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
