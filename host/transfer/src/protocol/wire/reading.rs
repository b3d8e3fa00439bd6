//! From bytes to messages. Every bound is checked here; what the numbers mean for a transfer, the machines check.

use super::super::limits::{MAX_BLOCKS, MAX_LINKS};
use super::super::message::{Body, End, Lease, Message, Registration};
use super::super::names::{Attempt, BlockRef, Direction, Epoch, Key, Link, Rank, TransferId, Verb};
use super::super::names::{Grid, Rect};
use super::super::names::{HoldEnd, Reason};
use super::DecodeError;
use super::cursor::Cursor;

/// Encoded bytes of a link, and of a block.
const LINK_BYTES: usize = 4;
const BLOCK_BYTES: usize = 12;

type Read<T> = Result<T, DecodeError>;

fn unknown<T>(what: &'static str, tag: u8) -> Read<T> {
    Err(DecodeError::Unknown { what, tag })
}

pub(super) fn message(from: &mut Cursor) -> Read<Message> {
    match from.u8()? {
        1 => {
            let attempt = Attempt { id: TransferId(from.u128()?), epoch: Epoch(from.u32()?) };
            Ok(Message::Transfer(attempt, body(from)?))
        }
        2 => Ok(Message::Hold(TransferId(from.u128()?), lease(from)?)),
        tag => unknown("message", tag),
    }
}

fn body(from: &mut Cursor) -> Read<Body> {
    Ok(match from.u8()? {
        1 => Body::Register(registration(from)?),
        2 => Body::Ask,
        3 => Body::Abort(reason(from)?),
        4 => Body::Confirm { number: from.u32()?, rect: rect(from)? },
        5 => Body::Done,
        16 => Body::Accepted,
        17 => Body::Offer { blocks: blocks(from)?.into(), left_ms: from.u64()? },
        18 => Body::Ready { rank: Rank(from.u16()?), rect: rect(from)? },
        19 => Body::Written { link: link(from)?, rect: rect(from)? },
        20 => Body::Confirmed { number: from.u32()?, held: flag(from)? },
        21 => Body::Ended(end(from)?),
        tag => return unknown("body", tag),
    })
}

fn lease(from: &mut Cursor) -> Read<Lease> {
    Ok(match from.u8()? {
        1 => Lease::Renew,
        2 => Lease::Release,
        3 => Lease::Left { left_ms: from.u64()? },
        tag => return unknown("lease message", tag),
    })
}

fn registration(from: &mut Cursor) -> Read<Registration> {
    Ok(Registration {
        verb: match from.u8()? {
            1 => Verb::Read,
            2 => Verb::Write,
            tag => return unknown("verb", tag),
        },
        direction: match from.u8()? {
            1 => Direction::PrefillToDecode,
            2 => Direction::DecodeToPrefill,
            tag => return unknown("direction", tag),
        },
        grid: Grid { positions: from.u32()?, layers: from.u16()? },
        wanted: rect(from)?,
        key: Key(from.u64()?),
        links: from.list("links", MAX_LINKS, LINK_BYTES, link)?,
        landing: blocks(from)?.into(),
        left_ms: from.u64()?,
    })
}

fn end(from: &mut Cursor) -> Read<End> {
    Ok(match from.u8()? {
        1 => End::Complete { cells: from.u64()? },
        2 => End::Aborted(reason(from)?),
        3 => End::Unsure(reason(from)?),
        tag => return unknown("end", tag),
    })
}

fn reason(from: &mut Cursor) -> Read<Reason> {
    Ok(match from.u8()? {
        1 => Reason::Cancelled,
        2 => Reason::Superseded,
        3 => Reason::NoFirstByte,
        4 => Reason::TooSlow,
        5 => Reason::PeerLost,
        6 => Reason::EndpointClosed,
        7 => Reason::Fabric,
        8 => Reason::Incompatible,
        9 => Reason::LeaseTooShort,
        10 => Reason::Stale,
        11 => Reason::BadReport,
        12 => Reason::Unknown,
        13 => Reason::EngineGone,
        14 => Reason::HoldEnded(HoldEnd::Delivered),
        15 => Reason::HoldEnded(HoldEnd::Released),
        16 => Reason::HoldEnded(HoldEnd::Expired),
        17 => Reason::HoldEnded(HoldEnd::Lost),
        tag => return unknown("reason", tag),
    })
}

fn rect(from: &mut Cursor) -> Read<Rect> {
    Ok(Rect { first: from.u32()?, end: from.u32()?, first_layer: from.u16()?, end_layer: from.u16()? })
}

fn link(from: &mut Cursor) -> Read<Link> {
    Ok(Link { from: Rank(from.u16()?), to: Rank(from.u16()?) })
}

fn blocks(from: &mut Cursor) -> Read<Vec<BlockRef>> {
    from.list("blocks", MAX_BLOCKS, BLOCK_BYTES, |from| {
        Ok(BlockRef { index: from.u32()?, generation: from.u64()? })
    })
}

fn flag(from: &mut Cursor) -> Read<bool> {
    match from.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        tag => unknown("flag", tag),
    }
}
