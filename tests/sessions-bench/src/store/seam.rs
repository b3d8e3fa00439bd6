//! What this bench uses of the host's session store.

use std::sync::Arc;

use sluice::config;
use sluice::sessions::{EndedTurn, Sessions};
use sluice::telemetry::metrics::Metrics;
use sluice_core::history::scope::{ConversationKey, Scope};
use sluice_core::session::{PromptMark, Session, TurnRecord};

/// The store of a host.
pub struct Store(Sessions);

impl Store {
    /// An empty one.
    pub fn new(max_sessions: usize, ttl_ms: u64) -> Self {
        let config = config::Sessions {
            ttl_ms,
            max_sessions,
            // Counts for what is measured here: so many must fit.
            max_bytes: usize::MAX,
            snapshot_file: None,
            snapshot_interval_ms: 0,
        };
        Self(Sessions::new(&config, &Metrics::default()))
    }

    /// A turn ended, at that time.
    pub fn end_turn(&self, key: ConversationKey, at_ms: u64) {
        let turn = TurnRecord {
            decode: 1,
            prefill: 2,
            prompt: PromptMark { bytes: 8_000, hash: at_ms },
            prompt_tokens: 2_000,
            output_tokens: 200,
            started_at_ms: at_ms,
            ended_at_ms: at_ms,
        };
        self.0.end_turn(EndedTurn { key, mark: None, workload: "default", turn }, at_ms, &mut |_, _| ());
    }

    /// What requests do first.
    pub fn get(&self, key: &ConversationKey, now_ms: u64) -> Option<Session> {
        self.0.get(key, now_ms)
    }

    /// What the host does at intervals.
    pub fn sweep(&self, now_ms: u64) {
        self.0.sweep(now_ms, &mut |_, _| ());
    }

    /// How many are stored, found or not.
    pub fn len(&self) -> usize {
        self.0.size().sessions
    }
}

/// Keys of one tenant, as clients name conversations: 36 characters.
pub struct Keys(Arc<Scope>);

impl Keys {
    /// Those of a tenant.
    pub fn new() -> Self {
        Self(Arc::new(scope()))
    }

    /// One of them.
    pub fn key(&self, number: u64) -> ConversationKey {
        ConversationKey::named(&self.0, format!("conversation-{number:023}"))
    }
}

/// What they belong to.
pub fn scope() -> Scope {
    Scope {
        tenant: "tenant-of-usual-name".to_owned(),
        model: "Qwen/Qwen3-32B".to_owned(),
        adapter: None,
        salt: None,
        endpoint: "/v1/chat/completions".into(),
    }
}
