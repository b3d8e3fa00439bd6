//! Engines that give this host their KV memory, as a pool's workers know them: only those take part in transfers that the
//! host makes. And what their layouts say to whoever decides: which of them can exchange KV, and in what steps.

use std::sync::Arc;

use sluice_core::facts::Role;
use sluice_engine_sdk::wire::{self, KvLayout};
use sluice_transfer::layout::{Geometry, Mismatch, Pair};
use sluice_transfer::node::AttachedEngine;
use sluice_transfer::protocol::Peer;

use super::{Pool, Worker};

/// How a worker's engine stands to this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Attachment {
    /// It is not attached.
    #[default]
    Missing,
    /// It is attached, and is not what the configuration says: nothing is moved from it or to it.
    Unfit(Arc<str>),
    /// The host moves its KV.
    Attached(Arc<AttachedEngine>),
}

impl Attachment {
    /// What a worker of this role, in a pool of this model, is to make of an engine of its name.
    fn of(engine: Option<&AttachedEngine>, role: Role, model: &str) -> Self {
        let Some(engine) = engine else { return Self::Missing };
        let name = &engine.name;
        if engine.model != model {
            let says = &engine.model;
            return Self::Unfit(
                format!("engine {name:?} says that it serves {says:?}, not {model:?}").into(),
            );
        }
        let fits = match role {
            Role::Unified => true,
            Role::Prefill => engine.role != wire::Role::Decode,
            Role::Decode => engine.role != wire::Role::Prefill,
        };
        if !fits {
            let role = role.name();
            return Self::Unfit(
                format!("engine {name:?} says that it is for {:?}, not for {role}", engine.role).into(),
            );
        }
        Self::Attached(Arc::new(engine.clone()))
    }

    /// Its engine, if the host moves its KV.
    pub fn engine(&self) -> Option<&Arc<AttachedEngine>> {
        match self {
            Self::Attached(engine) => Some(engine),
            Self::Missing | Self::Unfit(_) => None,
        }
    }
}

impl Pool {
    /// Takes in which engines are attached now. What is amiss with one, if that is news, is returned.
    pub fn see_attached(&self, engines: &[AttachedEngine]) -> Vec<Arc<str>> {
        let mut amiss = Vec::new();
        let mut has_changed = false;
        for worker in &self.workers {
            let Some(name) = &worker.engine else { continue };
            let engine = engines.iter().find(|engine| engine.name == *name);
            let now = Attachment::of(engine, worker.role, &self.config.model);
            let mut seen = worker.seen();
            if seen.attachment != now {
                if let Attachment::Unfit(why) = &now {
                    amiss.push(why.clone());
                }
                seen.attachment = now;
                seen.ignores_transfers = false;
                has_changed = true;
            }
        }
        if has_changed {
            self.publish();
        }
        amiss
    }

    /// Two attached engines of its workers that cannot exchange KV, and why.
    pub fn layouts_apart(&self) -> Option<(String, String, Mismatch)> {
        let attached: Vec<_> = self.workers.iter().filter_map(|worker| worker.attached_engine()).collect();
        let (first, others) = attached.split_first()?;
        others.iter().find_map(|other| {
            let apart = mismatch(&first.layout, &other.layout)?;
            Some((first.name.clone(), other.name.clone(), apart))
        })
    }
}

impl Worker {
    /// Its engine, if the host moves its KV.
    pub fn attached_engine(&self) -> Option<Arc<AttachedEngine>> {
        self.seen().attachment.engine().cloned()
    }

    /// Which life of its engine that is.
    pub fn life(&self) -> Option<Peer> {
        self.seen().attachment.engine().map(|engine| engine.peer)
    }

    /// Whether it takes part in transfers only if its engine is attached to this host.
    pub fn needs_attachment(&self) -> bool {
        self.engine.is_some() && self.role != Role::Unified
    }
}

/// What the layouts of a table's engines mean for its requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layouts {
    /// The KV layout group of each row. One that is not attached is of the first: it moves nothing with anybody.
    pub groups: Vec<u16>,
    /// Tokens of a position of a transfer: divides all block sizes. `None` if nobody is attached.
    pub position_tokens: Option<u32>,
    /// KV bytes of a token, over all layers and ranks, of the first that is attached.
    pub bytes_per_token: Option<u32>,
}

impl Layouts {
    /// Of the layouts of a table's rows, as far as they are attached.
    pub fn of(rows: &[Option<KvLayout>]) -> Self {
        let mut kinds: Vec<KvLayout> = Vec::new();
        let mut groups = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(layout) = row else {
                groups.push(0);
                continue;
            };
            let known = kinds.iter().position(|kind| mismatch(kind, layout).is_none());
            let group = known.unwrap_or_else(|| {
                kinds.push(*layout);
                kinds.len() - 1
            });
            groups.push(u16::try_from(group).unwrap_or(u16::MAX));
        }
        let block_tokens = rows.iter().flatten().map(|layout| layout.block_tokens);
        Self {
            groups,
            position_tokens: block_tokens.reduce(greatest_common_divisor),
            bytes_per_token: kinds.first().and_then(bytes_per_token),
        }
    }
}

/// Why two layouts make no pair.
fn mismatch(one: &KvLayout, other: &KvLayout) -> Option<Mismatch> {
    // The link lets in only what was checked.
    let (one, other) = (Geometry::new(*one).ok()?, Geometry::new(*other).ok()?);
    Pair::new(one, other).err()
}

fn bytes_per_token(layout: &KvLayout) -> Option<u32> {
    let counts = [layout.layers, layout.kv_heads, layout.head_dim].map(u64::from);
    let bytes = layout.planes.count() * layout.element.bytes();
    let all = counts.into_iter().try_fold(bytes, u64::checked_mul)?;
    u32::try_from(all).ok()
}

fn greatest_common_divisor(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

#[cfg(test)]
pub(crate) mod tests {
    use sluice_engine_sdk::wire::{Element, EngineId, HeadOrder, Order, Planes};

    use super::*;

    const LAYOUT: KvLayout = KvLayout {
        blocks: 64,
        block_tokens: 16,
        layers: 4,
        planes: Planes::KeyValue,
        kv_heads: 8,
        head_dim: 32,
        element: Element::Bf16,
        tp_size: 2,
        order: Order::LayerPlaneBlock,
        head_order: HeadOrder::TokensOutermost,
    };

    #[test]
    fn layouts_that_exchange_kv_are_of_one_group() {
        let larger = KvLayout { block_tokens: 24, tp_size: 1, order: Order::BlockLayerPlane, ..LAYOUT };
        let other = KvLayout { element: Element::Fp8E4m3, ..LAYOUT };
        for (rows, groups, position_tokens, bytes_per_token) in [
            (vec![], vec![], None, None),
            (vec![None, None], vec![0, 0], None, None),
            (vec![Some(LAYOUT), Some(larger), None], vec![0, 0, 0], Some(8), Some(4_096)),
            (vec![None, Some(other), Some(LAYOUT), Some(other)], vec![0, 0, 1, 0], Some(16), Some(2_048)),
        ] {
            assert_eq!(Layouts::of(&rows), Layouts { groups, position_tokens, bytes_per_token }, "{rows:?}");
        }
    }

    /// An engine, for tests of what others make of one.
    pub fn attached() -> AttachedEngine {
        AttachedEngine {
            name: "e".to_owned(),
            peer: Peer { engine: EngineId::of_name("e"), incarnation: 1 },
            role: wire::Role::Unified,
            model: "m".to_owned(),
            layout: LAYOUT,
            pids: vec![1],
            slab_bytes: 1,
        }
    }

    #[test]
    fn an_engine_that_is_not_what_the_file_says_moves_nothing() {
        let engine = |role| AttachedEngine { role, ..attached() };
        for (says, role, model, why) in [
            (wire::Role::Prefill, Role::Prefill, "m", None),
            (wire::Role::Unified, Role::Decode, "m", None),
            (wire::Role::Decode, Role::Unified, "m", None),
            (
                wire::Role::Decode,
                Role::Prefill,
                "m",
                Some("engine \"e\" says that it is for Decode, not for prefill"),
            ),
            (
                wire::Role::Prefill,
                Role::Decode,
                "m",
                Some("engine \"e\" says that it is for Prefill, not for decode"),
            ),
            (
                wire::Role::Decode,
                Role::Decode,
                "n",
                Some("engine \"e\" says that it serves \"m\", not \"n\""),
            ),
        ] {
            let engine = engine(says);
            let expected = match why {
                Some(why) => Attachment::Unfit(why.into()),
                None => Attachment::Attached(Arc::new(engine.clone())),
            };
            assert_eq!(Attachment::of(Some(&engine), role, model), expected);
            assert_eq!(Attachment::of(None, role, model), Attachment::Missing);
        }
    }
}
