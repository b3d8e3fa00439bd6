//! Short ways to write answers.

use crate::{
    DecodeChoice, Disaggregated, Keep, Placement, Rejection, Retention, Route, Row, TransferMode, Verdict,
};

/// Fetch KV blocks held by a decode worker only if that saves at least this many tokens: below it, computing
/// them again is faster than the round trip. What vLLM's own connector assumes.
pub const DEFAULT_KV_RECOMPUTE_THRESHOLD_TOKENS: u32 = 64;

impl Verdict {
    /// One worker prefills and decodes.
    pub fn unified(worker: Row) -> Self {
        Self::placed(Placement::Unified(worker))
    }

    /// Two workers; the decode worker reads the KV blocks once the prefill is done.
    pub fn pull(prefill: Row, decode: Row) -> Self {
        Self::split(prefill, DecodeChoice::Now(decode), TransferMode::Pull)
    }

    /// Two workers; the decode worker is chosen by `bind_decode` once the prefill is done, and reads then.
    pub fn pull_late(prefill: Row) -> Self {
        Self::split(prefill, DecodeChoice::AfterPrefill, TransferMode::Pull)
    }

    /// Two workers; the prefill worker writes the KV blocks while the decode worker waits.
    pub fn push(prefill: Row, decode: Row) -> Self {
        Self::split(prefill, DecodeChoice::Now(decode), TransferMode::Push)
    }

    /// Do not serve the request. `status` is an HTTP status of 400..=599.
    pub fn reject(status: u16, message: impl Into<String>) -> Self {
        Self::Reject(Rejection { status, retry_after_ms: None, message: message.into() })
    }

    /// Says why, for people: it is shown in decision records. Does nothing to answers that are not routes.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        if let Self::Route(route) = &mut self {
            route.reason = Some(reason.into());
        }
        self
    }

    /// Adds an engine knob. Hosts leave out and count those that they do not document; none is documented yet. Does nothing to answers that are not routes.
    #[must_use]
    pub fn hint(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        if let Self::Route(route) = &mut self {
            route.hints.push((key.into(), value.into()));
        }
        self
    }

    /// Fetch held KV blocks only if that saves at least so many tokens. Does nothing to answers that are not
    /// disaggregated.
    #[must_use]
    pub fn recompute_below(mut self, tokens: u32) -> Self {
        if let Self::Route(Route { placement: Placement::Disaggregated(split), .. }) = &mut self {
            split.kv_recompute_threshold_tokens = tokens;
        }
        self
    }

    /// When to try again. Does nothing to answers that are not rejections.
    #[must_use]
    pub fn retry_after_ms(mut self, ms: u32) -> Self {
        if let Self::Reject(rejection) = &mut self {
            rejection.retry_after_ms = Some(ms);
        }
        self
    }

    fn split(prefill: Row, decode: DecodeChoice, transfer: TransferMode) -> Self {
        Self::placed(Placement::Disaggregated(Disaggregated {
            prefill,
            decode,
            transfer,
            kv_recompute_threshold_tokens: DEFAULT_KV_RECOMPUTE_THRESHOLD_TOKENS,
        }))
    }

    fn placed(placement: Placement) -> Self {
        Self::Route(Route { placement, reason: None, hints: Vec::new() })
    }
}

impl Retention {
    /// Keep the KV blocks for so long.
    pub fn keep_ms(ttl_ms: u32) -> Self {
        Self::Keep(Keep { ttl_ms, heartbeat_ms: None })
    }

    /// Keep the KV blocks on a lease: `heartbeat` is asked each interval.
    pub fn lease_ms(ttl_ms: u32, heartbeat_ms: u32) -> Self {
        Self::Keep(Keep { ttl_ms, heartbeat_ms: Some(heartbeat_ms) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modifiers_touch_only_their_kind() {
        let untouched =
            Verdict::UseDefault.because("why").hint("k", "v").recompute_below(1).retry_after_ms(1);
        assert!(untouched == Verdict::UseDefault);

        let Verdict::Route(route) = Verdict::pull(1, 2).because("why").recompute_below(7) else {
            panic!("a route")
        };
        assert_eq!(route.reason.as_deref(), Some("why"));
        let Placement::Disaggregated(split) = route.placement else { panic!("disaggregated") };
        assert_eq!(split.kv_recompute_threshold_tokens, 7);

        let Verdict::Reject(rejection) = Verdict::reject(503, "full").retry_after_ms(250) else {
            panic!("a rejection")
        };
        assert_eq!((rejection.status, rejection.retry_after_ms), (503, Some(250)));
    }
}
