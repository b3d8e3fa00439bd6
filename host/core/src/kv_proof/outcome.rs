//! What a probe can show, in words that say what to do.

use std::fmt;

use serde::Serialize;

/// How far the configured KV bytes a token may be from those seen, in percent: engines round and pad blocks.
const KV_BYTES_OFF_PERCENT: u64 = 25;

/// How sure it is that KV moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sure {
    /// The counters rose by this probe and nothing else.
    Exactly,
    /// They rose by more: others' prompts moved at the same time, and may stand for this one.
    OthersToo,
    /// Bytes moved; how many tokens they are is not counted.
    BytesAlone,
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The prefill worker.
    Prefill,
    /// The decode worker.
    Decode,
}

impl Part {
    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Why nothing moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum NotMoved {
    /// The prefill answer had no handle.
    NoHandle,
    /// It had one that would hang or end a decode engine.
    HandleUnusable {
        /// What is wrong with it.
        what: String,
    },
    /// Decode answered, and computed the prompt itself.
    Recomputed {
        /// Tokens that should have come.
        wanted_tokens: u32,
        /// Tokens that came.
        came_tokens: u32,
    },
    /// Decode answered with an error.
    DecodeFailed {
        /// HTTP status.
        status: u16,
        /// The engine's words.
        message: String,
    },
    /// Decode had the handle, nothing else to wait for, and gave no answer.
    DecodeSilent {
        /// How long it was waited for.
        waited_ms: u32,
    },
}

/// Why nothing can be said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Doubt {
    /// Decode has no counter that tells.
    NoMetric,
    /// Tokens are counted as moved, but no byte is.
    NoBytes {
        /// Tokens so counted.
        tokens: u32,
    },
    /// Counters began anew between the two looks: the engine was started again.
    CountersReset,
    /// A worker cannot be reached.
    Unreachable {
        /// Which.
        part: Part,
        /// What was met.
        error: String,
    },
    /// A worker refused the probe, or failed before anything could move.
    Refused {
        /// Which.
        part: Part,
        /// HTTP status.
        status: u16,
        /// The engine's words.
        message: String,
    },
    /// A worker gave no answer in time, which for want of a place may be right.
    NoAnswer {
        /// Which.
        part: Part,
        /// How long it was waited for.
        waited_ms: u32,
    },
    /// A worker answered what is no answer.
    NoSense {
        /// Which.
        part: Part,
        /// What it was.
        what: String,
    },
}

/// What a probe of one pair showed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome", content = "detail")]
pub enum Outcome {
    /// KV moved.
    Moved {
        /// Prompt tokens of the probe.
        tokens: u32,
        /// KV bytes that moved meanwhile, where they are counted.
        bytes: Option<u64>,
        /// Decode leg, from dispatch to the end of its answer.
        took_ms: u32,
        /// How sure it is.
        sure: Sure,
    },
    /// It did not.
    NotMoved(NotMoved),
    /// It is not known.
    Unproven(Doubt),
}

/// An outcome in one word, for a pair or for a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// KV moves.
    Moved,
    /// It does not, between some pair at least.
    NotMoved,
    /// Not known, or not yet.
    Unproven,
}

impl Verdict {
    /// For messages and labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::NotMoved => "not-moved",
            Self::Unproven => "unproven",
        }
    }

    /// As a gauge: 1, 0, and -1 for unknown.
    pub fn figure(self) -> i64 {
        match self {
            Self::Moved => 1,
            Self::NotMoved => 0,
            Self::Unproven => -1,
        }
    }

    /// A pool's, from those of its pairs.
    pub fn of_pairs(pairs: impl Iterator<Item = Self>) -> Self {
        pairs
            .reduce(|one, other| match (one, other) {
                (Self::NotMoved, _) | (_, Self::NotMoved) => Self::NotMoved,
                (Self::Moved, Self::Moved) => Self::Moved,
                _ => Self::Unproven,
            })
            .unwrap_or(Self::Unproven)
    }
}

impl Outcome {
    /// In one word.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Moved { .. } => Verdict::Moved,
            Self::NotMoved(_) => Verdict::NotMoved,
            Self::Unproven(_) => Verdict::Unproven,
        }
    }

    /// What requests suffer where KV does not move; `None` where it moves or is not known to.
    pub fn harm(&self) -> Option<&'static str> {
        match self {
            Self::NotMoved(NotMoved::DecodeFailed { .. } | NotMoved::DecodeSilent { .. }) => {
                Some("Requests split over them fail or wait")
            }
            Self::NotMoved(_) => Some("Answers are right, only slow"),
            Self::Moved { .. } | Self::Unproven(_) => None,
        }
    }

    /// KV bytes a token as the transfer shows them, where they are far from the `configured` ones. Engines move whole
    /// blocks; a transfer that may be others' too shows nothing.
    pub fn other_kv_bytes_per_token(&self, block_tokens: u32, configured: u32) -> Option<u64> {
        let Self::Moved { tokens, bytes: Some(bytes), sure: Sure::Exactly, .. } = self else { return None };
        let moved_tokens = u64::from(*tokens).next_multiple_of(u64::from(block_tokens.max(1)));
        let seen = bytes.checked_div(moved_tokens).filter(|seen| *seen > 0)?;
        let off_by = seen.abs_diff(u64::from(configured));
        (off_by.saturating_mul(100) > u64::from(configured) * KV_BYTES_OFF_PERCENT).then_some(seen)
    }

    /// What to do about it; `None` where all is well.
    pub fn cure(&self) -> Option<&'static str> {
        let both = "start both engines with the same KV connector (--kv-transfer-config, NixlConnector)";
        Some(match self {
            Self::Moved { .. } => return None,
            Self::NotMoved(NotMoved::NoHandle) => {
                "start the prefill engine with a KV connector: --kv-transfer-config \
                 '{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_producer\"}'"
            }
            Self::NotMoved(NotMoved::HandleUnusable { .. }) => {
                "check the prefill engine's version and its --kv-transfer-config"
            }
            Self::NotMoved(NotMoved::Recomputed { .. }) => {
                "start the decode engine with a KV connector (--kv-transfer-config, kv_role kv_consumer), and look for \
                 failed transfers in its log"
            }
            Self::NotMoved(NotMoved::DecodeFailed { .. }) => {
                "read the decode engine's log: block size, tensor parallelism and connector must fit the prefill engine's"
            }
            Self::NotMoved(NotMoved::DecodeSilent { .. }) => {
                "let the decode engine reach the prefill engine's side channel: VLLM_NIXL_SIDE_CHANNEL_HOST must be an \
                 address that it can connect to, and VLLM_NIXL_SIDE_CHANNEL_PORT and the ports above it open"
            }
            Self::Unproven(Doubt::NoMetric) => {
                "use vLLM 0.32 or later, whose counters tell, without --disable-log-stats"
            }
            Self::Unproven(Doubt::NoBytes { .. }) => both,
            Self::Unproven(Doubt::CountersReset) => "probe again once the engine stays up",
            Self::Unproven(Doubt::Unreachable { .. }) => "start the engine, or correct its url",
            Self::Unproven(Doubt::Refused { status: 500.., .. }) => {
                "read the engine's log; if plain requests are well, block size, tensor parallelism and connector of both \
                 engines may not fit"
            }
            Self::Unproven(Doubt::Refused { .. }) => {
                "see whether the engine serves this model, and asks for an API key"
            }
            Self::Unproven(Doubt::NoAnswer { .. }) => {
                "probe again when the engine is less busy; look into its log"
            }
            Self::Unproven(Doubt::NoSense { .. }) => "see whether this url is an engine's",
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved { tokens, bytes, took_ms, sure } => {
                write!(out, "moved {tokens} tokens")?;
                if let Some(bytes) = bytes {
                    write!(out, ", {bytes} bytes")?;
                }
                write!(out, " in {took_ms} ms")?;
                match sure {
                    Sure::Exactly => Ok(()),
                    Sure::OthersToo => write!(out, " (others' KV moved at the same time)"),
                    Sure::BytesAlone => write!(out, " (by bytes alone)"),
                }
            }
            Self::NotMoved(why) => why.fmt(out),
            Self::Unproven(why) => why.fmt(out),
        }
    }
}

impl fmt::Display for NotMoved {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHandle => write!(out, "the prefill answer has no KV handle"),
            Self::HandleUnusable { what } => {
                write!(out, "the prefill answer's KV handle is unusable: {what}")
            }
            Self::Recomputed { wanted_tokens, came_tokens } => write!(
                out,
                "decode computed the prompt itself: {came_tokens} of {wanted_tokens} tokens came from prefill"
            ),
            Self::DecodeFailed { status, message } => {
                write!(out, "decode, given a handle, answered {status}: {message}")
            }
            Self::DecodeSilent { waited_ms } => {
                write!(out, "decode, given a handle, gave no answer in {waited_ms} ms")
            }
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMetric => write!(out, "the decode engine has no counter that tells"),
            Self::NoBytes { tokens } => {
                write!(out, "the decode engine counts {tokens} tokens as moved, but no bytes")
            }
            Self::CountersReset => write!(out, "the decode engine was started again meanwhile"),
            Self::Unreachable { part, error } => write!(out, "{} cannot be reached: {error}", part.name()),
            Self::Refused { part, status, message } => {
                write!(out, "{} answered {status}: {message}", part.name())
            }
            Self::NoAnswer { part, waited_ms } => {
                write!(out, "{} gave no answer in {waited_ms} ms", part.name())
            }
            Self::NoSense { part, what } => write!(out, "{} answered {what}", part.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pair_that_does_not_move_spoils_a_pool() {
        use Verdict::{Moved, NotMoved, Unproven};
        for (pairs, expected) in [
            (&[][..], Unproven),
            (&[Moved, Moved], Moved),
            (&[Moved, Unproven], Unproven),
            (&[Unproven, NotMoved, Moved], NotMoved),
        ] {
            assert_eq!(Verdict::of_pairs(pairs.iter().copied()), expected);
        }
    }

    #[test]
    fn kv_bytes_a_token_are_compared_over_whole_blocks() {
        for (tokens, bytes, sure, configured, expected) in [
            (40, Some(48 * 64), Sure::Exactly, 64, None),
            (40, Some(48 * 64), Sure::Exactly, 131_072, Some(64)),
            (48, Some(48 * 80), Sure::Exactly, 64, None),
            (48, Some(48 * 81), Sure::Exactly, 64, Some(81)),
            (48, Some(48 * 47), Sure::Exactly, 64, Some(47)),
            (48, Some(48 * 999), Sure::OthersToo, 64, None),
            (48, Some(0), Sure::Exactly, 64, None),
            (48, None, Sure::Exactly, 64, None),
        ] {
            let moved = Outcome::Moved { tokens, bytes, took_ms: 1, sure };
            assert_eq!(moved.other_kv_bytes_per_token(16, configured), expected, "{moved:?} {configured}");
        }
    }

    #[test]
    fn what_is_wrong_has_a_cure() {
        let moved = Outcome::Moved { tokens: 48, bytes: Some(3_072), took_ms: 9, sure: Sure::Exactly };
        assert_eq!((moved.to_string().as_str(), moved.cure()), ("moved 48 tokens, 3072 bytes in 9 ms", None));
        let silent = Outcome::NotMoved(NotMoved::DecodeSilent { waited_ms: 10_000 });
        assert!(silent.cure().is_some_and(|cure| cure.contains("SIDE_CHANNEL")));
    }
}
