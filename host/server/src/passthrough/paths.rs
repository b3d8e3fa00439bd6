//! The paths beside chat and completions that engines serve, and what becomes of each.

/// A path, on this host and on engines, and what becomes of a request there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// As clients write it.
    pub path: &'static str,
    /// What becomes of it.
    pub fate: Fate,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It generates: it goes to a worker that serves alone. Its stream is whole once an event of one of these
    /// types came, or `[DONE]`.
    Generates(&'static [&'static str]),
    /// It runs the model over the prompt once: any worker will do.
    Prefills,
    /// It runs no model: any worker will do.
    Tokenizes,
    /// Its body is a multipart form, which this host does not read: it is refused, with what to do.
    Form,
}

impl Fate {
    /// Whether tokens are computed, which a tenant is charged for.
    pub fn runs_the_model(self) -> bool {
        matches!(self, Self::Generates(_) | Self::Prefills)
    }
}

/// All of them. Paths that steer an engine (`/sleep`, `/reset_prefix_cache`, `/inference/v1/generate`,
/// `/v1/load_lora_adapter`) are left out on purpose: clients do not reach them.
pub const PATHS: [Path; 16] = [
    Path {
        path: "/v1/responses",
        fate: Fate::Generates(&["response.completed", "response.incomplete", "response.failed", "error"]),
    },
    Path { path: "/v1/messages", fate: Fate::Generates(&["message_stop", "error"]) },
    Path { path: "/v1/messages/count_tokens", fate: Fate::Tokenizes },
    Path { path: "/v1/embeddings", fate: Fate::Prefills },
    Path { path: "/pooling", fate: Fate::Prefills },
    Path { path: "/classify", fate: Fate::Prefills },
    Path { path: "/score", fate: Fate::Prefills },
    Path { path: "/v1/score", fate: Fate::Prefills },
    Path { path: "/rerank", fate: Fate::Prefills },
    Path { path: "/v1/rerank", fate: Fate::Prefills },
    Path { path: "/v2/rerank", fate: Fate::Prefills },
    Path { path: "/v2/embed", fate: Fate::Prefills },
    Path { path: "/tokenize", fate: Fate::Tokenizes },
    Path { path: "/detokenize", fate: Fate::Tokenizes },
    Path { path: "/v1/audio/transcriptions", fate: Fate::Form },
    Path { path: "/v1/audio/translations", fate: Fate::Form },
];

/// The entry of a path.
pub fn find(path: &str) -> Option<&'static Path> {
    PATHS.iter().find(|entry| entry.path == path)
}
