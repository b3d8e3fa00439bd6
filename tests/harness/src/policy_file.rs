//! Policies as files: good ones, broken ones, and ones told apart by a mark.

use crate::{HarnessError, artifacts};

/// What is dropped into a policy folder as `NAME.wasm`, with `NAME.toml` if there are settings.
#[derive(Debug, Clone)]
pub struct PolicyFile {
    /// The file's name without `.wasm`.
    pub name: String,
    /// Its bytes.
    pub wasm: Vec<u8>,
    /// Settings, in TOML.
    pub settings: Option<String>,
}

impl PolicyFile {
    /// Any bytes.
    pub fn new(name: &str, wasm: Vec<u8>) -> Self {
        Self { name: name.into(), wasm, settings: None }
    }

    /// A policy of this project, under a name of its own.
    pub fn policy(name: &str, policy: &str) -> Result<Self, HarnessError> {
        Ok(Self::new(name, artifacts::policy(policy)?))
    }

    /// A guest made for tests, under a name of its own.
    pub fn guest(name: &str, guest: &str) -> Result<Self, HarnessError> {
        Ok(Self::new(name, artifacts::guest(guest)?))
    }

    /// The same with settings.
    pub fn settings(self, settings: &str) -> Self {
        Self { settings: Some(settings.to_owned()), ..self }
    }

    /// Its first half: what a copy that broke off leaves.
    pub fn truncated(mut self) -> Self {
        self.wasm.truncate(self.wasm.len() / 2);
        self
    }

    /// The same code in a file of its own: a custom section says `mark`, so its digest is new.
    pub fn marked(mut self, mark: u32) -> Self {
        const NAME: &[u8] = b"mark";
        let payload = mark.to_le_bytes();
        let length = 1 + NAME.len() + payload.len();
        // Lengths below 128 are one LEB128 byte.
        self.wasm.extend([0, length as u8, NAME.len() as u8]);
        self.wasm.extend(NAME);
        self.wasm.extend(payload);
        self
    }
}
