//! What a probe can show of the way back: a decode engine keeps its turn, and the next turn's prefill fetches it.

use std::fmt;

use serde::Serialize;

use super::{Counters, Sure, Verdict, rise};

/// Why no turn comes back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum NotFetched {
    /// Decode fetched the prompt's KV, and told of no turn that it keeps.
    NotKept,
    /// It told of one that no prompt can be proven to continue.
    Unusable {
        /// What is wrong with it.
        what: String,
    },
    /// Prefill was offered it, and computed the prompt.
    Computed {
        /// Tokens that could have come.
        offered_tokens: u32,
        /// Tokens that came.
        came_tokens: u32,
    },
    /// Prefill was offered it, and answered with an error.
    Failed {
        /// HTTP status.
        status: u16,
        /// The engine's words.
        message: String,
    },
    /// Prefill was offered it, had nothing else to wait for, and gave no answer.
    Silent {
        /// How long it was waited for.
        waited_ms: u32,
    },
}

/// Why nothing can be said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum BackDoubt {
    /// Prefill neither says nor counts what came from elsewhere.
    NoMetric,
    /// Counters began anew between the two looks: the engine was started again.
    CountersReset,
    /// Prefill cannot be reached.
    Unreachable {
        /// What was met.
        error: String,
    },
    /// Prefill gave no answer in time, which for want of a place may be right.
    NoAnswer {
        /// How long it was waited for.
        waited_ms: u32,
    },
    /// Prefill answered 200 with what is no answer.
    NoSense,
}

/// What a probe of one pair showed of the way from decode back to prefill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome", content = "detail")]
pub enum Back {
    /// Prefill fetched what decode kept.
    Fetched {
        /// Tokens offered.
        tokens: u32,
        /// Prefill leg, from dispatch to the end of its answer.
        took_ms: u32,
        /// How sure it is.
        sure: Sure,
    },
    /// It did not.
    NotFetched(NotFetched),
    /// It is not known.
    Unproven(BackDoubt),
}

/// A prefill leg that was offered a turn, and was answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offered {
    /// Tokens of the turn that its prompt begins with. No cache of the prefill engine can have them.
    pub tokens: u32,
    /// Tokens a KV block.
    pub block_tokens: u32,
    /// The leg, from dispatch to the end of its answer.
    pub took_ms: u32,
    /// Tokens that the engine says it did not compute, if it says so.
    pub told_tokens: Option<u32>,
    /// The prefill engine's, before the leg.
    pub before: Counters,
    /// The prefill engine's, after it.
    pub after: Counters,
}

/// What the answer and the counters prove. All that is said must fit: an engine whose cache does not go by salts says
/// that it has what it did not fetch.
pub fn judge_back(offered: &Offered) -> Back {
    let counted = rise(offered.before.tokens, offered.after.tokens);
    if counted.is_some_and(|rise| rise < 0.0) {
        return Back::Unproven(BackDoubt::CountersReset);
    }
    // An engine may compute the rest of the last block itself.
    let least_tokens = least_tokens(offered.tokens, offered.block_tokens);
    let counted = counted.map(|rise| rise as u32);
    let came = match (offered.told_tokens, counted) {
        (None, None) => return Back::Unproven(BackDoubt::NoMetric),
        (told, counted) => told.unwrap_or(u32::MAX).min(counted.unwrap_or(u32::MAX)),
    };
    if came < least_tokens {
        let offered_tokens = offered.tokens;
        return Back::NotFetched(NotFetched::Computed { offered_tokens, came_tokens: came });
    }
    let others_too = offered.told_tokens.is_none() && came > offered.tokens;
    let sure = if others_too { Sure::OthersToo } else { Sure::Exactly };
    Back::Fetched { tokens: offered.tokens, took_ms: offered.took_ms, sure }
}

/// Tokens that come at the least where so many are fetched.
pub fn least_tokens(tokens: u32, block_tokens: u32) -> u32 {
    tokens.saturating_sub(block_tokens).max(1)
}

impl Back {
    /// In one word.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Fetched { .. } => Verdict::Moved,
            Self::NotFetched(_) => Verdict::NotMoved,
            Self::Unproven(_) => Verdict::Unproven,
        }
    }

    /// Whether prefill hangs on what it is offered. Blocks that it has set aside for it stay so as long as it lives, so
    /// the same start of it is not to be offered a turn again.
    pub fn hangs(&self) -> bool {
        matches!(self, Self::NotFetched(NotFetched::Silent { .. }))
    }

    /// What requests suffer where turns do not come back; `None` where they do or are not known to.
    pub fn harm(&self) -> Option<&'static str> {
        match self {
            Self::NotFetched(NotFetched::Failed { .. }) => {
                Some("Next turns cost a prefill leg that fails, and are computed")
            }
            Self::NotFetched(NotFetched::Silent { .. }) => {
                Some("No turn is offered to this prefill worker: next turns are computed")
            }
            Self::NotFetched(_) => Some("Answers are right; next turns are computed"),
            Self::Fetched { .. } | Self::Unproven(_) => None,
        }
    }

    /// What to do about it; `None` where all is well.
    pub fn cure(&self) -> Option<&'static str> {
        Some(match self {
            Self::Fetched { .. } => return None,
            Self::NotFetched(NotFetched::NotKept) => {
                "start the decode engine with kv_connector_extra_config {\"bidirectional_kv_xfer\": true} (vLLM 0.21 or \
                 later), or set mode = \"pull\""
            }
            Self::NotFetched(NotFetched::Unusable { .. }) => {
                "check the decode engine's version, and that its model has one group of KV blocks; else set mode = \"pull\""
            }
            Self::NotFetched(NotFetched::Computed { .. }) => {
                "start the prefill engine with kv_connector_extra_config {\"bidirectional_kv_xfer\": true, \
                 \"kv_recompute_threshold\": 0}: what is less than its threshold it computes"
            }
            Self::NotFetched(NotFetched::Failed { .. }) => {
                "start the decode engine with a decoder_kv_blocks_ttl that is the pool's decoder_ttl_ms and well over the 5 s \
                 before its end in which prefill engines decline to read; read the prefill engine's log"
            }
            Self::NotFetched(NotFetched::Silent { .. }) => {
                "start the prefill engine anew with kv_connector_extra_config {\"bidirectional_kv_xfer\": true}: vLLM \
                 without it waits for KV that it never asks for, and its blocks stay; and let it reach the decode engine's side \
                 channel (VLLM_NIXL_SIDE_CHANNEL_HOST, VLLM_NIXL_SIDE_CHANNEL_PORT and the ports above it)"
            }
            Self::Unproven(BackDoubt::NoMetric) => {
                "use vLLM 0.32 or later, whose counters tell, without --disable-log-stats"
            }
            Self::Unproven(BackDoubt::CountersReset) => "probe again once the engine stays up",
            Self::Unproven(BackDoubt::Unreachable { .. }) => "start the engine, or correct its url",
            Self::Unproven(BackDoubt::NoAnswer { .. }) => {
                "probe again when the engine is less busy; look into its log"
            }
            Self::Unproven(BackDoubt::NoSense) => "see whether this url is an engine's",
        })
    }
}

impl fmt::Display for Back {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetched { tokens, took_ms, sure } => {
                write!(out, "fetched {tokens} tokens in {took_ms} ms")?;
                match sure {
                    Sure::OthersToo => write!(out, " (others' turns were fetched at the same time)"),
                    Sure::Exactly | Sure::BytesAlone => Ok(()),
                }
            }
            Self::NotFetched(why) => why.fmt(out),
            Self::Unproven(why) => why.fmt(out),
        }
    }
}

impl fmt::Display for NotFetched {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotKept => write!(out, "decode told of no turn that it keeps"),
            Self::Unusable { what } => {
                write!(out, "what decode told of the turn that it keeps is unusable: {what}")
            }
            Self::Computed { offered_tokens, came_tokens } => {
                write!(
                    out,
                    "prefill computed the prompt itself: {came_tokens} of {offered_tokens} tokens came from decode"
                )
            }
            Self::Failed { status, message } => {
                write!(out, "prefill, offered a turn that decode keeps, answered {status}: {message}")
            }
            Self::Silent { waited_ms } => {
                write!(out, "prefill, offered a turn that decode keeps, gave no answer in {waited_ms} ms")
            }
        }
    }
}

impl fmt::Display for BackDoubt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMetric => write!(out, "the prefill engine neither says nor counts what it fetched"),
            Self::CountersReset => write!(out, "the prefill engine was started again meanwhile"),
            Self::Unreachable { error } => write!(out, "prefill cannot be reached: {error}"),
            Self::NoAnswer { waited_ms } => write!(out, "prefill gave no answer in {waited_ms} ms"),
            Self::NoSense => write!(out, "prefill answered 200 with what is no answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_back_is_judged_by_all_that_is_said() {
        let computed =
            |came_tokens| Back::NotFetched(NotFetched::Computed { offered_tokens: 96, came_tokens });
        let fetched = |sure| Back::Fetched { tokens: 96, took_ms: 7, sure };
        for (told, before, after, expected) in [
            (Some(96), Some(5.0), Some(101.0), fetched(Sure::Exactly)),
            (None, Some(5.0), Some(101.0), fetched(Sure::Exactly)),
            (Some(96), None, None, fetched(Sure::Exactly)),
            (None, Some(5.0), Some(85.0), fetched(Sure::Exactly)),
            (None, Some(5.0), Some(84.0), computed(79)),
            (Some(0), Some(5.0), Some(5.0), computed(0)),
            // Others' turns came at the same time.
            (None, Some(0.0), Some(400.0), fetched(Sure::OthersToo)),
            (Some(96), Some(0.0), Some(400.0), fetched(Sure::Exactly)),
            (Some(0), Some(0.0), Some(400.0), computed(0)),
            // Of a cache that should not have had it.
            (Some(96), Some(5.0), Some(5.0), computed(0)),
            (None, None, None, Back::Unproven(BackDoubt::NoMetric)),
            (Some(96), Some(5.0), Some(1.0), Back::Unproven(BackDoubt::CountersReset)),
            (Some(96), Some(5.0), None, Back::Unproven(BackDoubt::CountersReset)),
        ] {
            let counters = |tokens| Counters { tokens, bytes: None };
            let offered = Offered {
                tokens: 96,
                block_tokens: 16,
                took_ms: 7,
                told_tokens: told,
                before: counters(before),
                after: counters(after),
            };
            assert_eq!(judge_back(&offered), expected, "{told:?} {before:?} -> {after:?}");
        }
    }

    #[test]
    fn what_is_wrong_has_a_cure() {
        let fetched = Back::Fetched { tokens: 96, took_ms: 7, sure: Sure::Exactly };
        assert_eq!((fetched.to_string().as_str(), fetched.cure()), ("fetched 96 tokens in 7 ms", None));
        let not_kept = Back::NotFetched(NotFetched::NotKept);
        assert!(not_kept.cure().is_some_and(|cure| cure.contains("bidirectional_kv_xfer")));
        assert!(!not_kept.hangs() && Back::NotFetched(NotFetched::Silent { waited_ms: 1 }).hangs());
    }
}
