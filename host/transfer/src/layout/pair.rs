//! Two layouts that can exchange KV, and which ranks talk to which.

use std::fmt::Display;

use super::geometry::Geometry;

/// Why KV of one engine is nothing for the other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "KV layouts differ: {field} is {source_value} at the source and {sink_value} at the sink; \
         pair only engines of one model and one KV element type"
)]
pub struct Mismatch {
    /// What differs.
    pub field: &'static str,
    /// At the source.
    pub source_value: String,
    /// At the sink.
    pub sink_value: String,
}

/// A source rank that has heads for a sink rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankLink {
    /// Whose slab is read.
    pub source_rank: u32,
    /// Whose slab is written.
    pub sink_rank: u32,
    /// The first of the heads, counted within the source rank.
    pub source_head: u32,
    /// The first of the heads, counted within the sink rank.
    pub sink_head: u32,
    /// How many heads.
    pub heads: u32,
}

/// A source and a sink of the same model.
#[derive(Debug, Clone)]
pub struct Pair {
    pub(super) source: Geometry,
    pub(super) sink: Geometry,
    links: Vec<RankLink>,
}

impl Pair {
    /// Refuses layouts of different models or element types; block size, ranks and order may differ.
    pub fn new(source: Geometry, sink: Geometry) -> Result<Self, Mismatch> {
        let (from, to) = (source.layout(), sink.layout());
        same("layers", from.layers, to.layers)?;
        same("planes", from.planes, to.planes)?;
        same("kv_heads", from.kv_heads, to.kv_heads)?;
        same("head_dim", from.head_dim, to.head_dim)?;
        same("element", from.element, to.element)?;
        let links = (0..to.tp_size)
            .flat_map(|sink_rank| (0..from.tp_size).map(move |source_rank| (source_rank, sink_rank)))
            .filter_map(|(source_rank, sink_rank)| link(&source, source_rank, &sink, sink_rank))
            .collect();
        Ok(Self { source, sink, links })
    }

    /// All links, by sink rank and then source rank. A sink rank has its KV when each of its links is done.
    pub fn links(&self) -> &[RankLink] {
        &self.links
    }

    /// How many links a sink rank waits for.
    pub fn links_into(&self, sink_rank: u32) -> usize {
        self.links.iter().filter(|link| link.sink_rank == sink_rank).count()
    }

    /// The source's geometry.
    pub fn source(&self) -> &Geometry {
        &self.source
    }

    /// The sink's geometry.
    pub fn sink(&self) -> &Geometry {
        &self.sink
    }
}

fn same<T: PartialEq + Display>(field: &'static str, source: T, sink: T) -> Result<(), Mismatch> {
    if source == sink {
        return Ok(());
    }
    Err(Mismatch { field, source_value: source.to_string(), sink_value: sink.to_string() })
}

/// Where heads lie on several source ranks, sink ranks that hold the same heads read from different ones.
fn link(source: &Geometry, source_rank: u32, sink: &Geometry, sink_rank: u32) -> Option<RankLink> {
    let asked = sink_rank % sink.replicas() % source.replicas();
    if source_rank % source.replicas() != asked {
        return None;
    }
    let (from, to) = (source.heads_of(source_rank), sink.heads_of(sink_rank));
    let (first, end) = (from.start.max(to.start), from.end.min(to.end));
    (first < end).then(|| RankLink {
        source_rank,
        sink_rank,
        source_head: first - from.start,
        sink_head: first - to.start,
        heads: end - first,
    })
}
