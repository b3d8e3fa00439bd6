//! What engines say, made into commands.

use std::sync::{Arc, PoisonError, RwLockWriteGuard};
use std::thread;
use std::time::Duration;

use sluice_engine_sdk::wire::{
    Direction, NewHold, NewReceive, Rank, Refused, Subject, ToEngine, ToHost, TransferId,
};

use super::ears::LinkEars;
use super::engines::{Coming, Engines, Going, Speaker, Whole};
use super::event::NodeEvent;
use super::handle::NodeHandle;
use super::holds::{Progress, Report, Word};
use crate::exchange::{Books, Hold, NotTaken, Receive, Said};
use crate::link::{Attached, LinkEvent};
use crate::protocol::Lease;

/// How often a command that finds no room is put again, a millisecond apart. Meanwhile nothing is read from its engine.
const PUTS_AT_MOST: u32 = 1_000;

/// Hears engines, each on its own thread.
pub(super) struct Hearing {
    pub node: NodeHandle,
    pub tell: Arc<dyn Fn(NodeEvent) + Send + Sync>,
}

impl Hearing {
    pub fn hear(&self, event: LinkEvent) {
        match event {
            LinkEvent::Attached(rank) => self.come(*rank),
            LinkEvent::Said { session, message } => {
                let speaker = self.speaker(session);
                if let Some(speaker) = speaker {
                    self.said(&speaker, message);
                }
            }
            LinkEvent::Invalid { session, text } => {
                if let Some(Speaker { name, .. }) = self.speaker(session) {
                    (self.tell)(NodeEvent::Invalid { name, text });
                }
            }
            LinkEvent::Detached { session, why } => {
                let going = self.engines().go(session);
                if let Some(Going { peer, name, left }) = going {
                    put(|| self.node.exchange.detach(peer));
                    let text = format!("a rank of engine {name:?} is gone ({why}): attach again, all ranks");
                    left.iter().for_each(|sender| sender.detach(&text));
                    (self.tell)(NodeEvent::Detached { name, why: why.to_string() });
                }
            }
            LinkEvent::Refused { pid, refusal, .. } => {
                let is_passing = refusal.code.is_passing();
                (self.tell)(NodeEvent::Refused { pid, is_passing, text: refusal.text });
            }
            LinkEvent::NotAccepting(kind) => (self.tell)(NodeEvent::NotAccepting(kind)),
        }
    }

    fn engines(&self) -> RwLockWriteGuard<'_, Engines> {
        self.node.engines.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn come(&self, rank: Attached) {
        let (sender, pid) = (rank.sender.clone(), rank.pid);
        // Whoever speaks as a whole engine must be attached by then, so others are let in only behind that.
        let mut engines = self.engines();
        let (attached, slabs, senders) = match engines.come(rank) {
            Coming::Awaited => return,
            Coming::Misfit(text) => {
                drop(engines);
                sender.detach(&text);
                return (self.tell)(NodeEvent::Refused { pid, is_passing: false, text });
            }
            Coming::Whole { attached, slabs, senders } => (attached, slabs, senders),
        };
        let (peer, layout) = (attached.peer, attached.layout);
        // Ears that find the engine not taken say so to its ranks.
        self.node.holds.take_in(peer);
        let ears = Box::new(LinkEars { peer, senders, holds: Arc::clone(&self.node.holds) });
        let taken = self.node.exchange.attach_to(peer, layout, slabs, Books::Asked, ears);
        if taken.is_err() {
            engines.not_taken(peer.engine);
        }
        drop(engines);
        match taken {
            Ok(()) => (self.tell)(NodeEvent::Attached(attached)),
            Err(refused) => {
                (self.tell)(NodeEvent::Refused { pid, is_passing: false, text: refused.to_string() })
            }
        }
    }

    fn speaker(&self, session: u64) -> Option<Speaker> {
        self.node.engines.read().unwrap_or_else(PoisonError::into_inner).speaker(session)
    }

    fn said(&self, speaker: &Speaker, message: ToHost) {
        let Some(of) = speaker.whole else {
            // Other ranks are missing: it computes for itself.
            return match &message {
                ToHost::Hold { hold } => self.refuse(speaker, Subject::Hold(hold.id), Refused::NoSource),
                ToHost::Receive { receive } => {
                    self.refuse(speaker, Subject::Receive(receive.attempt), Refused::NoSource)
                }
                _ => {}
            };
        };
        match message {
            ToHost::Ready { id, rect } => self.report(speaker, of, id, Report::Ready(rect)),
            ToHost::Filled { id } => self.report(speaker, of, id, Report::Filled),
            _ if speaker.rank != Rank(0) => speaker.sender.detach(
                "a rank other than 0 spoke of holds and transfers: blocks are the same on all ranks, so rank 0 speaks",
            ),
            ToHost::Hold { hold } => self.hold(speaker, of, hold),
            ToHost::Receive { receive } => self.receive(speaker, of, receive),
            ToHost::Abort { attempt, .. } => {
                self.put(speaker, || self.node.exchange.cancel(of.peer, attempt));
            }
            ToHost::Confirmed { attempt, number, held } => {
                self.say(speaker, of, &Said::Confirmed { attempt, number, held });
            }
            ToHost::Renew { id } => self.lease(speaker, of, id, Lease::Renew),
            ToHost::Release { id } => self.lease(speaker, of, id, Lease::Release),
        }
    }

    fn hold(&self, speaker: &Speaker, of: Whole, hold: NewHold) {
        let NewHold { id, extent, blocks, first_token, proofs, fill_ms, ttl_ms, renewable, margin_ms } = hold;
        if let Err(why) = self.node.holds.begin(of, id, extent, proofs) {
            return self.refuse(speaker, Subject::Hold(id), why);
        }
        let blocks = blocks.into();
        let hold = Hold { id, extent, blocks, first_token, fill_ms, ttl_ms, renewable, margin_ms };
        self.say(speaker, of, &Said::Hold(hold));
        let (reported, word) = self.node.holds.said(of.peer, id);
        reported.into_iter().for_each(|progress| self.progress(speaker, of, id, progress));
        self.follow(speaker, of, id, word);
    }

    fn report(&self, speaker: &Speaker, of: Whole, id: TransferId, report: Report) {
        if let Some(progress) = self.node.holds.report(of.peer, id, speaker.rank, report) {
            self.progress(speaker, of, id, progress);
        }
    }

    fn progress(&self, speaker: &Speaker, of: Whole, id: TransferId, progress: Progress) {
        let exchange = &self.node.exchange;
        let is_told = self.put(speaker, || match progress {
            Progress::Ready(rank, rect) => exchange.ready(of.peer, id, rank, rect),
            Progress::Filled => exchange.filled(of.peer, id),
        });
        if is_told && progress == Progress::Filled {
            self.follow(speaker, of, id, self.node.holds.filled(id));
        }
    }

    /// Does what the host said before the hold had come so far.
    fn follow(&self, speaker: &Speaker, of: Whole, id: TransferId, word: Option<Word>) {
        let exchange = &self.node.exchange;
        self.put(speaker, || match word {
            None => Ok(()),
            Some(Word::Release) => exchange.release(of.peer, id),
            Some(Word::Keep { for_ms }) => exchange.renew(of.peer, id, Some(for_ms)).map(drop),
        });
    }

    fn receive(&self, speaker: &Speaker, of: Whole, receive: NewReceive) {
        let NewReceive { attempt, source, verb, direction, extent, mut wanted, proofs, .. } = receive;
        let subject = Subject::Receive(attempt);
        let Some(from) = self.node.peer(source) else {
            return self.refuse(speaker, subject, Refused::NoSource);
        };
        self.node.holds.asked_for(attempt.id);
        // Whether a prompt continues what decode holds only proofs tell.
        let shows = || self.node.holds.get(attempt.id).is_some_and(|held| held.has_proofs);
        if direction == Direction::DecodeToPrefill || !proofs.is_empty() || shows() {
            let proven = match self.node.holds.proven(attempt.id, extent, wanted, &proofs) {
                Ok(proven) => proven,
                Err(why) => return self.refuse(speaker, subject, why),
            };
            if proven != wanted {
                send(speaker, ToEngine::Cut { attempt, end_token: proven.end });
            }
            wanted = proven;
        }
        let blocks = receive.blocks.into();
        let (first_byte_ms, whole_ms, first_token) =
            (receive.first_byte_ms, receive.whole_ms, receive.first_token);
        let receive = Receive {
            attempt,
            from,
            verb,
            direction,
            extent,
            wanted,
            blocks,
            first_token,
            first_byte_ms,
            whole_ms,
        };
        self.say(speaker, of, &Said::Receive(receive));
        let word = {
            let mut words = self.node.attempts.lock().unwrap_or_else(PoisonError::into_inner);
            words.take((of.peer.engine, attempt), |_| true)
        };
        // What the host said before this is said now: the exchange has not known of what.
        if let Some(word) = word {
            self.put(speaker, || self.node.tell_attempt(of.peer, attempt, word));
        }
    }

    fn lease(&self, speaker: &Speaker, of: Whole, id: TransferId, lease: Lease) {
        match (self.node.holds.get(id), lease) {
            (Some(held), lease) => {
                if held.holder != of.peer {
                    self.node.holds.asked_for(id);
                }
                self.say(speaker, of, &Said::Lease { holder: held.holder, id, lease });
            }
            (None, Lease::Renew) => send(speaker, ToEngine::LeaseLeft { id, left_ms: 0 }),
            // A consumer that needs nothing may say so before there is a hold.
            (None, _) => {
                self.node.holds.asked_for(id);
                if let Some(holder) = self.node.holds.word(id, Word::Release) {
                    self.put(speaker, || self.node.exchange.release(holder, id));
                }
            }
        }
    }

    fn say(&self, speaker: &Speaker, of: Whole, said: &Said) {
        self.put(speaker, || self.node.exchange.said(of.peer, said.clone()));
    }

    /// An engine of which something could not be taken is cut off: nothing that it says after that would make sense.
    fn put(&self, speaker: &Speaker, command: impl FnMut() -> Result<(), NotTaken>) -> bool {
        let is_taken = put(command);
        if !is_taken {
            speaker.sender.detach("the host is too far behind to take what this engine says: attach again");
        }
        is_taken
    }

    fn refuse(&self, speaker: &Speaker, subject: Subject, why: Refused) {
        self.node.exchange.count_refused(why);
        send(speaker, ToEngine::Refused { subject, why });
    }
}

/// Waits for room, within bounds: back-pressure, since meanwhile nobody reads what the engine says.
fn put(mut put: impl FnMut() -> Result<(), NotTaken>) -> bool {
    for _ in 0..PUTS_AT_MOST {
        match put() {
            Err(NotTaken::Full) => thread::park_timeout(Duration::from_millis(1)),
            // Of one that has stopped, engines are told by its end.
            Ok(()) | Err(NotTaken::Stopped) => return true,
        }
    }
    false
}

/// An engine that cannot be told is gone, which is an event of its own.
fn send(speaker: &Speaker, message: ToEngine) {
    let _ = speaker.sender.send(message);
}
