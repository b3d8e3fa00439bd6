//! The KV slab as the host sees it.

use std::sync::Arc;

use sluice_engine_sdk::wire::{Element, HeadOrder, KvLayout, Order, Planes};
use sluice_engine_sdk::{Slab, SlabError};
use sluice_sim::EngineConfig;
use sluice_sim::slab::KvMemory;

use super::books::LAYERS;

/// A slab that the host maps too, as memory of the engine model.
#[derive(Debug)]
struct SharedMemory(Arc<Slab>);

impl KvMemory for SharedMemory {
    fn len_bytes(&self) -> usize {
        // What is mapped fits a usize.
        self.0.bytes() as usize
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        let read = self.0.read(offset as u64, into);
        debug_assert!(read.is_ok(), "the engine keeps within its memory: {read:?}");
    }

    fn write(&mut self, offset: usize, from: &[u8]) {
        let written = self.0.write(offset as u64, from);
        debug_assert!(written.is_ok(), "the engine keeps within its memory: {written:?}");
    }
}

/// How an engine's KV lies: an entry is one latent of one layer, `kv_bytes_per_token` bytes one after the other.
fn layout(config: &EngineConfig) -> KvLayout {
    KvLayout {
        blocks: config.blocks as u32,
        block_tokens: config.block_tokens as u32,
        layers: LAYERS.into(),
        planes: Planes::Latent,
        kv_heads: 1,
        head_dim: config.model.kv_bytes_per_token() as u32,
        element: Element::Int8,
        tp_size: 1,
        order: Order::BlockLayerPlane,
        head_order: HeadOrder::TokensOutermost,
    }
}

/// Memory for an engine and its host.
#[derive(Debug)]
pub(crate) struct Shareable {
    pub slab: Arc<Slab>,
    pub layout: KvLayout,
}

impl Shareable {
    /// New memory, of the size that the engine needs.
    pub fn create(config: &EngineConfig) -> Result<Self, SlabError> {
        let layout = layout(config);
        let slab = Arc::new(Slab::create(layout.rank_bytes().unwrap_or(u64::MAX))?);
        Ok(Self { slab, layout })
    }

    /// The engine's way to it.
    pub fn memory(&self) -> Box<dyn KvMemory> {
        Box::new(SharedMemory(Arc::clone(&self.slab)))
    }
}
