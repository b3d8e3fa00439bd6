//! The snapshot's part that this store does not know: what engines hold of conversations.

use serde_json::Value;
use sluice_core::kept::saved::SavedAt;

/// Whoever knows what engines hold. Its data is opaque to the snapshot: one value is one line of the file.
pub trait SavesHolds: Send + Sync {
    /// What is held now, each as what is left of its time: `now_ms` is of the clock that does not step. With
    /// [`SavedAt::End`] nothing may be taken any more once this was called.
    fn save(&self, at: SavedAt, now_ms: u64) -> Vec<Value>;

    /// What was saved, once, before the first request, when the file that it comes from holds it no more. `away_ms` is how long
    /// ago it was saved, exactly. Not called where that cannot be told, since the machine was started anew in between.
    fn restore(&self, at: SavedAt, holds: Vec<Value>, away_ms: u64, now_ms: u64);
}

/// Nobody holds anything.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHolds;

impl SavesHolds for NoHolds {
    fn save(&self, _: SavedAt, _: u64) -> Vec<Value> {
        Vec::new()
    }

    fn restore(&self, _: SavedAt, _: Vec<Value>, _: u64, _: u64) {}
}
