//! What counts are kept by. Label values are these names, configured names and policies' names: never a client's words.

use sluice_core::failure::Failure;
use sluice_core::verdict::TransferMode;

use crate::http::error::Blame;
use crate::passthrough::paths::{PATHS, Path};
use crate::request::Endpoint;

/// A label whose values are known when the host is built.
pub trait Label: Copy + 'static {
    /// Every value, each at the place that [`Label::index`] says.
    const ALL: &'static [Self];

    /// The value in metrics, logs and spans.
    fn name(self) -> &'static str;

    /// Its place in [`Label::ALL`].
    fn index(self) -> usize;
}

macro_rules! labels {
    ($($(#[$doc:meta])* $label:ident { $($(#[$about:meta])* $value:ident = $name:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $label { $($(#[$about])* $value,)* }

        impl Label for $label {
            const ALL: &'static [Self] = &[$(Self::$value,)*];

            fn name(self) -> &'static str {
                match self { $(Self::$value => $name,)* }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    )*};
}

labels! {
    /// How a request ended.
    Outcome {
        /// A whole answer.
        Ok = "ok",
        /// The client left.
        Cancelled = "cancelled",
        /// The request could not be served as it was.
        ClientError = "client_error",
        /// The policy refused it.
        Rejected = "rejected",
        /// A prefill worker failed it.
        PrefillFailed = "prefill_failed",
        /// A decode or unified worker failed it.
        DecodeFailed = "decode_failed",
        /// KV did not get from prefill to decode.
        TransferFailed = "transfer_failed",
        /// This host could not serve it.
        HostError = "host_error",
        /// The host was full, and this one was turned away.
        Shed = "shed",
    }

    /// A request to one worker.
    Leg {
        /// One token and a KV handle.
        Prefill = "prefill",
        /// The answer; also the one leg of a unified request.
        Decode = "decode",
        /// A request to another path, whole.
        Passthrough = "passthrough",
    }

    /// Why a request is served otherwise than decided.
    Fallback {
        /// The configured policy is not there.
        PolicyNotLoaded = "policy_not_loaded",
        /// It failed too often: its last good version decides, or else the built-in default.
        PolicyPutAside = "policy_put_aside",
        /// It failed.
        PolicyFault = "policy_fault",
        /// Its late hook failed.
        BindDecodeFault = "bind_decode_fault",
        /// `retain` failed: the turn's KV is not kept.
        RetainFault = "retain_fault",
        /// `heartbeat` failed: the turn's KV is let go.
        HeartbeatFault = "heartbeat_fault",
        /// A turn was not kept: it is longer than all that its holder may keep.
        KeptTurnsFull = "kept_turns_full",
        /// A decode engine keeps a turn and did not tell where: nobody can use it or let it go.
        TurnUntold = "turn_untold",
        /// A decode engine keeps nothing of a turn, as its answer tells: no later turn can use it.
        TurnNotKept = "turn_not_kept_by_engine",
        /// A prefill engine was offered a kept turn and computed what it could have fetched, or hangs on such offers and got
        /// none.
        TurnNotFetched = "turn_not_fetched",
        /// Prefill read a prompt otherwise than `/tokenize` did: decode computes it, and kept turns are not used any more.
        ReadOtherwise = "read_otherwise",
        /// Decode read a prompt otherwise than the prefill whose KV it was given.
        DecodeReadOtherwise = "decode_read_otherwise",
        /// It gave a hint that no engine knows.
        UnknownHint = "unknown_hint",
        /// Prefill gave no usable handle: decode computes the prompt.
        TransferMissing = "transfer_missing",
        /// A stream of an engine that says in no stream what it keeps: its turn is not used again.
        StreamTellsNothing = "stream_tells_nothing",
        /// Decode answered and its engine never asked for the KV that was held for it: it computed the prompt.
        TransferIgnored = "transfer_ignored",
        /// An engine whose KV this host is to move is not attached: decode computes the prompt.
        NotAttached = "not_attached",
        /// The decided pair is avoided: decided again without its decode worker.
        PairAvoided = "pair_avoided",
        /// All pairs are avoided: one is tried all the same.
        PairBreakerIgnored = "pair_breaker_ignored",
        /// All workers of a role are spared: they are tried all the same.
        BreakersIgnored = "breakers_ignored",
        /// Retries were spent: the client got the failure.
        RetryBudgetSpent = "retry_budget_spent",
    }

    /// Which way KV moves between engines.
    KvWay {
        /// A prompt's, from prefill to decode.
        There = "prefill-to-decode",
        /// A kept turn's, from decode to prefill.
        Back = "decode-to-prefill",
    }

    /// What an answer that was asked for its token ids told of them.
    TokenIds {
        /// All of the prompt's and the answer's, as far as the engine's own counts say.
        Told = "told",
        /// None, or not the prompt's.
        Absent = "absent",
        /// A part came without its ids: a parser holds them back.
        Hidden = "hidden",
        /// Not as many as the engine counted.
        Miscounted = "miscounted",
        /// Of several choices.
        SeveralChoices = "several_choices",
        /// More than a model reads.
        TooMany = "too_many",
        /// No list of ids.
        Unreadable = "unreadable",
    }

    /// What became of a prompt that was to be tokenised.
    Tokenized {
        /// Its ids are known.
        Ok = "ok",
        /// A member acts on the prompt in a way that `/tokenize` does not know.
        NotRenderable = "not_renderable",
        /// Several prompts.
        SeveralPrompts = "several_prompts",
        /// No prefill worker is up.
        NoWorker = "no_worker",
        /// As many as may be are being tokenised.
        Busy = "busy",
        /// No answer in its time.
        Late = "late",
        /// No answer, or a refusal.
        Failed = "failed",
        /// Not of the shape that was expected.
        Unreadable = "unreadable",
    }

    /// What became of a prefill leg's KV handle.
    HandleFate {
        /// Sent to a decode worker.
        Dispatched = "dispatched",
        /// The prefill worker gave none.
        Absent = "absent",
        /// It would hang or end a decode worker.
        Unusable = "unusable",
        /// Its blocks may be gone.
        Expired = "expired",
        /// Decode failed after it was sent: the blocks stay until their lease ends, or until the host that moves them has
        /// ended the transfer.
        Stranded = "stranded",
        /// Its holder is down, or has started anew.
        HolderGone = "holder_gone",
        /// The client left before decode's answer.
        Abandoned = "abandoned",
        /// Never sent to decode, or refused by it; its holder was told to free the blocks.
        Released = "released",
        /// Never sent to decode, and its holder could not be told: the blocks stay until their lease ends.
        Unreleased = "unreleased",
    }

    /// Who decided.
    Source {
        /// The policy.
        Policy = "policy",
        /// The built-in default, since the policy said so.
        UseDefault = "use-default",
        /// The built-in default, since the policy failed.
        Fault = "fault",
        /// The built-in default, since the configured policy is not loaded.
        NotLoaded = "not-loaded",
        /// The last good version of the policy, since the newest is put aside.
        LastGood = "last-good",
        /// The built-in default, since the policy is put aside and has no other good version.
        PutAside = "put-aside",
        /// The built-in default, as configured.
        Builtin = "builtin",
        /// The policy, which refused the request.
        Reject = "reject",
    }

    /// Why spans are lost.
    SpansDropped {
        /// More requests ended than the collector took.
        QueueFull = "queue_full",
        /// The collector cannot be reached, or cannot take them now.
        Unreachable = "unreachable",
        /// The collector does not want them.
        Refused = "refused",
    }

    /// Parts of a request's time.
    Phase {
        /// Wait for a place among the requests in flight.
        Queue = "queue",
        /// Facts, policy call, check of its answer.
        Decide = "decide",
        /// Prefill leg, dispatch to its answer's head.
        Prefill = "prefill",
        /// The router's view of a KV transfer: decode's dispatch to its first event, less one measured decode step.
        Transfer = "transfer",
        /// Decode or unified leg, dispatch to its answer's head.
        DecodeHead = "decode_head",
        /// Decode or unified leg, dispatch to the first event of its stream.
        DecodeFirstByte = "decode_first_byte",
        /// Request's arrival to the first event of its stream: TTFT as clients see it.
        FirstToken = "first_token",
        /// A stream's mean time per token after the first: TPOT.
        PerToken = "per_token",
        /// Request's arrival to the end of its answer.
        Total = "total",
    }
}

impl From<Blame> for Outcome {
    fn from(blame: Blame) -> Self {
        match blame {
            Blame::Client => Self::ClientError,
            Blame::Left => Self::Cancelled,
            Blame::Policy => Self::Rejected,
            Blame::Prefill => Self::PrefillFailed,
            Blame::Decode => Self::DecodeFailed,
            Blame::Transfer => Self::TransferFailed,
            Blame::Host => Self::HostError,
            Blame::Load => Self::Shed,
        }
    }
}

impl From<Blame> for Leg {
    fn from(blame: Blame) -> Self {
        if blame == Blame::Prefill { Self::Prefill } else { Self::Decode }
    }
}

impl Label for Failure {
    const ALL: &'static [Self] = &Failure::ALL;

    fn name(self) -> &'static str {
        Self::name(self)
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// Why a leg is sent again, or another attempt is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// An idle connection broke: the same leg once more.
    Resent,
    /// The attempt before failed so.
    After(Failure),
}

impl Label for Retry {
    const ALL: &'static [Self] = &[
        Self::Resent,
        Self::After(Failure::Unreachable),
        Self::After(Failure::BrokeOff),
        Self::After(Failure::Late),
        Self::After(Failure::ServerError),
        Self::After(Failure::ErrorInAnswer),
        Self::After(Failure::NoAnswer),
        Self::After(Failure::TooLong),
        Self::After(Failure::Refused),
        Self::After(Failure::RefusedByOne),
        Self::After(Failure::HandleExpired),
        Self::After(Failure::TurnUnread),
        Self::After(Failure::NoDecodeWorker),
        Self::After(Failure::HostShort),
        Self::After(Failure::OutOfTime),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Resent => "resent",
            Self::After(failure) => failure.name(),
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Resent => 0,
            Self::After(failure) => 1 + failure as usize,
        }
    }
}

impl Source {
    /// Whether it is a policy's own word, of whichever version.
    pub fn is_a_policys(self) -> bool {
        matches!(self, Self::Policy | Self::LastGood | Self::Reject)
    }
}

impl Label for TransferMode {
    const ALL: &'static [Self] = &[Self::Pull, Self::Push];

    fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl Label for Endpoint {
    const ALL: &'static [Self] = &[Self::Chat, Self::Completions];

    fn name(self) -> &'static str {
        self.path()
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl Label for Path {
    const ALL: &'static [Self] = &PATHS;

    fn name(self) -> &'static str {
        self.path
    }

    fn index(self) -> usize {
        PATHS.iter().position(|entry| entry.path == self.path).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<L: Label>() {
        for (place, label) in L::ALL.iter().enumerate() {
            assert_eq!(label.index(), place, "{}", label.name());
        }
        let names: std::collections::BTreeSet<_> = L::ALL.iter().map(|label| label.name()).collect();
        assert_eq!(names.len(), L::ALL.len());
    }

    #[test]
    fn labels_are_distinct_and_in_their_places() {
        check::<Outcome>();
        check::<Leg>();
        check::<Failure>();
        check::<Retry>();
        check::<Fallback>();
        check::<HandleFate>();
        check::<KvWay>();
        check::<TokenIds>();
        check::<Tokenized>();
        check::<TransferMode>();
        check::<Source>();
        check::<SpansDropped>();
        check::<Phase>();
        check::<Endpoint>();
        check::<Path>();
    }
}
