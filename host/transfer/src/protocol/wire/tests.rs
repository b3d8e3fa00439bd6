use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::protocol::limits::{MAX_BLOCKS, MAX_LINKS};
use crate::protocol::{
    Attempt, BlockRef, Body, Direction, End, EngineId, Epoch, Grid, HoldEnd, Key, Lease, Link, Peer, Rank,
    Reason, Rect, Registration, TransferId, Verb,
};

fn rect() -> impl Strategy<Value = Rect> {
    any::<(u32, u32, u16, u16)>().prop_map(|(first, end, first_layer, end_layer)| Rect {
        first,
        end,
        first_layer,
        end_layer,
    })
}

fn link() -> impl Strategy<Value = Link> {
    any::<(u16, u16)>().prop_map(|(from, to)| Link { from: Rank(from), to: Rank(to) })
}

fn blocks() -> impl Strategy<Value = std::sync::Arc<[BlockRef]>> {
    vec(any::<(u32, u64)>().prop_map(|(index, generation)| BlockRef { index, generation }), 0..20)
        .prop_map(Into::into)
}

fn reason() -> impl Strategy<Value = Reason> {
    prop::sample::select(vec![
        Reason::Cancelled,
        Reason::Superseded,
        Reason::NoFirstByte,
        Reason::TooSlow,
        Reason::PeerLost,
        Reason::EndpointClosed,
        Reason::Fabric,
        Reason::Incompatible,
        Reason::LeaseTooShort,
        Reason::Stale,
        Reason::BadReport,
        Reason::Unknown,
        Reason::EngineGone,
        Reason::HoldEnded(HoldEnd::Delivered),
        Reason::HoldEnded(HoldEnd::Released),
        Reason::HoldEnded(HoldEnd::Expired),
        Reason::HoldEnded(HoldEnd::Lost),
    ])
}

fn registration() -> impl Strategy<Value = Registration> {
    let verb = prop::sample::select(vec![Verb::Read, Verb::Write]);
    let direction = prop::sample::select(vec![Direction::PrefillToDecode, Direction::DecodeToPrefill]);
    let numbers = any::<(u32, u16, u64, u64)>();
    (verb, direction, numbers, rect(), vec(link(), 0..MAX_LINKS), blocks()).prop_map(
        |(verb, direction, (positions, layers, key, left_ms), wanted, links, landing)| Registration {
            verb,
            direction,
            grid: Grid { positions, layers },
            wanted,
            key: Key(key),
            links,
            landing,
            left_ms,
        },
    )
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        registration().prop_map(Body::Register),
        Just(Body::Ask),
        reason().prop_map(Body::Abort),
        (any::<u32>(), rect()).prop_map(|(number, rect)| Body::Confirm { number, rect }),
        Just(Body::Done),
        Just(Body::Accepted),
        (blocks(), any::<u64>()).prop_map(|(blocks, left_ms)| Body::Offer { blocks, left_ms }),
        (any::<u16>(), rect()).prop_map(|(rank, rect)| Body::Ready { rank: Rank(rank), rect }),
        (link(), rect()).prop_map(|(link, rect)| Body::Written { link, rect }),
        any::<(u32, bool)>().prop_map(|(number, held)| Body::Confirmed { number, held }),
        any::<u64>().prop_map(|cells| Body::Ended(End::Complete { cells })),
        reason().prop_map(|reason| Body::Ended(End::Aborted(reason))),
        reason().prop_map(|reason| Body::Ended(End::Unsure(reason))),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let lease = prop_oneof![
        Just(Lease::Renew),
        Just(Lease::Release),
        any::<u64>().prop_map(|left_ms| Lease::Left { left_ms })
    ];
    prop_oneof![
        4 => (any::<(u128, u32)>(), body()).prop_map(|((id, epoch), body)| {
            Message::Transfer(Attempt { id: TransferId(id), epoch: Epoch(epoch) }, body)
        }),
        1 => (any::<u128>(), lease).prop_map(|(id, lease)| Message::Hold(TransferId(id), lease)),
    ]
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn what_is_written_is_read(message in message()) {
        prop_assert_eq!(decode(&encoded(&message)), Ok(message));
    }

    #[test]
    fn a_message_cut_short_or_drawn_out_is_refused(message in message(), cut in any::<prop::sample::Index>()) {
        let mut bytes = encoded(&message);
        prop_assert!(decode(&bytes[..cut.index(bytes.len())]).is_err());
        bytes.push(0);
        prop_assert_eq!(decode(&bytes), Err(DecodeError::Trailing(1)));
    }

    /// Whatever is read is a message that is written just so: there is one form of each.
    #[test]
    fn bytes_that_are_anything_are_refused_or_read(
        message in message(),
        flips in vec(any::<(prop::sample::Index, u8)>(), 0..6),
        noise in vec(any::<u8>(), 0..80),
    ) {
        let mut bent = encoded(&message);
        for (at, value) in flips {
            let at = at.index(bent.len());
            bent[at] = value;
        }
        for bytes in [bent, noise] {
            if let Ok(message) = decode(&bytes) {
                prop_assert_eq!(encoded(&message), bytes);
            }
        }
    }
}

#[test]
fn the_largest_message_fits_and_no_larger_list_is_read() {
    let attempt = Attempt { id: TransferId(7), epoch: Epoch(1) };
    let offer = |count: usize| {
        let blocks = vec![BlockRef { index: 1, generation: 2 }; count].into();
        encoded(&Message::Transfer(attempt, Body::Offer { blocks, left_ms: 9 }))
    };
    let largest = offer(MAX_BLOCKS);
    assert!(largest.len() <= MAX_MESSAGE_BYTES);
    assert!(decode(&largest).is_ok());
    let count = u32::try_from(MAX_BLOCKS + 1).unwrap();
    let refused = DecodeError::TooMany { what: "blocks", count, limit: MAX_BLOCKS };
    assert_eq!(decode(&offer(MAX_BLOCKS + 1)), Err(refused));
    let huge = vec![0; MAX_MESSAGE_BYTES + 1];
    assert_eq!(decode(&huge), Err(DecodeError::TooLong(huge.len())));
}

#[test]
fn hellos_agree_on_the_newest_common_version_or_say_why_not() {
    let peer = Peer { engine: EngineId(3), incarnation: 4 };
    let hello = |oldest, newest| Hello { peer, oldest, newest };
    let cases = [
        ((1, 1), (1, 1), Some(1)),
        ((1, 3), (2, 5), Some(3)),
        ((1, 2), (3, 4), None),
        ((5, 6), (1, 4), None),
    ];
    for (ours, theirs, agreed) in cases {
        let (ours, theirs) = (hello(ours.0, ours.1), hello(theirs.0, theirs.1));
        assert_eq!(ours.agree(&theirs).ok(), agreed, "{ours:?} {theirs:?}");
        let bytes: [u8; HELLO_BYTES] = ours.encode().try_into().unwrap();
        assert_eq!(Hello::decode(&bytes), Ok(ours));
    }
    assert_eq!(Hello::decode(&[b'x'; HELLO_BYTES]), Err(HelloError::NotOurs));
}
