//! What must hold for any message and for any bytes.

use proptest::prelude::*;

use super::*;

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,40}"
}

fn blocks() -> impl Strategy<Value = Vec<BlockRef>> {
    let block = any::<(u32, u64)>().prop_map(|(index, generation)| BlockRef { index, generation });
    prop::collection::vec(block, 0..40)
}

fn attempt() -> impl Strategy<Value = Attempt> {
    any::<(u128, u32)>().prop_map(|(id, epoch)| Attempt { id: TransferId(id), epoch: Epoch(epoch) })
}

fn rect() -> impl Strategy<Value = Rect> {
    any::<(u32, u32, u16, u16)>().prop_map(|(first, end, first_layer, end_layer)| Rect {
        first,
        end,
        first_layer,
        end_layer,
    })
}

fn extent() -> impl Strategy<Value = Extent> {
    any::<[u32; 3]>().prop_map(|[first_token, end_token, position_tokens]| Extent {
        first_token,
        end_token,
        position_tokens,
    })
}

fn some_proofs() -> impl Strategy<Value = Vec<Proof>> {
    prop::collection::vec(any::<[u8; 16]>().prop_map(Proof), 0..20)
}

fn reason() -> impl Strategy<Value = Reason> {
    use Reason::*;
    prop::sample::select(vec![
        Cancelled,
        Superseded,
        NoFirstByte,
        TooSlow,
        PeerLost,
        EndpointClosed,
        Fabric,
        Incompatible,
        LeaseTooShort,
        Stale,
        BadReport,
        Unknown,
        EngineGone,
        HoldEnded(HoldEnd::Delivered),
        HoldEnded(HoldEnd::Released),
        HoldEnded(HoldEnd::Expired),
        HoldEnded(HoldEnd::Lost),
    ])
}

fn new_hold() -> impl Strategy<Value = NewHold> {
    (any::<(u128, u32)>(), extent(), blocks(), some_proofs(), any::<[u64; 3]>(), any::<bool>()).prop_map(
        |((id, first_token), extent, blocks, proofs, [fill_ms, ttl_ms, margin_ms], renewable)| NewHold {
            id: TransferId(id),
            extent,
            blocks,
            first_token,
            proofs,
            fill_ms,
            ttl_ms,
            renewable,
            margin_ms,
        },
    )
}

fn new_receive() -> impl Strategy<Value = NewReceive> {
    let tokens = any::<[u32; 3]>();
    (
        attempt(),
        any::<u128>(),
        any::<[bool; 2]>(),
        extent(),
        tokens,
        blocks(),
        some_proofs(),
        any::<[u64; 2]>(),
    )
        .prop_map(
            |(attempt, source, [reads, forward], extent, [first, end, first_token], blocks, proofs, ms)| {
                NewReceive {
                    attempt,
                    source: EngineId(source),
                    verb: if reads { Verb::Read } else { Verb::Write },
                    direction: if forward { Direction::PrefillToDecode } else { Direction::DecodeToPrefill },
                    extent,
                    wanted: Tokens { first, end },
                    blocks,
                    first_token,
                    proofs,
                    first_byte_ms: ms[0],
                    whole_ms: ms[1],
                }
            },
        )
}

fn to_host() -> impl Strategy<Value = ToHost> {
    let id = any::<u128>().prop_map(TransferId);
    prop_oneof![
        new_hold().prop_map(|hold| ToHost::Hold { hold }),
        (id, rect()).prop_map(|(id, rect)| ToHost::Ready { id, rect }),
        any::<u128>().prop_map(|id| ToHost::Filled { id: TransferId(id) }),
        any::<u128>().prop_map(|id| ToHost::Renew { id: TransferId(id) }),
        any::<u128>().prop_map(|id| ToHost::Release { id: TransferId(id) }),
        new_receive().prop_map(|receive| ToHost::Receive { receive }),
        (attempt(), reason()).prop_map(|(attempt, reason)| ToHost::Abort { attempt, reason }),
        (attempt(), any::<u32>(), any::<bool>()).prop_map(|(attempt, number, held)| ToHost::Confirmed {
            attempt,
            number,
            held
        }),
    ]
}

fn to_engine() -> impl Strategy<Value = ToEngine> {
    use Refused::*;
    let why = prop::sample::select(vec![Full, Used, Invalid, NoSource, Unproven]);
    let subject = prop_oneof![
        any::<u128>().prop_map(|id| Subject::Hold(TransferId(id))),
        attempt().prop_map(Subject::Receive),
    ];
    let end =
        prop::sample::select(vec![HoldEnd::Delivered, HoldEnd::Released, HoldEnd::Expired, HoldEnd::Lost]);
    prop_oneof![
        (subject, why).prop_map(|(subject, why)| ToEngine::Refused { subject, why }),
        (attempt(), rect()).prop_map(|(attempt, rect)| ToEngine::Arrived { attempt, rect }),
        attempt().prop_map(|attempt| ToEngine::Completed { attempt }),
        (attempt(), reason()).prop_map(|(attempt, reason)| ToEngine::Failed { attempt, reason }),
        (attempt(), blocks()).prop_map(|(attempt, blocks)| ToEngine::Quarantined { attempt, blocks }),
        blocks().prop_map(|blocks| ToEngine::Freed { blocks }),
        (any::<u128>(), end).prop_map(|(id, end)| ToEngine::HoldEnded { id: TransferId(id), end }),
        any::<(u128, u64)>().prop_map(|(id, left_ms)| ToEngine::LeaseLeft { id: TransferId(id), left_ms }),
        (attempt(), any::<u32>(), blocks()).prop_map(|(attempt, number, blocks)| ToEngine::Confirm {
            attempt,
            number,
            blocks
        }),
        (attempt(), any::<u32>()).prop_map(|(attempt, end_token)| ToEngine::Cut { attempt, end_token }),
    ]
}

fn framed<M: std::fmt::Debug>(message: impl Strategy<Value = M>) -> impl Strategy<Value = Frame<M>> {
    prop_oneof![
        6 => message.prop_map(Frame::Message),
        1 => any::<u64>().prop_map(Frame::Ping),
        1 => any::<u64>().prop_map(Frame::Pong),
        1 => text().prop_map(Frame::Goodbye),
    ]
}

fn hello() -> impl Strategy<Value = Hello> {
    let planes = prop::sample::select(vec![Planes::KeyValue, Planes::Latent]);
    let order =
        prop::sample::select(vec![Order::LayerPlaneBlock, Order::LayerBlockPlane, Order::BlockLayerPlane]);
    let heads = prop::sample::select(vec![HeadOrder::TokensOutermost, HeadOrder::HeadsOutermost]);
    let element = prop::sample::select(vec![
        Element::F32,
        Element::F16,
        Element::Bf16,
        Element::Fp8E4m3,
        Element::Fp8E5m2,
        Element::Int8,
    ]);
    let role = prop::sample::select(vec![Role::Prefill, Role::Decode, Role::Unified]);
    let layout = (any::<[u32; 6]>(), planes, element, order, heads).prop_map(
        |(
            [blocks, block_tokens, layers, kv_heads, head_dim, tp_size],
            planes,
            element,
            order,
            head_order,
        )| {
            KvLayout {
                blocks,
                block_tokens,
                layers,
                planes,
                kv_heads,
                head_dim,
                element,
                tp_size,
                order,
                head_order,
            }
        },
    );
    (any::<[u16; 3]>(), text(), any::<[u64; 2]>(), role, text(), layout).prop_map(
        |([oldest, newest, rank], name, [incarnation, slab_bytes], role, model, layout)| Hello {
            versions: Versions { oldest, newest },
            name,
            incarnation,
            rank: Rank(rank),
            role,
            model,
            layout,
            slab_bytes,
        },
    )
}

fn answer() -> impl Strategy<Value = Answer> {
    use RefusalCode::*;
    let code = prop::sample::select(vec![
        NotOurs, Version, User, Layout, Slab, Duplicate, Full, TooSlow, Closing, Name,
    ]);
    prop_oneof![
        any::<(u16, u64, [u32; 3])>().prop_map(|(version, session, [ping_ms, silence_ms, max_open])| {
            Answer::Welcome(Welcome { version, session, ping_ms, silence_ms, max_open })
        }),
        (code, text()).prop_map(|(code, text)| Answer::Refusal(Refusal { code, text })),
    ]
}

/// All frames of a stream that comes in pieces of these lengths.
fn read<M: Message>(stream: &[u8], pieces: &[usize]) -> (Vec<Frame<M>>, Option<FrameError>) {
    let (mut buffer, mut frames, mut rest) = (FrameBuffer::default(), Vec::new(), stream);
    for len in pieces.iter().copied().chain(std::iter::repeat(usize::MAX)) {
        let (piece, after) = rest.split_at(len.min(rest.len()));
        buffer.push(piece);
        loop {
            match buffer.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        assert!(buffer.held_bytes() < MAX_FRAME_BYTES + 4, "more than one frame is held");
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    (frames, None)
}

fn come_back<M>(sent: Vec<Frame<M>>, pieces: &[usize]) -> Result<(), TestCaseError>
where
    M: Message + PartialEq + std::fmt::Debug,
{
    let stream: Vec<u8> = sent.iter().flat_map(|frame| encode(frame).expect("within bounds")).collect();
    let (came, error) = read(&stream, pieces);
    prop_assert_eq!(error, None);
    prop_assert_eq!(came, sent);
    Ok(())
}

proptest! {
    #[test]
    fn what_engines_say_comes_as_it_was_said(
        sent in prop::collection::vec(framed(to_host()), 0..6), pieces in prop::collection::vec(1..40_usize, 0..60),
    ) {
        come_back(sent, &pieces)?;
    }

    #[test]
    fn what_hosts_say_comes_as_it_was_said(
        sent in prop::collection::vec(framed(to_engine()), 0..6), pieces in prop::collection::vec(1..40_usize, 0..60),
    ) {
        come_back(sent, &pieces)?;
    }

    #[test]
    fn any_bytes_are_frames_or_an_error(stream in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read::<ToHost>(&stream, &[]);
        let _ = read::<ToEngine>(&stream, &[]);
        // Nearly frames: a count that fits, and a kind that there is.
        let mut framed = (stream.len() as u32).to_le_bytes().to_vec();
        framed.extend(&stream);
        if let Some(kind) = framed.get_mut(4) {
            *kind = 16 + *kind % 8;
        }
        let (frames, _) = read::<ToHost>(&framed, &[]);
        for frame in frames {
            prop_assert_eq!(encode(&frame).expect("what was read can be written"), framed.clone());
        }
    }

    #[test]
    fn a_first_frame_is_read_whole_and_no_further(
        hello in hello(), answer in answer(), tail in prop::collection::vec(any::<u8>(), 0..30),
    ) {
        let (first, second) = (write_hello(&hello).unwrap(), write_answer(&answer).unwrap());
        prop_assert!(first.len() <= HELLO_AT_MOST_BYTES && second.len() <= HELLO_AT_MOST_BYTES);
        for end in 0..first.len() {
            let Ok(Preamble::Needs(missing)) = read_hello(&first[..end]) else {
                return Err(TestCaseError::fail("a part is no hello"));
            };
            prop_assert!(missing > 0 && end + missing <= first.len());
        }
        prop_assert_eq!(read_hello(&first), Ok(Preamble::Whole(hello.clone())));
        prop_assert_eq!(read_answer(&second), Ok(Preamble::Whole(answer)));
        // A later version may add to its end.
        let mut grown = first;
        grown.extend(&tail);
        let count = (grown.len() - MAGIC.len() - 4) as u32;
        grown[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&count.to_le_bytes());
        prop_assert_eq!(read_hello(&grown), Ok(Preamble::Whole(hello)));
    }

    #[test]
    fn any_first_bytes_ask_for_little_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        for with_magic in [bytes.clone(), [MAGIC.as_slice(), &bytes].concat()] {
            for needs in [
                read_hello(&with_magic).map(|read| matches!(read, Preamble::Needs(n) if n > HELLO_AT_MOST_BYTES)),
                read_answer(&with_magic).map(|read| matches!(read, Preamble::Needs(n) if n > HELLO_AT_MOST_BYTES)),
            ] {
                prop_assert_ne!(needs, Ok(true));
            }
        }
    }
}

#[test]
fn bytes_that_are_no_message_are_refused_by_name() {
    let said = |bytes: &[u8]| read::<ToHost>(bytes, &[]).1.map(|error| error.to_string()).unwrap_or_default();
    let frame = |content: &[u8]| [(content.len() as u32).to_le_bytes().as_slice(), content].concat();
    assert!(said(&[0; 4]).contains("a frame of 0 bytes"));
    // Said at the count: nobody waits for, or makes room for, what it announces.
    assert!(said(&u32::MAX.to_le_bytes()).contains("a frame of 4294967295 bytes"));
    assert!(said(&frame(&[99])).contains("kind of message to a host 99 is unknown"));
    assert!(said(&frame(&[64])).contains("unknown"), "what hosts say is not for hosts");
    assert!(said(&frame(&[1, 0])).contains("ends early"));
    assert!(said(&frame(&[1; 12])).contains("3 bytes too many"));
    let mut hold = vec![16];
    hold.extend([0; 16 + 12]);
    hold.extend((MAX_BLOCKS as u32 + 1).to_le_bytes());
    assert!(said(&frame(&hold)).contains("16385 blocks, of at most 16384"));
}

#[test]
fn the_longest_message_fits_and_a_longer_one_is_not_sent() {
    let block = BlockRef { index: 1, generation: 2 };
    let freed = |count| Frame::Message(ToEngine::Freed { blocks: vec![block; count] });
    let longest = encode(&freed(MAX_BLOCKS)).unwrap();
    assert_eq!(read(&longest, &[]), (vec![freed(MAX_BLOCKS)], None));
    let refused = encode(&freed(MAX_BLOCKS + 1)).unwrap_err();
    assert_eq!(refused, EncodeError { what: "blocks", count: MAX_BLOCKS + 1, limit: MAX_BLOCKS });
    let goodbye = Frame::<ToEngine>::Goodbye("x".repeat(MAX_TEXT_BYTES + 1));
    assert_eq!(encode(&goodbye).unwrap_err().what, "bytes of text");
}

#[test]
fn the_newest_common_version_is_spoken() {
    let versions = |oldest, newest| Versions { oldest, newest };
    for (ours, theirs, agreed) in [
        (versions(1, 1), versions(1, 1), Some(1)),
        (versions(1, 3), versions(2, 5), Some(3)),
        (versions(2, 5), versions(1, 3), Some(3)),
        (versions(1, 1), versions(2, 2), None),
        (versions(3, 4), versions(1, 2), None),
        (versions(1, 4), versions(4, 3), None),
    ] {
        assert_eq!(ours.agreed(theirs), agreed, "{ours:?} {theirs:?}");
    }
}
