//! An engine in a process of its own: attaches its memory by the KV link and hands over what it is told to.
//!
//! Orders are lines on its standard input: `hold ID BYTES RUN`, `write ID BYTES RUN` and `read ID BYTES RUN` (it
//! receives), `wipe`, `check BYTES RUN`. It ends when they do.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use sluice_engine_sdk::wire::{
    Attempt, Direction, EngineId, Epoch, NewHold, NewReceive, Rank, Role, ToEngine, Tokens, TransferId, Verb,
};
use sluice_engine_sdk::{Engine, EngineLink, Event, Session, Settings, Slab, incarnation_now};

use super::sequence::{Sequence, layout};
use crate::sides::{MARKED_BYTES, mark};

/// The engine that has the KV.
pub const PREFILL: &str = "prefill";
/// The engine that wants it.
pub const DECODE: &str = "decode";
/// Blocks are used by one transfer at a time here, and by none before the last one is over.
const GENERATION: u64 = 1;
/// No transfer here takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Obeys until there are no more orders.
pub fn run(socket: &Path, name: &str, slab_bytes: u64) -> anyhow::Result<()> {
    let slab = Arc::new(Slab::create(slab_bytes)?);
    let mut part = vec![0; MARKED_BYTES];
    for offset in (0..slab_bytes).step_by(MARKED_BYTES).filter(|_| name == PREFILL) {
        mark(offset, &mut part);
        slab.write(offset, &part)?;
    }
    let engine = Engine {
        name: name.to_owned(),
        incarnation: incarnation_now(),
        rank: Rank(0),
        role: if name == PREFILL { Role::Prefill } else { Role::Decode },
        model: "bench".to_owned(),
        layout: layout(slab_bytes),
    };
    let (link, session) = EngineLink::attach(socket, engine, Arc::clone(&slab), Settings::default())?;
    let attached = Engaged { slab, link, session };
    say("ready")?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        attached.obey(&line).with_context(|| format!("engine {name}, told to `{line}`"))?;
    }
    Ok(())
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn numbered(text: &str) -> anyhow::Result<(u64, Sequence)> {
    let (id, sequence) = text.split_once(' ').context("an id and a sequence are needed")?;
    Ok((id.parse()?, sequence.parse()?))
}

struct Engaged {
    slab: Arc<Slab>,
    link: EngineLink,
    session: Session,
}

impl Engaged {
    fn obey(&self, line: &str) -> anyhow::Result<()> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "hold" => {
                let (id, sequence) = numbered(rest)?;
                self.hold(id, sequence)?;
                say("done")?;
                self.until(|told| matches!(told, ToEngine::Freed { .. }))
            }
            "write" | "read" => {
                let (id, sequence) = numbered(rest)?;
                let verb = if word == "write" { Verb::Write } else { Verb::Read };
                let took = self.receive(verb, id, sequence)?;
                say(&format!("took {}", took.as_nanos()))
            }
            "wipe" => self.wipe().and_then(|()| say("done")),
            "check" => self.check(rest.parse()?).and_then(|()| say("done")),
            _ => bail!("no such order"),
        }
    }

    /// Offers a sequence.
    fn hold(&self, id: u64, sequence: Sequence) -> anyhow::Result<()> {
        let id = TransferId(id.into());
        self.session.hold(NewHold {
            id,
            extent: sequence.extent(),
            blocks: sequence.source(GENERATION),
            first_token: 0,
            proofs: Vec::new(),
            fill_ms: 60_000,
            ttl_ms: 60_000,
            renewable: false,
            margin_ms: 1_000,
        })?;
        Ok(self.session.filled(id)?)
    }

    /// Receives it: the time from asking for it until it is here.
    fn receive(&self, verb: Verb, id: u64, sequence: Sequence) -> anyhow::Result<Duration> {
        let attempt = Attempt { id: TransferId(id.into()), epoch: Epoch(1) };
        let extent = sequence.extent();
        let receive = NewReceive {
            attempt,
            source: EngineId::of_name(PREFILL),
            verb,
            direction: Direction::PrefillToDecode,
            extent,
            wanted: Tokens { first: extent.first_token, end: extent.end_token },
            blocks: sequence.sink(GENERATION),
            first_token: 0,
            proofs: Vec::new(),
            first_byte_ms: 30_000,
            whole_ms: 60_000,
        };
        let began = Instant::now();
        self.session.receive(receive)?;
        self.until(|told| *told == ToEngine::Completed { attempt })?;
        Ok(began.elapsed())
    }

    fn until(&self, awaited: impl Fn(&ToEngine) -> bool) -> anyhow::Result<()> {
        loop {
            match self.link.poll_event(PATIENCE)?.context("an event that was due did not come")? {
                Event::Host(told) if awaited(&told) => return Ok(()),
                // Asked of a prefill whose blocks were read: nobody else has had them.
                Event::Host(ToEngine::Confirm { attempt, number, .. }) => {
                    self.session.confirmed(attempt, number, true)?;
                }
                Event::Host(told) => {
                    let failed = matches!(told, ToEngine::Failed { .. } | ToEngine::Refused { .. });
                    ensure!(!failed, "the host says {told:?}");
                }
                other => bail!("the link: {other:?}"),
            }
        }
    }

    fn wipe(&self) -> anyhow::Result<()> {
        let zeros = vec![0; MARKED_BYTES];
        for offset in (0..self.slab.bytes()).step_by(MARKED_BYTES) {
            self.slab.write(offset, &zeros)?;
        }
        Ok(())
    }

    /// That it is here, byte by byte.
    fn check(&self, sequence: Sequence) -> anyhow::Result<()> {
        let mut bytes = [vec![0; sequence.run_bytes as usize], vec![0; sequence.run_bytes as usize]];
        for copy in sequence.copies() {
            mark(copy.source_offset, &mut bytes[0]);
            self.slab.read(copy.sink_offset, &mut bytes[1])?;
            ensure!(bytes[0] == bytes[1], "{copy:?} did not arrive");
        }
        Ok(())
    }
}
