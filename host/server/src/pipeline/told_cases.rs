//! What is collected of answers, and what clients get of them.

use bytes::Bytes;

use super::told::{Ids, Telling, Told};
use super::turn::AnswerEnd;
use crate::http::sse::{self, Splitter};
use crate::telemetry::labels::TokenIds;

const MANY: usize = 1_000;

fn end(prompt: u32, output: u32) -> AnswerEnd {
    AnswerEnd { prompt_tokens: Some(prompt), output_tokens: Some(output), ..AnswerEnd::default() }
}

/// A stream cut in pieces of `step` bytes: what it told, and what of it the client got.
fn streamed(stream: &[u8], step: usize, strips: bool, counts: AnswerEnd) -> (Told, Vec<u8>) {
    let (told, out, _) = streamed_with_params(stream, step, strips, counts);
    (told, out)
}

/// The same, and the handle that it told.
fn streamed_with_params(
    stream: &[u8],
    step: usize,
    strips: bool,
    counts: AnswerEnd,
) -> (Told, Vec<u8>, Option<String>) {
    let (mut telling, mut splitter, mut out) = (Telling::new(strips, MANY), Splitter::default(), Vec::new());
    for piece in stream.chunks(step) {
        let whole = splitter.push_whole(Bytes::copy_from_slice(piece)).expect("short events");
        for event in sse::events(&whole) {
            out.extend(telling.event(event));
        }
    }
    let params = telling.params();
    (telling.end(&counts), out.concat(), params)
}

fn recorded(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cases/vllm_sse");
    std::fs::read(format!("{folder}/{name}.sse")).expect("a recorded stream")
}

/// The numbers in the lists of this name, in order.
fn listed(stream: &[u8], name: &str) -> Vec<u32> {
    let text = std::str::from_utf8(stream).expect("UTF-8");
    let opening = format!("\"{name}\":[");
    let lists = text.split(&opening).skip(1);
    let inside = lists.map(|rest| rest.split(']').next().expect("a closed list"));
    inside.flat_map(|list| list.split(',')).map(|number| number.parse().expect("a number")).collect()
}

/// What vLLM writes where nobody asks: the same with `null` for each list.
fn unasked(stream: &[u8]) -> String {
    let text = std::str::from_utf8(stream).expect("UTF-8");
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("token_ids\":[") {
        let list = at + "token_ids\":".len();
        out.push_str(&rest[..list]);
        out.push_str("null");
        rest = &rest[list + rest[list..].find(']').expect("closed") + 1..];
    }
    out + rest
}

#[test]
fn recorded_streams_tell_their_ids_and_clients_see_none() {
    for name in [
        "chat_token_ids",
        "completions_token_ids",
        "chat_decode_leg_token_ids",
        "completions_decode_leg_token_ids",
    ] {
        let stream = recorded(name);
        let (prompt, output) = (listed(&stream, "prompt_token_ids"), listed(&stream, "token_ids"));
        assert_eq!(output.len(), 12, "{name}");
        let counts = end(prompt.len() as u32, 12);
        for step in [1, 7, 100, 1_460, stream.len()] {
            let (told, seen) = streamed(&stream, step, true, counts);
            assert_eq!(
                (told.prompt_ids.as_ref(), told.output_ids.as_ref()),
                (Some(&Ids::Read(prompt.clone())), Some(&output)),
                "{name}"
            );
            assert_eq!(told.ids, Some(TokenIds::Told), "{name}");
            assert_eq!(
                String::from_utf8(seen).expect("UTF-8"),
                unasked(&stream),
                "{name} in pieces of {step}"
            );
            // A client that asked gets them.
            let (asked, seen) = streamed(&stream, step, false, counts);
            assert_eq!((asked.output_ids, seen == stream), (told.output_ids, true), "{name}");
        }
    }
}

/// Streams of requests that ask for none have the same members, as `null`.
#[test]
fn a_stripped_stream_has_the_shape_of_one_that_was_not_asked() {
    for kind in ["chat", "completions"] {
        let names = |stream: &[u8]| {
            let text = String::from_utf8(stream.to_vec()).expect("UTF-8");
            let of_chunk = |line: &str| {
                let value: serde_json::Value = serde_json::from_str(line.strip_prefix("data: ")?).ok()?;
                let choice = value["choices"][0].as_object()?;
                let (top, inside) = (value.as_object()?.keys().cloned(), choice.keys().cloned());
                Some((top.collect::<Vec<_>>(), inside.collect::<Vec<_>>(), choice.get("token_ids").cloned()))
            };
            let mut chunks: Vec<_> = text.lines().filter_map(of_chunk).collect();
            // As many tokens may come in more or fewer chunks.
            chunks.dedup();
            chunks
        };
        let (_, seen) = streamed(&recorded(&format!("{kind}_token_ids")), 512, true, end(0, 0));
        assert_eq!(names(&seen), names(&recorded(&format!("{kind}_plain"))), "{kind}");
    }
}

const ROLE: &str = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":[1,2]}"#;
const WORD: &str =
    r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":[3]}]}"#;
const LAST: &str = r#"{"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop","token_ids":[4,5]}],"kv_transfer_params":{"remote_num_tokens":4}}"#;
const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3}}"#;

#[test]
fn what_is_not_sure_is_not_told() {
    let (without, null) = (
        r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null,"token_ids":null}]}"#,
    );
    let other = r#"{"choices":[{"index":1,"delta":{"content":"x"},"finish_reason":null,"token_ids":[9]}]}"#;
    let (odd, long) = (WORD.replace("[3]", "[-3]"), WORD.replace("[3]", &format!("{:?}", vec![1; MANY])));
    let merged = WORD.replace("[3]", "[]");
    let uncounted = AnswerEnd::default();
    for (payloads, counts, expected) in [
        (&[ROLE, WORD, LAST, USAGE, "[DONE]"][..], end(2, 3), TokenIds::Told),
        (&[ROLE, WORD, LAST, "[DONE]"], uncounted, TokenIds::Told),
        (&[ROLE, &merged, LAST], end(2, 2), TokenIds::Told),
        (&[ROLE, WORD, LAST], end(2, 4), TokenIds::Miscounted),
        (&[ROLE, WORD, LAST], end(3, 3), TokenIds::Miscounted),
        (&[ROLE, WORD, without, LAST], end(2, 3), TokenIds::Hidden),
        (&[ROLE, WORD, null, LAST], end(2, 3), TokenIds::Hidden),
        (&[ROLE, WORD, other, LAST], end(2, 3), TokenIds::SeveralChoices),
        (&[ROLE, &odd, LAST], end(2, 3), TokenIds::Unreadable),
        (&[ROLE, &long, LAST], uncounted, TokenIds::TooMany),
        (&[WORD, LAST], end(2, 3), TokenIds::Absent),
        (&[ROLE], uncounted, TokenIds::Absent),
        (&[], uncounted, TokenIds::Absent),
    ] {
        let stream: String = payloads.iter().map(|payload| format!("data: {payload}\n\n")).collect();
        let (told, _, params) = streamed_with_params(stream.as_bytes(), 512, true, counts);
        let is_told = expected == TokenIds::Told;
        assert_eq!(told.ids, Some(expected), "{payloads:?}");
        assert_eq!(
            (told.prompt_ids.is_some(), told.output_ids.is_some()),
            (is_told, is_told),
            "{payloads:?}"
        );
        // What the engine keeps is told all the same: it may have to be let go.
        let expected = payloads.contains(&LAST).then_some(r#"{"remote_num_tokens":4}"#);
        assert_eq!(params.as_deref(), expected, "{payloads:?}");
    }
}

/// vLLM sends a chunk for each token when ids are asked for, words or not.
#[test]
fn chunks_that_are_there_for_their_ids_alone_are_left_out() {
    let empty =
        r#"{"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[3]}]}"#;
    let stream: String = [ROLE, empty, LAST].map(|payload| format!("data: {payload}\n\n")).concat();
    let (told, seen) = streamed(stream.as_bytes(), 9, true, end(2, 3));
    let seen = String::from_utf8(seen).expect("UTF-8");
    assert_eq!((told.output_ids, seen.matches("data:").count()), (Some(vec![3, 4, 5]), 2), "{seen}");
    let (_, seen) = streamed(stream.as_bytes(), 9, false, end(2, 3));
    assert_eq!(seen, stream.as_bytes());
}

#[test]
fn whole_answers_are_told_and_cleaned() {
    for (answer, cleaned) in [
        (
            r#"{"choices":[{"index":0,"message":{"content":"ab"},"finish_reason":"stop","token_ids":[3,4]}],"prompt_token_ids":[1,2],"kv_transfer_params":{"a":1}}"#,
            r#"{"choices":[{"index":0,"message":{"content":"ab"},"finish_reason":"stop","token_ids":null}],"prompt_token_ids":null,"kv_transfer_params":{"a":1}}"#,
        ),
        (
            r#"{"choices":[{"index":0,"text":"ab","token_ids":[3,4],"prompt_token_ids":[1,2]}],"kv_transfer_params":{"a":1}}"#,
            r#"{"choices":[{"index":0,"text":"ab","token_ids":null,"prompt_token_ids":null}],"kv_transfer_params":{"a":1}}"#,
        ),
    ] {
        let mut telling = Telling::new(true, MANY);
        assert_eq!(telling.whole(Bytes::from_static(answer.as_bytes())), cleaned);
        assert_eq!(telling.params().as_deref(), Some(r#"{"a":1}"#));
        let told = telling.end(&end(2, 2));
        assert_eq!((told.prompt_ids, told.output_ids), (Some(Ids::Read(vec![1, 2])), Some(vec![3, 4])));
    }
}

/// The ids of a long prompt are counted at once, and read later.
#[test]
fn a_long_prompt_is_read_when_it_is_needed() {
    for count in [10, 100_000] {
        let ids: Vec<u32> = (0..count).map(|id| 10_000 + id).collect();
        let list = serde_json::to_string(&ids).expect("a list");
        let payload = ROLE.replace("[1,2]", &list);
        let stream: String =
            [&*payload, WORD, "[DONE]"].map(|payload| format!("data: {payload}\n\n")).concat();
        let mut telling = Telling::new(true, 200_000);
        let seen: Vec<_> =
            sse::events(&Bytes::from(stream)).filter_map(|event| telling.event(event)).collect();
        assert!(seen.iter().all(|event| event.len() < 1_000));
        let prompt = telling.end(&end(count, 1)).prompt_ids.expect("told");
        assert_eq!((matches!(prompt, Ids::Text(_)), prompt.count()), (count > 10, ids.len()));
        assert_eq!(prompt.read(), Some(ids));
    }
}

proptest::proptest! {
    /// Whatever the network does with a stream, and wherever it ends, the same is told of the events that came whole.
    #[test]
    fn ids_are_those_of_the_events_that_came(
        lists in proptest::collection::vec(proptest::collection::vec(0_u32..200_000, 0..5), 1..12),
        cut in 0_usize..2_000,
        step in 1_usize..64,
    ) {
        let mut stream = format!("data: {ROLE}\n\n");
        for list in &lists {
            stream += &format!("data: {}\n\n: keep-alive\n\n", WORD.replace("[3]", &serde_json::to_string(list).expect("a list")));
        }
        let came = &stream.as_bytes()[..cut.min(stream.len())];
        let (told, _) = streamed(came, step, true, AnswerEnd::default());
        let chunks = String::from_utf8_lossy(came);
        let whole = chunks.rfind("\n\n").map_or("", |at| &chunks[..at]);
        let words = whole.matches("\"content\":\"a\"").count();
        let expected: Vec<u32> = lists[..words].concat();
        proptest::prop_assert_eq!(told.output_ids, (words > 0).then_some(expected));
    }
}
