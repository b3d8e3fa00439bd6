//! What is known of whether KV moves between a pool's workers, as status, `/ready` and requests ask for it.

use serde::Serialize;
use sluice_core::kv_proof::{Back, Verdict};

/// What is known of whether a pool's KV moves.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KvState {
    /// Of the pool, from prefill to decode.
    pub verdict: Verdict,
    /// Of the pool, from decode back to prefill; `None` where it is no bidirectional one.
    pub back: Option<Verdict>,
    /// Of each pair that was probed.
    pub pairs: Vec<PairState>,
}

/// What is known of a pair.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairState {
    /// Name of the prefill worker.
    pub prefill: String,
    /// Name of the decode worker.
    pub decode: String,
    /// In one word.
    pub verdict: Verdict,
    /// What the last probe showed.
    pub what: String,
    /// What to do about it.
    pub cure: Option<&'static str>,
    /// What requests suffer meanwhile.
    pub harm: Option<&'static str>,
    /// The same of the way back; `None` where the pool is no bidirectional one.
    pub back: Option<BackState>,
}

/// What is known of the way from decode back to prefill.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BackState {
    /// In one word.
    pub verdict: Verdict,
    /// What the last probe showed.
    pub what: String,
    /// What to do about it.
    pub cure: Option<&'static str>,
    /// What requests suffer meanwhile.
    pub harm: Option<&'static str>,
    /// Whether prefill hangs on turns that decode keeps, so that none is to be offered to it.
    pub hangs: bool,
}

impl BackState {
    /// As the last probe showed it, if there was one.
    pub fn of(back: Option<&Back>) -> Self {
        Self {
            verdict: back.map_or(Verdict::Unproven, Back::verdict),
            what: back.map_or_else(|| "not probed yet".to_owned(), Back::to_string),
            cure: back.and_then(Back::cure),
            harm: back.and_then(Back::harm),
            hangs: back.is_some_and(Back::hangs),
        }
    }
}

impl Default for KvState {
    fn default() -> Self {
        Self { verdict: Verdict::Unproven, back: None, pairs: Vec::new() }
    }
}

impl KvState {
    /// What is amiss, for people.
    pub fn note(&self) -> Option<String> {
        let pair = self.pairs.iter().find(|pair| pair.verdict == Verdict::NotMoved)?;
        Some(format!(
            "KV does not move from {:?} to {:?}: {}. {}",
            pair.prefill,
            pair.decode,
            pair.what,
            pair.harm.unwrap_or_default()
        ))
    }

    /// What is amiss on the way back. Requests are served all the same, so it is for operators alone.
    pub fn back_note(&self) -> Option<String> {
        let backs = self.pairs.iter().filter_map(|pair| Some((pair, pair.back.as_ref()?)));
        let (pair, back) = backs.into_iter().find(|(_, back)| back.verdict == Verdict::NotMoved)?;
        Some(format!(
            "kept turns do not come from {:?} back to {:?}: {}. {}",
            pair.decode,
            pair.prefill,
            back.what,
            back.harm.unwrap_or_default()
        ))
    }

    /// Whether this prefill worker hangs on turns that this decode worker keeps.
    pub fn hangs_on(&self, prefill: &str, decode: &str) -> bool {
        let mut pairs = self.pairs.iter().filter(|pair| pair.prefill == prefill && pair.decode == decode);
        pairs.any(|pair| pair.back.as_ref().is_some_and(|back| back.hangs))
    }
}
