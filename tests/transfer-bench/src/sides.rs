//! Two slabs, and ways from one to the other.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use sluice_transfer::fabric::{
    Completion, Endpoint, Fabric, PeerId, Post, RegionId, ShmFabric, ShmSettings, Ticket, Verb,
};
use sluice_transfer::layout::ByteCopy;
use sluice_transfer::memory::{HugePages, Slab, Stores, finish_streams};

const PEER: PeerId = PeerId(1);
/// No transfer here takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that are marked at a time.
pub const MARKED_BYTES: usize = 1 << 20;

/// Bytes that tell where they are: those of a source at `offset`, a multiple of 8.
pub fn mark(offset: u64, part: &mut [u8]) {
    for (number, word) in (offset / 8..).zip(part.chunks_exact_mut(8)) {
        word.copy_from_slice(&(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
}

/// The memory of two engines.
pub struct Sides {
    /// Where KV is.
    pub source: Arc<Slab>,
    /// Where it goes.
    pub sink: Arc<Slab>,
}

impl Sides {
    /// Slabs of so many bytes, the source's telling where they are.
    pub fn new(bytes: u64) -> anyhow::Result<Self> {
        let slab = || Slab::create(bytes, HugePages::FromKernelOnly).map(Arc::new);
        let sides = Self { source: slab()?, sink: slab()? };
        let mut part = vec![0; MARKED_BYTES];
        for offset in (0..bytes).step_by(MARKED_BYTES) {
            mark(offset, &mut part);
            let len = part.len().min((bytes - offset) as usize);
            sides.source.write(offset, &part[..len])?;
        }
        Ok(sides)
    }

    /// On this thread; through the caches it is `memcpy`.
    pub fn copy(&self, copies: &[ByteCopy], stores: Stores) -> anyhow::Result<()> {
        for copy in copies {
            self.source.copy_to(&self.sink, *copy, stores)?;
        }
        finish_streams();
        Ok(())
    }

    /// Takes what the sink has of these copies away.
    pub fn wipe(&self, copies: &[ByteCopy]) -> anyhow::Result<()> {
        for copy in copies {
            self.sink.write(copy.sink_offset, &vec![0; copy.len as usize])?;
        }
        Ok(())
    }

    /// That the sink has these bytes.
    pub fn check(&self, copies: &[ByteCopy]) -> anyhow::Result<()> {
        for copy in copies {
            let mut bytes = [vec![0; copy.len as usize], vec![0; copy.len as usize]];
            self.source.read(copy.source_offset, &mut bytes[0])?;
            self.sink.read(copy.sink_offset, &mut bytes[1])?;
            ensure!(bytes[0] == bytes[1], "{copy:?} did not arrive");
        }
        Ok(())
    }
}

/// A fabric from one side to the other.
pub struct Way {
    fabric: ShmFabric,
    ends: Vec<Completion>,
    /// Used again by each post.
    copies: Vec<ByteCopy>,
}

impl Way {
    /// With so many copy threads.
    pub fn new(sides: &Sides, threads: usize) -> anyhow::Result<Self> {
        let fabric = ShmFabric::start(ShmSettings { threads, ..ShmSettings::default() })?;
        let endpoint =
            Endpoint { local: vec![Arc::clone(&sides.source)], remote: vec![Arc::clone(&sides.sink)] };
        fabric.open_peer(PEER, endpoint)?;
        Ok(Self { fabric, ends: Vec::new(), copies: Vec::new() })
    }

    /// Posts the copies and waits for their end.
    pub fn send(&mut self, copies: impl IntoIterator<Item = ByteCopy>) -> anyhow::Result<()> {
        let mut list = std::mem::take(&mut self.copies);
        list.clear();
        list.extend(copies);
        let (local, remote, runs_before) = (RegionId(0), RegionId(0), list.len() as u64);
        let (ticket, verb) = (Ticket(0), Verb::Write);
        self.fabric.post(Post { peer: PEER, ticket, verb, local, remote, copies: list, runs_before })?;
        self.fabric.poll(&mut self.ends, PATIENCE);
        let end = self.ends.pop().context("the post did not end")?;
        end.result?;
        self.copies = end.copies;
        Ok(())
    }
}
