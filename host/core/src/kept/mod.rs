//! Turns whose KV engines keep for the next turn of their conversation: which are kept, which one a request gets, and until when.
//!
//! - [`table`]: all of them, by conversation, by age and by when something is due. A conversation has a few: asking again, or two
//!   continuations of one history, leave several that all may be continued.
//! - [`found`]: the one that a request goes on from. Whoever looks and whoever takes may not be alone, so what was found is taken
//!   by its number, which never comes again: of two who race, one gets it and the other finds it gone.
//! - [`deadlines`]: until when a turn may be read, and what is to be done about its lease as time goes by.
//! - [`saved`]: which of them come back with this host's next process.
//!
//! Times are milliseconds of the caller's clock, one that does not step. A holder's own clock is another.

pub mod deadlines;
pub mod found;
pub mod saved;
pub mod table;
#[cfg(test)]
mod tests;

use crate::history::Digest;
use crate::history::chain::Chain;
use crate::history::guard::Held;
use crate::lease::Lease;

/// What is to be known of a kept turn. A copy is cheap and for looking at: each turn is used, or ended, once, by who took it out.
pub trait Turn: Clone {
    /// Whose engine holds it, by [`crate::facts::FleetColumns::id`].
    fn holder(&self) -> u64;

    /// Tokens held, always as many.
    fn tokens(&self) -> u32;

    /// For how long its policy wants it kept.
    fn lease(&self) -> &Lease;

    /// To go on with it.
    fn lease_mut(&mut self) -> &mut Lease;

    /// The end of its request's history ([`Chain::mark`]); requests that continue it have it in theirs.
    fn mark(&self) -> Option<Digest>;

    /// Which tokens it is proven to be of, where engines take a handle at its word. `None`: those who move it compare.
    fn held(&self) -> Option<&Held>;

    /// From then on nobody may begin to read it, whatever its lease says ([`deadlines::usable_until_ms`]). [`u64::MAX`] where its
    /// holder goes by the lease.
    fn usable_until_ms(&self) -> u64;

    /// Whether it may still be read. To be asked right before it is sent, whatever was so when it was found.
    fn is_usable(&self, now_ms: u64) -> bool {
        now_ms < self.usable_until_ms()
    }

    /// For how much longer it is to be had, in milliseconds.
    fn left_ms(&self, now_ms: u64) -> u64 {
        self.lease().left_ms(now_ms).min(self.usable_until_ms().saturating_sub(now_ms))
    }

    /// Whether a later turn, of a request with this history, holds all that could be used of this one.
    fn is_superseded_by(&self, later: &Self, chain: Option<&Chain>) -> bool {
        match (self.held(), later.held()) {
            (Some(one), Some(other)) => one.is_in(other),
            _ => self.is_before(chain),
        }
    }

    /// Whether a request with this history goes on where this turn's ended. One that was only asked again does not: both answers
    /// may be continued. Of whom it is not known, it is believed.
    fn is_before(&self, chain: Option<&Chain>) -> bool {
        let (Some(mark), Some(chain)) = (self.mark(), chain) else { return true };
        mark != chain.mark() && chain.digests().contains(&mark)
    }
}

/// Why a turn ended, by these rules, that nobody used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Its time was over.
    Expired,
    /// Its policy does not want it any more.
    Released,
    /// A later turn holds all that could be used of it.
    Superseded,
    /// It was the oldest of too many.
    Crowded,
}
