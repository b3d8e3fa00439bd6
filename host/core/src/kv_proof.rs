//! Whether KV really moves between two workers: what is concluded from a probe pair, and when to probe.
//!
//! A transfer that does not happen is invisible in answers: decode computes the prompt again, right and slow. Only the
//! decode engine's own counters tell. The probe's prompt is in no cache, so all its tokens must come over the wire. The same
//! holds of the way back, on which a turn that a decode engine keeps comes to the next one's prefill.

mod back;
mod outcome;
mod prompt;

pub use back::{Back, BackDoubt, NotFetched, Offered, judge_back, least_tokens};
pub use outcome::{Doubt, NotMoved, Outcome, Part, Sure, Verdict};
pub use prompt::prompt;

/// Pairs probed of a pool whose every pair is probed: 4 x 4 workers.
pub const PAIRS_AT_MOST: usize = 16;

/// After a probe that did not show that KV moves, until the next: a link that was mended is noticed within a minute,
/// and a probe a minute costs an engine nothing.
pub const AGAIN_AFTER_MS: u64 = 60_000;

/// What an engine counted so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counters {
    /// Prompt tokens that came as KV from another engine; `None` when it has no such counter.
    pub tokens: Option<f64>,
    /// KV bytes that it read from other engines; `None` when it has no such counter.
    pub bytes: Option<f64>,
}

/// A probe whose both legs were answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answered {
    /// Tokens of its prompt, as an engine counted them.
    pub prompt_tokens: u32,
    /// Tokens a KV block.
    pub block_tokens: u32,
    /// Decode leg, from dispatch to the end of its answer.
    pub took_ms: u32,
    /// The decode engine's, before the decode leg.
    pub before: Counters,
    /// The decode engine's, after it.
    pub after: Counters,
}

/// What the counters prove.
pub fn judge(probe: &Answered) -> Outcome {
    let tokens = rise(probe.before.tokens, probe.after.tokens);
    let bytes = rise(probe.before.bytes, probe.after.bytes);
    if tokens.is_some_and(|rise| rise < 0.0) || bytes.is_some_and(|rise| rise < 0.0) {
        return Outcome::Unproven(Doubt::CountersReset);
    }
    let wanted = probe.prompt_tokens;
    let moved = |sure| Outcome::Moved {
        tokens: wanted,
        bytes: bytes.map(|bytes| bytes as u64),
        took_ms: probe.took_ms,
        sure,
    };
    // An engine may compute the rest of the last block itself.
    let least = f64::from(least_tokens(wanted, probe.block_tokens));
    match (tokens, bytes) {
        (Some(came), Some(0.0)) if came >= least => Outcome::Unproven(Doubt::NoBytes { tokens: came as u32 }),
        (Some(came), _) if came > f64::from(wanted) => moved(Sure::OthersToo),
        (Some(came), _) if came >= least => moved(Sure::Exactly),
        (Some(came), _) => {
            let came_tokens = came as u32;
            Outcome::NotMoved(NotMoved::Recomputed { wanted_tokens: wanted, came_tokens })
        }
        (None, Some(bytes)) if bytes > 0.0 => moved(Sure::BytesAlone),
        (None, _) => Outcome::Unproven(Doubt::NoMetric),
    }
}

/// A counter that was not there yet began at 0; one that was there and is not any more began anew.
fn rise(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    match (before, after) {
        (None, None) => None,
        (before, after) => Some(after.unwrap_or(0.0) - before.unwrap_or(0.0)),
    }
}

/// Pairs (prefill, decode), by position, to probe of so many workers: all where they are few; otherwise each prefill
/// with some decode, and each decode with some prefill.
pub fn pairs(prefills: usize, decodes: usize) -> Vec<(usize, usize)> {
    if prefills == 0 || decodes == 0 {
        return Vec::new();
    }
    if prefills.saturating_mul(decodes) <= PAIRS_AT_MOST {
        return (0..prefills).flat_map(|prefill| (0..decodes).map(move |decode| (prefill, decode))).collect();
    }
    (0..prefills.max(decodes)).map(|index| (index % prefills, index % decodes)).collect()
}

/// What the last probe of a pair said, and of which engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Last {
    /// What it said.
    pub verdict: Verdict,
    /// When.
    pub at_ms: u64,
    /// Which starts of the two engines it saw.
    pub incarnations: (u32, u32),
}

/// Whether a pair is to be probed now.
pub fn is_due(last: Option<&Last>, incarnations: (u32, u32), now_ms: u64) -> bool {
    last.is_none_or(|last| {
        let again = now_ms.saturating_sub(last.at_ms) >= AGAIN_AFTER_MS;
        last.incarnations != incarnations || (last.verdict != Verdict::Moved && again)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn counters(tokens: Option<f64>, bytes: Option<f64>) -> Counters {
        Counters { tokens, bytes }
    }

    #[test]
    fn counters_are_judged() {
        let (some, none) = (Some::<f64>, None::<f64>);
        let recomputed =
            |came_tokens| Outcome::NotMoved(NotMoved::Recomputed { wanted_tokens: 100, came_tokens });
        let moved = |bytes, sure| Outcome::Moved { tokens: 100, bytes, took_ms: 7, sure };
        for (before, after, expected) in [
            ((some(5.0), some(10.0)), (some(105.0), some(74.0)), moved(Some(64), Sure::Exactly)),
            ((some(5.0), none), (some(89.0), none), moved(None, Sure::Exactly)),
            ((some(5.0), none), (some(88.0), none), recomputed(83)),
            ((some(5.0), none), (some(5.0), none), recomputed(0)),
            ((some(5.0), some(1.0)), (some(5.0), some(1.0)), recomputed(0)),
            ((some(0.0), some(0.0)), (some(101.0), some(9.0)), moved(Some(9), Sure::OthersToo)),
            // Counters that come with the first transfer.
            ((none, none), (some(100.0), some(9.0)), moved(Some(9), Sure::Exactly)),
            ((none, some(0.0)), (none, some(9.0)), moved(Some(9), Sure::BytesAlone)),
            ((none, some(3.0)), (none, some(3.0)), Outcome::Unproven(Doubt::NoMetric)),
            ((none, none), (none, none), Outcome::Unproven(Doubt::NoMetric)),
            (
                (some(0.0), some(3.0)),
                (some(100.0), some(3.0)),
                Outcome::Unproven(Doubt::NoBytes { tokens: 100 }),
            ),
            ((some(50.0), none), (some(20.0), none), Outcome::Unproven(Doubt::CountersReset)),
            ((some(50.0), none), (none, none), Outcome::Unproven(Doubt::CountersReset)),
        ] {
            let probe = Answered {
                prompt_tokens: 100,
                block_tokens: 16,
                took_ms: 7,
                before: counters(before.0, before.1),
                after: counters(after.0, after.1),
            };
            assert_eq!(judge(&probe), expected, "{before:?} -> {after:?}");
        }
    }

    #[test]
    fn a_prompt_below_one_block_must_move_too() {
        let idle = counters(Some(0.0), None);
        let probe = Answered { prompt_tokens: 9, block_tokens: 16, took_ms: 1, before: idle, after: idle };
        assert_eq!(judge(&probe).verdict(), Verdict::NotMoved);
    }

    #[test]
    fn every_worker_is_in_some_pair() {
        for prefills in 1..9 {
            for decodes in 1..9 {
                let pairs = pairs(prefills, decodes);
                let distinct: BTreeSet<_> = pairs.iter().collect();
                assert_eq!(distinct.len(), pairs.len());
                let (left, right): (BTreeSet<_>, BTreeSet<_>) = pairs.iter().copied().unzip();
                assert_eq!((left.len(), right.len()), (prefills, decodes), "{prefills} x {decodes}");
                assert!(pairs.len() <= PAIRS_AT_MOST.max(prefills).max(decodes));
            }
        }
        assert_eq!(pairs(0, 3), []);
        assert_eq!(pairs(2, 2).len(), 4);
    }

    #[test]
    fn a_pair_is_probed_when_there_is_news() {
        let last = |verdict| Last { verdict, at_ms: 1_000, incarnations: (1, 1) };
        for (last, incarnations, now_ms, due) in [
            (None, (1, 1), 0, true),
            (Some(last(Verdict::Moved)), (1, 1), 1 << 40, false),
            (Some(last(Verdict::Moved)), (1, 2), 1_001, true),
            (Some(last(Verdict::Moved)), (2, 1), 1_001, true),
            (Some(last(Verdict::NotMoved)), (1, 1), 60_999, false),
            (Some(last(Verdict::NotMoved)), (1, 1), 61_000, true),
            (Some(last(Verdict::Unproven)), (1, 1), 61_000, true),
        ] {
            assert_eq!(
                is_due(last.as_ref(), incarnations, now_ms),
                due,
                "{last:?} {incarnations:?} {now_ms}"
            );
        }
    }
}
