//! What can go wrong with a request before its client's first byte, who is to blame, and whether another attempt may
//! do better. After the first byte nothing is tried again: the client would read tokens twice.

/// Why a leg, or a whole attempt, came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// No connection came about: the worker is not there.
    Unreachable,
    /// The connection broke before the answer was whole.
    BrokeOff,
    /// The first byte, or the answer, did not come in its time.
    Late,
    /// The engine answered 5xx.
    ServerError,
    /// The engine said in its answer that it failed: an error event, `finish_reason: "error"`.
    ErrorInAnswer,
    /// An answer that is none: empty, no JSON, without choices.
    NoAnswer,
    /// An answer longer than is taken.
    TooLong,
    /// The engine refused the request as the client's fault (4xx).
    Refused,
    /// The engine refused it for reasons that another may not have: its key, its models, its load (401, 403, 404, 408,
    /// 429). They may be the client's all the same, so they are held against nobody.
    RefusedByOne,
    /// The KV handle passed its deadline before it was sent.
    HandleExpired,
    /// A prefill leg that was to fetch what decode keeps of a turn failed or gave no answer: most likely its holder had let go of
    /// it, or cannot be reached. The next attempt asks for nothing kept.
    TurnUnread,
    /// Nobody was left to decode what was prefilled.
    NoDecodeWorker,
    /// This host ran short of descriptors, ports or memory.
    HostShort,
    /// The request's own time is over.
    OutOfTime,
}

impl Failure {
    /// All of them, for tables.
    pub const ALL: [Self; 14] = [
        Self::Unreachable,
        Self::BrokeOff,
        Self::Late,
        Self::ServerError,
        Self::ErrorInAnswer,
        Self::NoAnswer,
        Self::TooLong,
        Self::Refused,
        Self::RefusedByOne,
        Self::HandleExpired,
        Self::TurnUnread,
        Self::NoDecodeWorker,
        Self::HostShort,
        Self::OutOfTime,
    ];

    /// Label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "connect",
            Self::BrokeOff => "broken",
            Self::Late => "late",
            Self::ServerError => "status_5xx",
            Self::ErrorInAnswer => "error_in_answer",
            Self::NoAnswer => "no_answer",
            Self::TooLong => "too_long",
            Self::Refused => "refused",
            Self::RefusedByOne => "refused_by_one",
            Self::HandleExpired => "handle_expired",
            Self::TurnUnread => "turn_unread",
            Self::NoDecodeWorker => "no_decode_worker",
            Self::HostShort => "local",
            Self::OutOfTime => "timeout",
        }
    }

    /// Whether another attempt may do better. The same request would be refused again, would be as long again, and
    /// has no time left; a host that is short only gets shorter.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Unreachable
            | Self::BrokeOff
            | Self::Late
            | Self::ServerError
            | Self::ErrorInAnswer
            | Self::NoAnswer
            | Self::RefusedByOne
            | Self::HandleExpired
            | Self::TurnUnread
            | Self::NoDecodeWorker => true,
            Self::TooLong | Self::Refused | Self::HostShort | Self::OutOfTime => false,
        }
    }

    /// Whether the engine answered, and said no.
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::Refused | Self::RefusedByOne)
    }

    /// Whether, of a decode leg that was to fetch KV blocks, it may as well be the fault of who holds them: engines tell a
    /// failed transfer by a 5xx or an error in the answer, or wait for it in silence.
    pub fn may_be_the_holders(self) -> bool {
        matches!(self, Self::Late | Self::ServerError | Self::ErrorInAnswer)
    }

    /// Whether it speaks against the worker. A worker out of reach is a matter of its health, which real work and
    /// probes report alike; what is the client's, this host's or the clock's speaks against nobody.
    pub fn counts_against_worker(self) -> bool {
        match self {
            Self::BrokeOff | Self::Late | Self::ServerError | Self::ErrorInAnswer | Self::NoAnswer => true,
            Self::Unreachable
            | Self::TooLong
            | Self::Refused
            | Self::RefusedByOne
            | Self::HandleExpired
            | Self::TurnUnread
            | Self::NoDecodeWorker
            | Self::HostShort
            | Self::OutOfTime => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn what_the_client_or_this_host_did_is_neither_retried_nor_held_against_a_worker() {
        for failure in [Failure::Refused, Failure::HostShort, Failure::TooLong, Failure::OutOfTime] {
            assert!(!failure.is_retryable() && !failure.counts_against_worker(), "{failure:?}");
        }
    }

    #[test]
    fn names_are_distinct() {
        let names: HashSet<_> = Failure::ALL.iter().map(|failure| failure.name()).collect();
        assert_eq!(names.len(), Failure::ALL.len());
    }
}
