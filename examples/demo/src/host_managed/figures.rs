//! What the host counts of the KV that it moves.

use sluice_harness::Metrics;

/// From prefill to decode engines, or back.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moved {
    pub bytes: f64,
    /// Of them, those that moved while their prefill went on.
    pub overlapped_bytes: f64,
    /// How long a pair of engines had KV on its way, all pairs together.
    pub moving_s: f64,
}

/// All of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    pub to_decode: Moved,
    pub to_prefill: Moved,
    /// Prompt tokens that came from kept turns instead of being computed.
    pub reused_tokens: f64,
    pub transfers_failed: f64,
    /// Times that the host went on without what was decided.
    pub fallbacks: f64,
}

impl Moved {
    fn of(metrics: &Metrics, direction: &str) -> Self {
        let sum = |name| metrics.sum(name, &[("direction", direction)]);
        Self {
            bytes: sum("sluice_transfer_bytes_total"),
            overlapped_bytes: sum("sluice_transfer_overlapped_bytes_total"),
            moving_s: sum("sluice_transfer_moving_seconds_total"),
        }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            bytes: self.bytes - earlier.bytes,
            overlapped_bytes: self.overlapped_bytes - earlier.overlapped_bytes,
            moving_s: self.moving_s - earlier.moving_s,
        }
    }
}

impl Figures {
    /// As counted since the host started.
    pub fn of(metrics: &Metrics) -> Self {
        let sum = |name| metrics.sum(name, &[]);
        Self {
            to_decode: Moved::of(metrics, "prefill-to-decode"),
            to_prefill: Moved::of(metrics, "decode-to-prefill"),
            reused_tokens: sum("sluice_reused_tokens_total"),
            transfers_failed: sum("sluice_kv_transfers_failed_total"),
            fallbacks: sum("sluice_fallbacks_total"),
        }
    }

    /// What came since then.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            to_decode: self.to_decode.since(earlier.to_decode),
            to_prefill: self.to_prefill.since(earlier.to_prefill),
            reused_tokens: self.reused_tokens - earlier.reused_tokens,
            transfers_failed: self.transfers_failed - earlier.transfers_failed,
            fallbacks: self.fallbacks - earlier.fallbacks,
        }
    }
}
