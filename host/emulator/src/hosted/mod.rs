//! KV that the host of this node moves: the engine's end of the KV link.
//!
//! [`books`] decides what is held and received, and [`named`] counts whose blocks are; both are pure, and so is [`leg`],
//! which reads what a request asks for. [`link`] is a thread that attaches whenever a host is there. Here they meet the
//! engine, on the driver's task: nothing waits for the host for longer than it takes to queue a message.

#[cfg(test)]
mod anything;
mod books;
#[cfg(test)]
mod cases;
mod effects;
pub(crate) mod leg;
mod link;
mod memory;
mod named;
mod told;

use std::path::PathBuf;
use std::time::Duration;

use sluice_engine_sdk::leg::{Held, Wanted};
use sluice_engine_sdk::wire::{BlockRef, Rank, Role, Subject, ToHost};
use sluice_engine_sdk::{Event, SendError, Session};
use sluice_sim::Engine;
use sluice_sim::engine::{Kept, Load, SequenceId};
use sluice_sim::pool::BlockId;
use sluice_sim::tokens::Token;

use self::books::Books;
use self::effects::{Effects, ReceiveEnd};
use self::link::{LinkThread, News};
pub(crate) use self::memory::Shareable;
use crate::report::{KvLink, Transfers};

/// Who attaches, and where.
pub(crate) struct Attaching {
    pub socket: PathBuf,
    pub name: String,
    pub role: Role,
    pub model: String,
    pub shared: Shareable,
}

/// The driver's part of the link.
pub(crate) struct Hosted {
    books: Books,
    link: LinkThread,
    session: Option<Session>,
    kv_bytes_per_token: usize,
    attaches: u64,
    unsent: u64,
}

impl Hosted {
    /// Begins to attach, and goes on for as long as this lives.
    pub fn start(attaching: Attaching, engine: &Engine) -> std::io::Result<Self> {
        let Attaching { socket, name, role, model, shared } = attaching;
        // The thread gives each try an incarnation.
        let who = sluice_engine_sdk::Engine {
            name,
            incarnation: 0,
            rank: Rank(0),
            role,
            model,
            layout: shared.layout,
        };
        Ok(Self {
            books: Books::new(engine.config().block_tokens),
            link: LinkThread::start(socket, who, shared.slab)?,
            session: None,
            kv_bytes_per_token: engine.config().model.kv_bytes_per_token(),
            attaches: 0,
            unsent: 0,
        })
    }

    /// What is agreed with the host now.
    pub fn figures(&self) -> KvLink {
        KvLink {
            attached: self.books.is_attached,
            attaches: self.attaches,
            holds: self.books.holds.len(),
            receives: self.books.receives.len(),
            named_blocks: self.books.named.len(),
            unsent: self.unsent,
        }
    }

    /// The next thing that the host says, or that becomes of it.
    pub async fn next(&mut self) -> HostNews {
        HostNews(self.link.next().await)
    }

    /// When [`Self::expire`] has work next.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.books.next_expiry_ms().map(Duration::from_millis)
    }

    /// A request comes in, before the engine has it.
    pub fn submit(&mut self, sequence: SequenceId, wanted: Wanted, prompt: &[Token]) {
        self.books.submit(sequence, wanted, prompt.to_vec());
    }
}

/// Something that the link tells.
#[derive(Debug)]
pub(crate) struct HostNews(News);

/// What all that follows is done to.
pub(crate) struct Place<'a> {
    pub engine: &'a mut Engine,
    pub transfers: &'a mut Transfers,
    pub now: Duration,
}

impl Hosted {
    /// A sequence was admitted, and wants KV from elsewhere.
    pub fn load(&mut self, load: Load, place: &mut Place<'_>) {
        let blocks = references(place.engine, &load.blocks);
        let effects = self.books.load(load.sequence, blocks, load.first_token as u32, ms(place.now));
        self.apply(effects, place);
    }

    /// Tells the host how far prompts are. Between two steps, and not while one's time runs: what it computes is not
    /// there before it is over.
    pub fn follow(&mut self, place: &mut Place<'_>) {
        for sequence in self.books.filling() {
            let effects = match place.engine.progress(sequence) {
                Some(progress) => {
                    let blocks = || references(place.engine, progress.blocks);
                    self.books.progress(sequence, progress.computed, blocks)
                }
                None => self.books.not_running(sequence),
            };
            self.apply(effects, place);
        }
    }

    /// An answer is whole; what its leg is to say of its KV.
    pub fn finished(
        &mut self,
        sequence: SequenceId,
        kept: Option<Kept>,
        place: &mut Place<'_>,
    ) -> Option<Held> {
        let turn = kept.as_ref().map(|kept| (references(place.engine, &kept.blocks), kept.tokens.as_slice()));
        let (held, effects) = self.books.finished(sequence, turn);
        self.apply(effects, place);
        if let Some(kept) = kept {
            place.engine.release(&kept.blocks);
        }
        held
    }

    /// A sequence was aborted.
    pub fn aborted(&mut self, sequence: SequenceId, place: &mut Place<'_>) {
        let effects = self.books.aborted(sequence);
        self.apply(effects, place);
    }

    /// Gives up what did not come in its time.
    pub fn expire(&mut self, place: &mut Place<'_>) {
        let effects = self.books.expire(ms(place.now));
        self.apply(effects, place);
    }

    /// The link told something.
    pub fn happened(&mut self, news: HostNews, place: &mut Place<'_>) {
        let effects = match news.0 {
            News::Attached(session) | News::Event(Event::Attached(session)) => {
                tracing::info!(session = session.number(), "attached to the host of the KV link");
                self.session = Some(session);
                self.attaches += 1;
                self.books.attached()
            }
            News::NotAttached(why) => {
                tracing::warn!(why, "not attached to a host: no KV is held or received until then");
                return;
            }
            News::Event(Event::Host(message)) => self.books.told(message, ms(place.now)),
            News::Event(Event::Detached { why, .. }) => {
                tracing::warn!(%why, "detached from the host: what was to come is computed");
                self.session = None;
                self.books.detached(&why.to_string())
            }
            News::Event(Event::HostGone { .. }) => self.books.host_gone(),
            News::Event(Event::Waiting(why)) => {
                tracing::warn!(why, "not attached again yet");
                return;
            }
            News::Event(Event::GaveUp(error)) => {
                tracing::error!(%error, "the host does not take this engine back; it is asked again in a while");
                return;
            }
        };
        self.apply(effects, place);
    }

    /// Does what follows, and what follows from that: what cannot be said was never begun.
    fn apply(&mut self, mut effects: Effects, place: &mut Place<'_>) {
        loop {
            effects.on(place.engine);
            for end in effects.ended.drain(..) {
                self.count(end, place.transfers);
            }
            let mut next = Effects::default();
            for message in effects.say.drain(..) {
                let subject = match &message {
                    ToHost::Hold { hold } => Some(Subject::Hold(hold.id)),
                    ToHost::Receive { receive } => Some(Subject::Receive(receive.attempt)),
                    _ => None,
                };
                let Err(error) = self.say(message) else { continue };
                self.unsent += 1;
                tracing::warn!(%error, "the host could not be told");
                if let Some(subject) = subject {
                    next.extend(self.books.not_begun(subject, &error.to_string()));
                }
            }
            if next == Effects::default() {
                return;
            }
            effects = next;
        }
    }

    fn say(&self, message: ToHost) -> Result<(), SendError> {
        let session = self.session.as_ref().ok_or(SendError::Over)?;
        match message {
            ToHost::Hold { hold } => session.hold(hold),
            ToHost::Ready { id, rect } => session.ready(id, rect),
            ToHost::Filled { id } => session.filled(id),
            ToHost::Renew { id } => session.renew(id),
            ToHost::Release { id } => session.release(id),
            ToHost::Receive { receive } => session.receive(receive),
            ToHost::Abort { attempt, .. } => session.abort(attempt),
            ToHost::Confirmed { attempt, number, held } => session.confirmed(attempt, number, held),
        }
    }

    fn count(&self, end: ReceiveEnd, transfers: &mut Transfers) {
        match end {
            ReceiveEnd::Came { tokens, took_ms } => {
                transfers.read_bytes.observe((tokens as usize * self.kv_bytes_per_token) as f64);
                transfers.read_s.observe(Duration::from_millis(took_ms).as_secs_f64());
            }
            ReceiveEnd::Failed(why) => {
                tracing::warn!(why, "KV did not come and is computed");
                transfers.failed += 1;
            }
        }
    }
}

fn ms(at: Duration) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(u64::MAX)
}

/// Blocks in their present use.
fn references(engine: &Engine, blocks: &[BlockId]) -> Vec<BlockRef> {
    let reference =
        |index: &BlockId| BlockRef { index: *index, generation: engine.generation(*index).unwrap_or(0) };
    blocks.iter().map(reference).collect()
}
