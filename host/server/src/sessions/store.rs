//! What the host wants of a store of sessions, wherever it keeps them.

use sluice_core::history::Digest;
use sluice_core::history::chain::Chain;
use sluice_core::history::lines::Found;
use sluice_core::history::scope::ConversationKey;
use sluice_core::session::{Session, TurnRecord};

use super::figures::Evicted;
use super::order::Stamp;

/// Is told which session went for room or age, and why. It is called without a lock of the store's, and may use it.
pub type Gone<'a> = &'a mut dyn FnMut(&ConversationKey, Evicted);

/// All conversations, bounded. Losing one costs reuse, never a right answer. Times are milliseconds of a clock that does
/// not step.
pub trait SessionStore: Send + Sync {
    /// A conversation as of its last turn, copied out; an expired one is never found.
    fn get(&self, key: &ConversationKey, now_ms: u64) -> Option<Session>;

    /// Where a request with this history belongs, if its client names no conversation.
    fn find(&self, chain: &Chain) -> Found;

    /// A turn ended; the session is as returned. `mark` is what a derived conversation is found again by ([`Chain::mark`]). The
    /// longest idle ones make room where there are too many, and are told of.
    fn end_turn(
        &self,
        key: ConversationKey,
        mark: Option<Digest>,
        turn: &TurnRecord,
        now_ms: u64,
        gone: Gone<'_>,
    ) -> Session;

    /// Drops one. Whether it was there.
    fn drop_one(&self, key: &ConversationKey) -> bool;

    /// The next ones in the order of their last turns, from where the last batch ended. One that has a turn meanwhile may come twice;
    /// expired ones may be among them.
    fn batch(&self, walk: &mut Walk, at_most: usize) -> Vec<(ConversationKey, Session)>;

    /// Derived conversations with the marks they are found by, the longest idle first.
    fn lines(&self) -> Vec<(Digest, Vec<Digest>)>;

    /// Puts back what was stored once, the longest idle first.
    fn restore(&self, sessions: Vec<(ConversationKey, Session)>, lines: &[(Digest, Vec<Digest>)]);

    /// Drops what expired, and tells of it. For a background thread.
    fn sweep(&self, now_ms: u64, gone: Gone<'_>);

    /// What is stored.
    fn size(&self) -> Size;
}

/// How much is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Conversations.
    pub sessions: usize,
    /// Memory that they count for.
    pub bytes: usize,
}

/// A walk over all sessions.
#[derive(Debug, Clone, Copy)]
pub struct Walk {
    /// Whether the longest idle come last.
    pub newest_first: bool,
    /// Of the last one that was seen.
    pub(super) stamp: Option<Stamp>,
}

impl Walk {
    /// From the longest idle on.
    pub fn oldest_first() -> Self {
        Self { newest_first: false, stamp: None }
    }

    /// From the one whose turn ended last on.
    pub fn newest_first() -> Self {
        Self { newest_first: true, stamp: None }
    }
}
