//! Commands, each to the machine that it is about.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_engine_sdk::wire::{Subject, ToEngine};

use super::command::{Asker, Command, CommandError, Hold, Outcome, Receive, Told};
use super::endpoints::{Endpoint, NoEndpoint};
use super::engine::{Attaching, Engine, Receiving};
use super::events::Detached;
use super::limits::MAX_WAITING;
use super::stepping::Exchange;
use super::waiting::Waiting;
use super::work::Place;
use crate::protocol::Extent;
use crate::protocol::limits::MAX_LINKS;
use crate::protocol::{
    Event, Feed, Grid, Link, Message, NewHold, NewSink, Peer, Rank, Rect, Tokens, Transfers,
};

impl Exchange {
    pub(super) fn command(&mut self, command: Command, now_ms: u64) {
        match command {
            Command::Attach(attaching) => self.attach(*attaching),
            Command::Detach(peer, why) => self.detach(peer, why),
            Command::Hold(peer, hold, asker) => {
                let subject = Subject::Hold(hold.id);
                let outcome = self.hold(peer, hold, now_ms);
                self.answer(peer, subject, asker, outcome);
            }
            Command::Receive(peer, receive, asker) => {
                self.asked_to_receive(peer, receive, asker, now_ms, now_ms)
            }
            Command::Renew(peer, id, for_ms, reply) => {
                let renewed = attached(&mut self.engines, peer)
                    .and_then(|engine| Ok(engine.transfers.renew(id, for_ms, now_ms)?));
                reply.give(renewed);
            }
            Command::Told(peer, told) => {
                if attached(&mut self.engines, peer).is_err() {
                    self.shared.figures().commands_unaddressed += 1;
                }
                self.told(peer, told, now_ms);
            }
        }
    }

    fn told(&mut self, peer: Peer, told: Told, now_ms: u64) {
        if self.told_waiting(peer, told, now_ms) {
            return;
        }
        let event = match told {
            Told::Ready { id, rank, rect } => Event::Ready { id, rank, rect },
            Told::Filled(id) => Event::Filled(id),
            Told::Release(id) => Event::Release(id),
            Told::Cancel(attempt) => Event::Cancel(attempt),
            Told::Expect { attempt, within_ms } => Event::Expect { attempt, within_ms },
            Told::Lease { from, id, lease } => Event::Message { from, message: Message::Hold(id, lease) },
            Told::Confirmed { attempt, number, held } => {
                return self.confirmed(peer, (attempt, number), held, now_ms);
            }
        };
        // At once, so that commands take effect in the order in which they were given.
        self.handle(peer, event, now_ms);
    }

    fn answer(&mut self, peer: Peer, subject: Subject, asker: Asker<()>, outcome: Outcome<()>) {
        match (asker, outcome) {
            (Asker::Caller(reply), outcome) => reply.give(outcome),
            (Asker::Engine, Ok(())) => {}
            (Asker::Engine, Err(refused)) => {
                *self.shared.figures().refused.entry(refused.for_engine()).or_default() += 1;
                self.tell(peer, ToEngine::Refused { subject, why: refused.for_engine() });
            }
        }
    }

    /// `since_ms` is when its times began.
    pub(super) fn asked_to_receive(
        &mut self,
        peer: Peer,
        receive: Receive,
        asker: Asker<()>,
        since_ms: u64,
        now_ms: u64,
    ) {
        let subject = Subject::Receive(receive.attempt);
        let again = matches!(asker, Asker::Engine).then(|| receive.clone());
        match (self.receive(peer, receive, now_ms), again) {
            // An engine need not know of endpoints. It is closed in some milliseconds.
            (Err(CommandError::Closing), Some(receive)) if self.waiting.len() < MAX_WAITING => {
                self.waiting.push(Waiting { peer, receive, since_ms });
            }
            (outcome, _) => self.answer(peer, subject, asker, outcome),
        }
    }

    fn attach(&mut self, attaching: Attaching) {
        let Attaching { peer, geometry, slabs, books, mut teller } = attaching;
        teller.is_taken = true;
        let lives = Peer { incarnation: 0, ..peer }..peer;
        let earlier: Vec<_> = self.engines.range(lives).map(|(peer, _)| *peer).collect();
        earlier.into_iter().for_each(|life| self.detach(life, Detached::Superseded));
        let (holds, sinks, leaving) = (BTreeMap::new(), BTreeMap::new(), None);
        let (asked, transfers) = (BTreeMap::new(), Transfers::new(self.limits));
        let engine = Engine { geometry, slabs, books, asked, teller, transfers, holds, sinks, leaving };
        self.engines.insert(peer, engine);
    }

    /// An engine is no more. Its own transfers and those of its peers end; it is let go of when nothing that was
    /// posted can touch it.
    pub(super) fn detach(&mut self, peer: Peer, why: Detached) {
        let Some(engine) = self.engines.get_mut(&peer).filter(|engine| engine.leaving.is_none()) else {
            return;
        };
        engine.leaving = Some(why);
        self.inbox.push_back((peer, Event::EngineGone));
        let others = self.engines.keys().filter(|other| **other != peer);
        self.inbox.extend(others.map(|other| (*other, Event::PeerLost(peer))));
        self.endpoints.close_all_of(peer);
    }

    fn hold(&mut self, peer: Peer, hold: Hold, now_ms: u64) -> Outcome<()> {
        let engine = attached(&mut self.engines, peer)?;
        let Hold { id, extent, blocks, first_token, fill_ms, ttl_ms, renewable, margin_ms } = hold;
        let grid = engine.grid(extent)?;
        engine.check(extent.tokens(grid.whole()), &blocks, first_token)?;
        let place = Arc::new(Place::new(&blocks, first_token));
        let ranks = engine.ranks();
        let new = NewHold { id, grid, blocks, ranks, fill_ms, ttl_ms, renewable, margin_ms };
        let mut actions = std::mem::take(&mut self.actions);
        let taken = engine.transfers.hold(new, now_ms, &mut actions);
        if taken.is_ok() {
            engine.holds.insert(id, (extent, place));
        }
        self.act(peer, actions);
        Ok(taken?)
    }

    fn receive(&mut self, peer: Peer, receive: Receive, now_ms: u64) -> Outcome<()> {
        let Receive { attempt, from, verb, direction, extent, wanted, blocks, first_token, .. } = receive;
        if from.engine == peer.engine {
            return Err(CommandError::SameEngine);
        }
        let of = |peer| is_attached(&self.engines, peer);
        let (sink, source) = (of(peer)?, of(from)?);
        let grid = sink.grid(extent)?;
        let wanted = sink.cells(extent, wanted)?;
        sink.check(extent.tokens(wanted), &blocks, first_token)?;
        let endpoint = self.endpoints.open(&*self.fabric, (from, source), (peer, sink))?;
        let feed = Feed { peer: from, key: endpoint.key, links: links(endpoint, from)? };
        let place = Arc::new(Place::new(&blocks, first_token));
        let new = NewSink {
            attempt,
            verb,
            direction,
            grid,
            wanted,
            blocks,
            staging: None,
            feeds: vec![feed],
            first_byte_ms: receive.first_byte_ms,
            whole_ms: receive.whole_ms,
        };
        let mut actions = std::mem::take(&mut self.actions);
        let engine = attached(&mut self.engines, peer)?;
        let taken = engine.transfers.receive(new, now_ms, &mut actions);
        if taken.is_ok() {
            engine.sinks.insert(attempt, Receiving { from, verb, direction, extent, place });
        }
        self.act(peer, actions);
        Ok(taken?)
    }
}

impl Engine {
    fn grid(&self, extent: Extent) -> Outcome<Grid> {
        extent.grid(self.geometry.layout().layers).ok_or(CommandError::Extent(extent))
    }

    fn cells(&self, extent: Extent, wanted: Tokens) -> Outcome<Rect> {
        extent.cells(wanted, self.geometry.layout().layers).ok_or(CommandError::Extent(extent))
    }

    fn ranks(&self) -> Vec<Rank> {
        (0..self.slabs.len() as u16).map(Rank).collect()
    }
}

impl From<NoEndpoint> for CommandError {
    fn from(none: NoEndpoint) -> Self {
        match none {
            NoEndpoint::Mismatch(mismatch) => Self::Mismatch(mismatch),
            NoEndpoint::Open(refused) => Self::Open(refused),
            NoEndpoint::Closing => Self::Closing,
        }
    }
}

/// Which ranks of a source feed which of its sink.
fn links(endpoint: &Endpoint, source: Peer) -> Outcome<Vec<Link>> {
    let links = endpoint.pair(source).links();
    if links.len() > MAX_LINKS {
        return Err(CommandError::Links { links: links.len() });
    }
    let rank = |rank: u32| Rank(rank as u16);
    Ok(links.iter().map(|link| Link { from: rank(link.source_rank), to: rank(link.sink_rank) }).collect())
}

fn is_attached(engines: &BTreeMap<Peer, Engine>, peer: Peer) -> Outcome<&Engine> {
    let engine = engines.get(&peer).filter(|engine| engine.leaving.is_none());
    engine.ok_or(CommandError::NotAttached(peer))
}

fn attached(engines: &mut BTreeMap<Peer, Engine>, peer: Peer) -> Outcome<&mut Engine> {
    let engine = engines.get_mut(&peer).filter(|engine| engine.leaving.is_none());
    engine.ok_or(CommandError::NotAttached(peer))
}
