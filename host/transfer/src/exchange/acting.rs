//! What the machines want done.

use sluice_engine_sdk::wire::ToEngine;

use super::engine::{Answered, Asked, Engine, Question};
use super::limits::{ASK_AGAIN_MS, MAX_MESSAGES};
use super::stepping::Exchange;
use crate::protocol::{Action, Attempt, Event, Key, Message, Peer, Place as Freed, Reason, TransferId};

/// Of no endpoint: what no consumer was given.
const NO_KEY: Key = Key(u64::MAX);

impl Exchange {
    pub(super) fn handle(&mut self, peer: Peer, event: Event, now_ms: u64) {
        let question = self.engines.get(&peer).and_then(|engine| engine.question(&event));
        match (question, event) {
            (Some(question), Event::Message { from, message }) => {
                self.ask(peer, question, (from, message), now_ms)
            }
            (_, event) => self.decide(peer, event, now_ms, None),
        }
    }

    /// Asks an engine for what only it knows, and again where a consumer asks again: its answer may not have been sent.
    /// But not each time, since a question names all that was read.
    fn ask(&mut self, peer: Peer, question: Question, (from, message): (Peer, Message), now_ms: u64) {
        let Question { attempt, number, blocks } = question;
        let Some(engine) = self.engines.get_mut(&peer) else { return };
        let before = engine.asked.get(&(attempt, number)).map(|asked| asked.at_ms);
        if before.is_some_and(|at_ms| now_ms < at_ms + ASK_AGAIN_MS) {
            return;
        }
        engine.asked.insert((attempt, number), Asked { from, message, at_ms: now_ms });
        self.tell(peer, ToEngine::Confirm { attempt, number, blocks });
    }

    /// An engine has answered.
    pub(super) fn confirmed(&mut self, peer: Peer, which: (Attempt, u32), held: bool, now_ms: u64) {
        let asked = self.engines.get_mut(&peer).and_then(|engine| engine.asked.remove(&which));
        if let Some(Asked { from, message, .. }) = asked {
            self.decide(peer, Event::Message { from, message }, now_ms, Some(held));
        }
    }

    fn decide(&mut self, peer: Peer, event: Event, now_ms: u64, answered: Option<bool>) {
        // Whoever has left has no machines: what is for them is no more.
        let Some(Engine { transfers, books, .. }) = self.engines.get_mut(&peer) else { return };
        let about = about(&event);
        let mut actions = std::mem::take(&mut self.actions);
        match answered {
            Some(held) => transfers.handle(event, now_ms, &Answered(held), &mut actions),
            None => transfers.handle(event, now_ms, books, &mut actions),
        }
        self.act(peer, actions);
        if let Some(engine) = self.engines.get_mut(&peer) {
            engine.forget(about);
        }
    }

    pub(super) fn act(&mut self, peer: Peer, mut actions: Vec<Action>) {
        actions.drain(..).for_each(|action| self.do_one(peer, action));
        self.actions = actions;
    }

    fn do_one(&mut self, peer: Peer, action: Action) {
        match action {
            Action::Send { to, message } => {
                if self.inbox.len() < MAX_MESSAGES {
                    self.inbox.push_back((to, Event::Message { from: peer, message }));
                } else {
                    self.shared.figures().messages_dropped += 1;
                }
            }
            Action::Post(post) => self.begin(peer, &post),
            // `receive` stages nothing: where both sides are mapped here, closing an endpoint ends writes.
            Action::CopyOut(post) => debug_assert!(false, "nothing is staged: {post:?}"),
            Action::CancelPosts(attempt) => {
                self.jobs.cancel(peer, attempt).iter().for_each(|over| self.over(over));
            }
            Action::CloseEndpoint(other) => self.close_between(peer, other),
            Action::Arrived { attempt, rect } => self.tell(peer, ToEngine::Arrived { attempt, rect }),
            Action::Completed(attempt) => {
                self.shared.figures().completed += 1;
                self.tell(peer, ToEngine::Completed { attempt });
            }
            Action::Failed { attempt, reason } => {
                self.count_failure(peer, attempt, reason);
                self.tell(peer, ToEngine::Failed { attempt, reason });
            }
            Action::Quarantined { attempt, blocks } => {
                self.tell(peer, ToEngine::Quarantined { attempt, blocks: blocks.to_vec() });
            }
            Action::Freed { place: Freed::Blocks, blocks } => {
                self.tell(peer, ToEngine::Freed { blocks: blocks.to_vec() })
            }
            Action::Freed { place: Freed::Staging, .. } => {}
            Action::HoldEnded { id, end } => {
                *self.shared.figures().holds.entry(end).or_default() += 1;
                self.tell(peer, ToEngine::HoldEnded { id, end });
            }
            Action::LeaseLeft { id, left_ms } => self.tell(peer, ToEngine::LeaseLeft { id, left_ms }),
        }
    }

    /// Closes the endpoint between two. If there is none, it is closed as well as can be.
    fn close_between(&mut self, peer: Peer, other: Peer) {
        if !self.endpoints.close(peer, other) {
            self.inbox.push_back((peer, Event::EndpointClosed { peer: other, key: NO_KEY }));
        }
    }

    fn count_failure(&mut self, peer: Peer, attempt: Attempt, reason: Reason) {
        let mut figures = self.shared.figures();
        *figures.failed.entry(reason).or_default() += 1;
        let receiving = self.engines.get(&peer).and_then(|engine| engine.sinks.get(&attempt));
        if let Some(receiving) = receiving
            && matches!(reason, Reason::NoFirstByte | Reason::TooSlow)
        {
            figures.flow(receiving.flow(peer)).deadline_misses += 1;
        }
    }

    pub(super) fn tell(&mut self, peer: Peer, event: ToEngine) {
        let told = self.engines.get(&peer).map(|engine| engine.teller.ears.tell(event));
        if matches!(told, Some(Err(_))) {
            self.deaf.push(peer);
        }
    }
}

/// The transfer that an event is about, if it is about one.
fn about(event: &Event) -> Option<TransferId> {
    match event {
        Event::Ready { id, .. } | Event::Filled(id) | Event::Release(id) => Some(*id),
        Event::Cancel(attempt) | Event::Expect { attempt, .. } => Some(attempt.id),
        Event::Posted { op, .. } | Event::Copied(op) => Some(op.attempt.id),
        Event::Message { message: Message::Transfer(attempt, _), .. } => Some(attempt.id),
        Event::Message { message: Message::Hold(id, _), .. } => Some(*id),
        Event::EngineGone
        | Event::PeerLost(_)
        | Event::EndpointClosed { .. }
        | Event::ProcessGone(_)
        | Event::Tick => None,
    }
}
