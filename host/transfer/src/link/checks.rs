//! Whether what an engine says can be, by its own layout. Pure. What it means for a transfer others decide.

use sluice_engine_sdk::wire::{BlockRef, Extent, MAX_BLOCKS, Subject, ToHost, Tokens};

use crate::layout::KvLayout;
use crate::protocol::limits::MAX_WAIT_MS;

/// What is wrong with a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// A hold or transfer that cannot be: it is refused, the rest goes on.
    Description(Subject, String),
    /// A report that no working engine makes: nothing else it says can be trusted.
    Report(String),
}

pub(super) fn check(message: &ToHost, layout: &KvLayout) -> Result<(), Wrong> {
    match message {
        ToHost::Hold { hold } => {
            let subject = Subject::Hold(hold.id);
            lasts([hold.fill_ms, hold.ttl_ms, hold.margin_ms])
                .map_err(|text| Wrong::Description(subject, text))?;
            let all = Tokens { first: hold.extent.first_token, end: hold.extent.end_token };
            describes(hold.extent, all, (&hold.blocks, hold.first_token), layout)
                .map_err(|text| Wrong::Description(subject, text))
        }
        ToHost::Receive { receive } => {
            let subject = Subject::Receive(receive.attempt);
            lasts([receive.first_byte_ms, receive.whole_ms])
                .map_err(|text| Wrong::Description(subject, text))?;
            let place = (receive.blocks.as_slice(), receive.first_token);
            describes(receive.extent, receive.wanted, place, layout)
                .map_err(|text| Wrong::Description(subject, text))
        }
        ToHost::Ready { rect, .. } => {
            let fits = u32::from(rect.end_layer) <= layout.layers && rect.end as usize <= MAX_BLOCKS;
            if fits && !rect.is_empty() {
                return Ok(());
            }
            Err(Wrong::Report(format!("ready is {rect:?}, of {} layers", layout.layers)))
        }
        ToHost::Filled { .. }
        | ToHost::Renew { .. }
        | ToHost::Release { .. }
        | ToHost::Abort { .. }
        | ToHost::Confirmed { .. } => Ok(()),
    }
}

fn lasts<const N: usize>(times_ms: [u64; N]) -> Result<(), String> {
    match times_ms.into_iter().find(|ms| *ms > MAX_WAIT_MS) {
        Some(ms) => Err(format!("a time of {ms} ms, of at most {MAX_WAIT_MS}")),
        None => Ok(()),
    }
}

fn describes(
    extent: Extent,
    wanted: Tokens,
    (blocks, first_token): (&[BlockRef], u32),
    layout: &KvLayout,
) -> Result<(), String> {
    let Some(cells) = extent.cells(wanted, layout.layers) else {
        return Err(format!(
            "{wanted:?} of {extent:?}, of at most {MAX_BLOCKS} positions and {} layers",
            layout.layers
        ));
    };
    // Whole positions come.
    let comes = extent.tokens(cells);
    let comes = Tokens { first: comes.start, end: comes.end };
    if !Extent::are_held_by(comes, first_token, blocks.len(), layout.block_tokens) {
        return Err(format!(
            "{} blocks of {} tokens from token {first_token} on do not hold {comes:?}",
            blocks.len(),
            layout.block_tokens
        ));
    }
    let mut indexes: Vec<u32> = blocks.iter().map(|block| block.index).collect();
    indexes.sort_unstable();
    match (indexes.last(), indexes.windows(2).find(|pair| pair[0] == pair[1])) {
        (Some(last), _) if *last >= layout.blocks => {
            Err(format!("block {last} of a slab of {} blocks", layout.blocks))
        }
        (_, Some(pair)) => Err(format!("block {} is named twice", pair[0])),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use sluice_engine_sdk::wire::{Grid, NewHold, Rect, TransferId};

    use super::*;
    use crate::layout::{Element, HeadOrder, Order, Planes};

    const LAYOUT: KvLayout = KvLayout {
        blocks: 8,
        block_tokens: 4,
        layers: 2,
        planes: Planes::KeyValue,
        kv_heads: 1,
        head_dim: 16,
        element: Element::Bf16,
        tp_size: 1,
        order: Order::BlockLayerPlane,
        head_order: HeadOrder::HeadsOutermost,
    };

    #[test]
    fn a_description_names_blocks_of_the_slab_once_and_layers_that_there_are() {
        let cases = [
            (0, 8, 4, vec![0, 7], None),
            (0, 5, 4, vec![0, 7], None),
            (4, 6, 1, vec![3, 2], None),
            (0, 8, 4, vec![0, 8], Some("block 8 of a slab of 8 blocks")),
            (0, 12, 4, vec![4, 1, 4], Some("block 4 is named twice")),
            (0, 9, 4, vec![4, 1], Some("do not hold")),
            (0, 4, 4, vec![], Some("do not hold")),
            (0, 0, 4, vec![1], Some("Extent")),
            (2, 1, 4, vec![1], Some("Extent")),
            (0, 4, 0, vec![1], Some("Extent")),
            (0, MAX_BLOCKS as u32 + 1, 1, vec![1], Some("Extent")),
        ];
        for (first_token, end_token, position_tokens, indexes, wrong) in cases {
            let blocks = indexes.into_iter().map(|index| BlockRef { index, generation: 1 }).collect();
            let (id, extent) = (TransferId(1), Extent { first_token, end_token, position_tokens });
            let hold = NewHold {
                id,
                extent,
                blocks,
                first_token: 0,
                proofs: Vec::new(),
                fill_ms: 1,
                ttl_ms: 1,
                renewable: true,
                margin_ms: 0,
            };
            match (check(&ToHost::Hold { hold }, &LAYOUT), wrong) {
                (Ok(()), None) => {}
                (Err(Wrong::Description(Subject::Hold(TransferId(1)), text)), Some(part))
                    if text.contains(part) => {}
                (checked, wrong) => panic!("{checked:?} for {wrong:?}"),
            }
        }
    }

    #[test]
    fn readiness_is_of_something() {
        let whole = Grid { positions: 4, layers: 2 }.whole();
        let ready = |rect| check(&ToHost::Ready { id: TransferId(1), rect }, &LAYOUT);
        assert_eq!(ready(whole), Ok(()));
        for rect in [
            Rect { end: 0, ..whole },
            Rect { first: 4, ..whole },
            Rect { first_layer: 2, ..whole },
            Rect { end_layer: 3, ..whole },
            Rect { end: u32::MAX, ..whole },
        ] {
            assert!(matches!(ready(rect), Err(Wrong::Report(_))), "{rect:?}");
        }
    }
}
