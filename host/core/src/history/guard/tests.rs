use proptest::prelude::*;

use super::*;

fn size(tokens: u32) -> NonZeroU32 {
    NonZeroU32::new(tokens).expect("not 0")
}

fn prompt(ids: &[u32]) -> Prompt {
    Prompt { sequence: Sequence::of_ids(ids), has_media: false }
}

fn held(ids: &[u32], block_tokens: u32) -> Held {
    Held::of_sequence(Sequence::of_ids(ids), size(block_tokens))
}

#[test]
fn what_cannot_be_proven_is_refused_with_its_reason() {
    let (ids, output): (Vec<u32>, _) = ((0..30).collect(), [30, 31, 32]);
    let good = Told {
        prompt_ids: Some(&ids),
        output_ids: Some(&output),
        tokens: 32,
        blocks_of_groups: &[2],
        block_tokens: size(16),
        has_media: false,
    };
    assert_eq!(Held::of_turn(&good).map(|held| (held.sequence().tokens(), held.blocks())), Ok((32, 2)));
    let mismatch = |what, said, expected| Refusal::CountMismatch { what, said, expected };
    for (told, reason) in [
        (Told { prompt_ids: None, ..good }, Refusal::NoTokenIds),
        (Told { output_ids: None, ..good }, Refusal::NoTokenIds),
        (Told { tokens: 33, blocks_of_groups: &[3], ..good }, mismatch(Counted::Tokens, 33, 32)),
        (Told { tokens: 31, ..good }, mismatch(Counted::Tokens, 31, 32)),
        (Told { blocks_of_groups: &[3], ..good }, mismatch(Counted::Blocks, 3, 2)),
        (Told { blocks_of_groups: &[1], ..good }, mismatch(Counted::Blocks, 1, 2)),
        (Told { blocks_of_groups: &[2, 2], ..good }, Refusal::SeveralKvGroups { groups: 2 }),
        (Told { blocks_of_groups: &[], ..good }, Refusal::SeveralKvGroups { groups: 0 }),
        (Told { has_media: true, ..good }, Refusal::Media),
    ] {
        assert_eq!(Held::of_turn(&told), Err(reason), "{told:?}");
    }
    let held = Held::of_turn(&good).expect("can be proven");
    let other_positions = Prompt { sequence: Sequence::of_ids(&ids).into_proofs(size(3)), has_media: false };
    for (held, prompt, reason) in [
        (held.clone(), Prompt { has_media: true, ..prompt(&ids) }, Refusal::Media),
        (held.clone(), prompt(&ids[..16]), Refusal::LessThanABlock { proven_tokens: 15, block_tokens: 16 }),
        (held.clone(), prompt(&ids[1..]), Refusal::LessThanABlock { proven_tokens: 0, block_tokens: 16 }),
        (held.clone(), prompt(&[]), Refusal::LessThanABlock { proven_tokens: 0, block_tokens: 16 }),
        (held.into_proofs(size(16)), other_positions, Refusal::PositionsDiffer { one: 16, other: 3 }),
    ] {
        assert_eq!(held.cut_for(&prompt), Err(reason), "{prompt:?}");
    }
}

#[test]
fn a_cut_counts_tokens_and_blocks_alike() {
    let ids: Vec<u32> = (0..100).collect();
    let cut = |length, differs_at: usize| {
        let mut other = ids[..length].to_vec();
        if let Some(token) = other.get_mut(differs_at) {
            *token += 1_000;
        }
        held(&ids[..90], 16).cut_for(&prompt(&other)).map(|cut| (cut.tokens(), cut.blocks()))
    };
    for (length, differs_at, expected) in [
        (100, 100, (90, 6)),
        (100, 17, (17, 2)),
        (100, 32, (32, 2)),
        (100, 16, (16, 1)),
        // The last token of a prompt is computed, so that a block less is wanted.
        (33, 100, (32, 2)),
        (49, 100, (48, 3)),
        (90, 100, (89, 6)),
    ] {
        assert_eq!(cut(length, differs_at), Ok(expected), "{length} tokens, another at {differs_at}");
    }
}

#[test]
fn ids_of_another_hold_are_not_cut() {
    let cut = Cut { tokens: 17, blocks: 2 };
    assert_eq!((cut.ids(&[7, 8, 9]), cut.ids(&[7])), (Some(&[7, 8][..]), None));
}

/// What a client's next turn makes of the tokens before it.
#[derive(Debug, Clone)]
enum Change {
    /// History as it was.
    None,
    /// One token is another.
    Edit(usize),
    /// A part is left out: reasoning, an old message, a tool's answer.
    Stripped(usize, usize),
    /// The same text as other tokens, one in the place of two.
    Retokenised(usize),
    /// Something comes in between: another system prompt, a tool's answer.
    Inserted(usize, Vec<u32>),
}

impl Change {
    fn made(&self, ids: &[u32]) -> Vec<u32> {
        let at = |at: &usize| at % (ids.len() + 1);
        match self {
            Self::None => ids.to_vec(),
            Self::Edit(edit) => {
                let mut ids = ids.to_vec();
                let at = edit % ids.len();
                ids[at] += 1;
                ids
            }
            Self::Stripped(from, tokens) => {
                let end = (at(from) + tokens).min(ids.len());
                [&ids[..at(from)], &ids[end..]].concat()
            }
            Self::Retokenised(from) => {
                let end = (at(from) + 2).min(ids.len());
                [&ids[..at(from)], &[7_777][..], &ids[end..]].concat()
            }
            Self::Inserted(from, more) => [&ids[..at(from)], more, &ids[at(from)..]].concat(),
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::None),
        (0..200_usize).prop_map(Change::Edit),
        (0..200_usize, 1..60_usize).prop_map(|(from, tokens)| Change::Stripped(from, tokens)),
        (0..200_usize).prop_map(Change::Retokenised),
        (0..200_usize, prop::collection::vec(0..3_u32, 1..20))
            .prop_map(|(at, ids)| Change::Inserted(at, ids)),
    ]
}

proptest! {
    /// Against the longest common prefix, found naively: whatever became of the history, a cut is a prefix of both, of all that is
    /// proven, and names no block that none of it is in.
    #[test]
    fn a_cut_is_what_both_have(
        turn in prop::collection::vec(0..3_u32, 2..200),
        output_tokens in 1..100_usize,
        changes in prop::collection::vec(change(), 0..3),
        more in prop::collection::vec(0..3_u32, 0..30),
        block_tokens in 1..20_u32,
        positions in prop::option::of(1..20_u32),
        prompt_by_proofs in any::<bool>(),
    ) {
        let output_tokens = output_tokens.min(turn.len() - 1);
        let (prompt_ids, output_ids) = turn.split_at(turn.len() - output_tokens);
        let tokens = turn.len() as u32 - 1;
        let blocks: Vec<u32> = (100..100 + tokens.div_ceil(block_tokens)).collect();
        let mut held = Held::of_turn(&Told {
            prompt_ids: Some(prompt_ids),
            output_ids: Some(output_ids),
            tokens,
            blocks_of_groups: &[blocks.len()],
            block_tokens: size(block_tokens),
            has_media: false,
        }).expect("can be proven");
        let mut next = changes.iter().fold(turn.clone(), |ids, change| {
            if ids.is_empty() { ids } else { change.made(&ids) }
        });
        next.extend(&more);
        let mut sequence = Sequence::of_ids(&next);
        if let Some(position_tokens) = positions {
            let of_prompt = if prompt_by_proofs { &mut sequence } else { &mut held.sequence };
            *of_prompt = of_prompt.clone().into_proofs(size(position_tokens));
        }

        let common = next.iter().zip(&turn[..tokens as usize]).take_while(|(a, b)| a == b).count() as u32;
        let whole = positions.map_or(common, |position_tokens| common - common % position_tokens);
        let expected = whole.min((next.len() as u32).saturating_sub(1));
        match held.cut_for(&Prompt { sequence, has_media: false }) {
            Ok(cut) => {
                prop_assert_eq!(cut.tokens(), expected);
                prop_assert!(expected >= block_tokens);
                let ids = cut.ids(&blocks).expect("of this hold");
                let of_ids = ids.len() as u32 * block_tokens;
                prop_assert!(of_ids >= cut.tokens() && of_ids - cut.tokens() < block_tokens);
                prop_assert!(blocks.starts_with(ids));
            }
            Err(refusal) => {
                prop_assert_eq!(refusal, Refusal::LessThanABlock { proven_tokens: expected, block_tokens });
                prop_assert!(expected < block_tokens);
            }
        }
    }
}
