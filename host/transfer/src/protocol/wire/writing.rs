//! From messages to bytes. The numbers here are the wire's: they are never given another meaning.

use super::super::message::{Body, End, Lease, Message, Registration};
use super::super::names::Rect;
use super::super::names::{BlockRef, Direction, Link, Verb};
use super::super::names::{HoldEnd, Reason};

pub(super) fn message(message: &Message, out: &mut Vec<u8>) {
    match message {
        Message::Transfer(attempt, about) => {
            out.push(1);
            out.extend(attempt.id.0.to_le_bytes());
            out.extend(attempt.epoch.0.to_le_bytes());
            body(about, out);
        }
        Message::Hold(id, about) => {
            out.push(2);
            out.extend(id.0.to_le_bytes());
            lease(*about, out);
        }
    }
}

fn body(body: &Body, out: &mut Vec<u8>) {
    match body {
        Body::Register(asked) => {
            out.push(1);
            registration(asked, out);
        }
        Body::Ask => out.push(2),
        Body::Abort(why) => {
            out.push(3);
            reason(*why, out);
        }
        Body::Confirm { number, rect: part } => {
            out.push(4);
            out.extend(number.to_le_bytes());
            rect(*part, out);
        }
        Body::Done => out.push(5),
        Body::Accepted => out.push(16),
        Body::Offer { blocks: refs, left_ms } => {
            out.push(17);
            blocks(refs, out);
            out.extend(left_ms.to_le_bytes());
        }
        Body::Ready { rank, rect: part } => {
            out.push(18);
            out.extend(rank.0.to_le_bytes());
            rect(*part, out);
        }
        Body::Written { link: of, rect: part } => {
            out.push(19);
            link(*of, out);
            rect(*part, out);
        }
        Body::Confirmed { number, held } => {
            out.push(20);
            out.extend(number.to_le_bytes());
            out.push(u8::from(*held));
        }
        Body::Ended(how) => {
            out.push(21);
            end(*how, out);
        }
    }
}

fn lease(lease: Lease, out: &mut Vec<u8>) {
    match lease {
        Lease::Renew => out.push(1),
        Lease::Release => out.push(2),
        Lease::Left { left_ms } => {
            out.push(3);
            out.extend(left_ms.to_le_bytes());
        }
    }
}

fn registration(asked: &Registration, out: &mut Vec<u8>) {
    out.push(match asked.verb {
        Verb::Read => 1,
        Verb::Write => 2,
    });
    out.push(match asked.direction {
        Direction::PrefillToDecode => 1,
        Direction::DecodeToPrefill => 2,
    });
    out.extend(asked.grid.positions.to_le_bytes());
    out.extend(asked.grid.layers.to_le_bytes());
    rect(asked.wanted, out);
    out.extend(asked.key.0.to_le_bytes());
    count(asked.links.len(), out);
    asked.links.iter().for_each(|of| link(*of, out));
    blocks(&asked.landing, out);
    out.extend(asked.left_ms.to_le_bytes());
}

fn end(end: End, out: &mut Vec<u8>) {
    match end {
        End::Complete { cells } => {
            out.push(1);
            out.extend(cells.to_le_bytes());
        }
        End::Aborted(why) => {
            out.push(2);
            reason(why, out);
        }
        End::Unsure(why) => {
            out.push(3);
            reason(why, out);
        }
    }
}

fn reason(reason: Reason, out: &mut Vec<u8>) {
    out.push(match reason {
        Reason::Cancelled => 1,
        Reason::Superseded => 2,
        Reason::NoFirstByte => 3,
        Reason::TooSlow => 4,
        Reason::PeerLost => 5,
        Reason::EndpointClosed => 6,
        Reason::Fabric => 7,
        Reason::Incompatible => 8,
        Reason::LeaseTooShort => 9,
        Reason::Stale => 10,
        Reason::BadReport => 11,
        Reason::Unknown => 12,
        Reason::EngineGone => 13,
        Reason::HoldEnded(HoldEnd::Delivered) => 14,
        Reason::HoldEnded(HoldEnd::Released) => 15,
        Reason::HoldEnded(HoldEnd::Expired) => 16,
        Reason::HoldEnded(HoldEnd::Lost) => 17,
    });
}

fn rect(rect: Rect, out: &mut Vec<u8>) {
    out.extend(rect.first.to_le_bytes());
    out.extend(rect.end.to_le_bytes());
    out.extend(rect.first_layer.to_le_bytes());
    out.extend(rect.end_layer.to_le_bytes());
}

fn link(link: Link, out: &mut Vec<u8>) {
    out.extend(link.from.0.to_le_bytes());
    out.extend(link.to.0.to_le_bytes());
}

fn blocks(refs: &[BlockRef], out: &mut Vec<u8>) {
    count(refs.len(), out);
    for block in refs {
        out.extend(block.index.to_le_bytes());
        out.extend(block.generation.to_le_bytes());
    }
}

/// The bounds on lists lie far below 2^32; one that does not fit is refused by its reader.
fn count(len: usize, out: &mut Vec<u8>) {
    out.extend(u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
}
