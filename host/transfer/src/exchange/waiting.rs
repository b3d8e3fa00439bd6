//! Receives of engines that wait for the endpoint between two engines to be closed.

use sluice_engine_sdk::wire::ToEngine;

use super::command::{Asker, Receive, Told};
use super::stepping::Exchange;
use crate::protocol::{Peer, Reason};

/// One of them.
#[derive(Debug)]
pub(super) struct Waiting {
    pub peer: Peer,
    pub receive: Receive,
    /// When its times began.
    pub since_ms: u64,
}

impl Waiting {
    /// With what is left of its times; the deadline that is over, if one is.
    fn left(&self, now_ms: u64) -> Result<Receive, Reason> {
        let spent_ms = now_ms.saturating_sub(self.since_ms);
        let left = |ms: u64| ms.checked_sub(spent_ms).filter(|left_ms| *left_ms > 0 || ms == 0);
        let whole_ms = left(self.receive.whole_ms).ok_or(Reason::TooSlow)?;
        let first_byte_ms = left(self.receive.first_byte_ms).ok_or(Reason::NoFirstByte)?;
        Ok(Receive { whole_ms, first_byte_ms, ..self.receive.clone() })
    }
}

impl Exchange {
    /// Those whose endpoints may be closed by now. Their times run meanwhile.
    pub(super) fn receive_again(&mut self, now_ms: u64) {
        for waiting in std::mem::take(&mut self.waiting) {
            match waiting.left(now_ms) {
                Ok(receive) => {
                    self.asked_to_receive(waiting.peer, receive, Asker::Engine, now_ms, now_ms);
                }
                Err(reason) => self.give_up(waiting, reason),
            }
        }
    }

    /// What an engine or the host says of one that waits: whether it was of one.
    pub(super) fn told_waiting(&mut self, peer: Peer, told: Told, now_ms: u64) -> bool {
        let (Told::Cancel(attempt) | Told::Expect { attempt, .. }) = told else { return false };
        let is_it = |waiting: &Waiting| waiting.peer == peer && waiting.receive.attempt == attempt;
        let Some(at) = self.waiting.iter().position(is_it) else { return false };
        if let Told::Expect { within_ms, .. } = told {
            let waiting = &mut self.waiting[at];
            let by_ms = now_ms.saturating_sub(waiting.since_ms).saturating_add(within_ms);
            waiting.receive.first_byte_ms = waiting.receive.first_byte_ms.min(by_ms);
        } else {
            let waiting = self.waiting.remove(at);
            self.give_up(waiting, Reason::Cancelled);
        }
        true
    }

    /// It has not begun, so its blocks are free at once.
    fn give_up(&mut self, waiting: Waiting, reason: Reason) {
        let Waiting { peer, receive, .. } = waiting;
        let attempt = receive.attempt;
        *self.shared.figures().failed.entry(reason).or_default() += 1;
        self.tell(peer, ToEngine::Failed { attempt, reason });
        self.tell(peer, ToEngine::Freed { blocks: receive.blocks.to_vec() });
    }
}
