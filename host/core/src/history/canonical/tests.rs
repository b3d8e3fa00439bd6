//! What is told apart, and what is taken for media.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn digest(message: &str) -> Option<Digest> {
    canonical(message.as_bytes()).map(|canonical| canonical.digest)
}

#[test]
fn what_libraries_write_differently_is_not_told_apart() {
    let one = r#"{"role":"assistant","content":"caf\u00e9 \ud83d\ude00\n","tool_calls":[{"id":"1","type":"function"}]}"#;
    for other in [
        r#" { "role" : "assistant" , "content":"caf\u00e9 \ud83d\ude00\n" , "tool_calls":[ {"id":"1","type":"function"} ] } "#,
        r#"{"content":"caf\u00e9 \ud83d\ude00\n","tool_calls":[{"type":"function","id":"1"}],"role":"assistant"}"#,
        "{\"role\":\"assistant\",\"content\":\"caf\u{e9} \u{1f600}\\u000A\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\"}]}",
        r#"{"role":"assistant","content":"caf\u00e9 \ud83d\ude00\n","refusal":null,"annotations":[],"name":"","tool_calls":[{"id":"1","type":"function"}]}"#,
        r#"{"role":"assistant","reasoning_content":"hm","reasoning":"hm","content":"caf\u00e9 \ud83d\ude00\n","tool_calls":[{"id":"1","type":"function"}]}"#,
    ] {
        assert!(digest(other).is_some(), "{other}");
        assert_eq!(digest(one), digest(other), "{other}");
    }
    let (one, other) = (r#""\" \\ / \n\t\r\b\f""#, r#""\u0022 \u005C \/ \u000a\u0009\u000D\u0008\u000c""#);
    assert!(digest(one).is_some());
    assert_eq!(digest(one), digest(other));
}

#[test]
fn what_says_something_else_is_told_apart() {
    let messages = [
        r#"{"role":"user","content":"ab"}"#,
        r#"{"role":"system","content":"ab"}"#,
        r#"{"role":"user","content":"a b"}"#,
        r#"{"role":"user","content":" ab"}"#,
        r#"{"role":"user","content":"a\\b"}"#,
        r#"{"role":"user","content":["ab"]}"#,
        r#"{"role":"user","content":["a","b"]}"#,
        r#"{"role":"user","content":["b","a"]}"#,
        r#"{"role":"user","content":[{"type":"text","text":"ab"}]}"#,
        r#"{"role":"user","content":"ab","name":"x"}"#,
        r#"{"role":"user","content":1}"#,
        r#"{"role":"user","content":"1"}"#,
        r#"{"role":"user","content":true}"#,
        r#"{"role":"user","content":{"reasoning":"ab"}}"#,
        r#"{"role":"user","content":{}}"#,
        r#"{"role":"user"}"#,
    ];
    let digests: std::collections::BTreeSet<_> = messages.iter().map(|message| digest(message)).collect();
    assert!(!digests.contains(&None));
    assert_eq!(digests.len(), messages.len());
}

fn has_media(message: &str) -> Option<bool> {
    canonical(message.as_bytes()).map(|canonical| canonical.has_media)
}

#[test]
fn media_are_what_is_not_proven_to_be_text() {
    for (content, expected) in [
        (r#""a""#, false),
        (" null ", false),
        ("[]", false),
        (r#"["a"]"#, false),
        (r#"[{"type":"text","text":"a"},{"text":"b","type":"input_text"}]"#, false),
        (r#"[{"type":"output_text","text":""},{"type":"refusal","refusal":"a"}]"#, false),
        (
            r#"[{"type":"thinking","thinking":"a"},"b",{"type":"text","text":"c","cache_control":{"type":"x"}}]"#,
            false,
        ),
        (r#"[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:"}}]"#, true),
        (r#"[{"image_url":"data:"}]"#, true),
        (r#"[{"type":"new_kind","text":"a"}]"#, true),
        (r#"[{"type":"text","type":"image_url","text":"a"}]"#, true),
        (r#"[{"type":"image_url","type":"text","text":"a"}]"#, true),
        (r#"[{"type":"text","typ\u0065":"image_url","text":"a"}]"#, true),
        (r#"[{"type":"text","text":"a","text":{"image_url":"data:"}}]"#, true),
        (r#"[{"type":"text","text":"a","uuid":"x","image_url":"data:"}]"#, true),
        (r#"[{"type":"text","text":"a","uuid":null}]"#, true),
        (r#"[{"type":"text","image_url":"data:"}]"#, true),
        (r#"[{"type":"text","text":{"image_url":"data:"}}]"#, true),
        (r#"[{"type":"text","thinking":"a"}]"#, true),
        (r#"[{"type":"refusal","refusal":"a","text":"b"}]"#, true),
        (r#"[{"type":"text"}]"#, true),
        (r#"[{"type":["text"],"text":"a"}]"#, true),
        (r#"[[{"type":"image_url","image_url":{"url":"data:"}}]]"#, true),
        (r#"[["a"]]"#, true),
        ("[null]", true),
        ("[1]", true),
        (r#"{"type":"image_url"}"#, true),
        (r#"{"0":{"type":"text","text":"a"}}"#, true),
        ("1", true),
        ("true", true),
    ] {
        let message = format!(r#"{{"role":"user","content":{content}}}"#);
        assert_eq!(has_media(&message), Some(expected), "{content}");
    }
}

#[test]
fn messages_are_text_if_all_their_members_are() {
    let image = r#"[{"type":"image_url","image_url":{"url":"data:"}}]"#;
    for (members, expected) in [
        (r#""name":"a","refusal":null,"annotations":[],"audio":null,"reasoning":"b""#.to_owned(), false),
        (
            r#""tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}],"content":null"#.into(),
            false,
        ),
        (r#""tool_call_id":"1","content":"a""#.into(), false),
        (r#""audio":{"id":"a"}"#.into(), true),
        (r#""files":["a"]"#.into(), true),
        (format!(r#""cont\u0065nt":{image}"#), true),
        (format!(r#""content":"a","cont\u0065nt":{image}"#), true),
        (format!(r#""content":{image},"cont\u0065nt":null"#), true),
        (format!(r#""content":"a","content":{image}"#), true),
        (r#""content":"a","content":"b""#.into(), true),
        (r#""cont\u0065nt":null"#.into(), true),
    ] {
        let message = format!(r#"{{"role":"assistant",{members}}}"#);
        assert_eq!(has_media(&message), Some(expected), "{members}");
    }
    for message in ["1", r#""a""#, "[]", "null", r#"[{"role":"user"}]"#] {
        assert_eq!(has_media(message), Some(true), "{message}");
    }
}

/// Long lists of members cost no more than a sort.
#[test]
fn many_members_are_read_in_good_time() {
    let members: Vec<_> = (0..100_000).map(|number| format!(r#""{number}":null"#)).collect();
    assert_eq!(has_media(&format!("{{{}}}", members.join(","))), Some(false));
}

#[test]
fn what_is_no_json_is_not_read() {
    let deep = "[".repeat(40) + &"]".repeat(40);
    for bad in [
        "",
        "{",
        "{\"a",
        "{\"a\\",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "[1 2]",
        "\"a",
        "\"\\",
        "\"\\u12",
        "\"\\x\"",
        "1 2",
        "{}x",
        &deep,
    ] {
        assert!(digest(bad).is_none(), "{bad}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_not(bytes in prop::collection::vec(prop::sample::select(&b"{}[]\",:\\u01 ad8"[..]), 0..40)) {
        let _ = canonical(&bytes);
    }
}

/// How engines read a message: of two members with one name the last counts, whatever of a name is escaped; media is a part
/// that says so by its type or by a member, or has a name (`uuid`) by which it may be one that was sent before.
fn engine_sees_media(message: &Value) -> bool {
    const OF_MEDIA: [&str; 4] = ["image_url", "input_audio", "video_url", "prompt_embeds"];
    let is_media = |part: &Value| match part {
        Value::Object(part) => {
            let kind = part.get("type").and_then(Value::as_str);
            let is_text =
                kind.is_some_and(|kind| ["text", "input_text", "refusal", "thinking"].contains(&kind));
            !is_text || OF_MEDIA.iter().any(|name| part.contains_key(*name)) || part.contains_key("uuid")
        }
        other => !other.is_string(),
    };
    let content_has = match &message["content"] {
        Value::Array(parts) => parts.iter().any(is_media),
        other => !other.is_null() && !other.is_string(),
    };
    content_has
        || message["audio"].is_object()
        || message["files"].as_array().is_some_and(|files| !files.is_empty())
}

/// Some of a name's characters are escaped.
fn spelled(name: &'static str) -> BoxedStrategy<String> {
    let escaped = prop_oneof![4 => Just(None), 1 => (0..name.len().max(1)).prop_map(Some)];
    let spelled = escaped.prop_map(move |escaped| {
        let character = |(at, character): (usize, char)| match escaped == Some(at) {
            true => format!("\\u{:04x}", u32::from(character)),
            false => character.to_string(),
        };
        format!("\"{}\"", name.chars().enumerate().map(character).collect::<String>())
    });
    spelled.boxed()
}

fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(texts).prop_flat_map(spelled)
}

fn object(
    name: impl Strategy<Value = String>,
    value: impl Strategy<Value = String>,
) -> impl Strategy<Value = String> {
    prop::collection::vec((name, value), 0..5).prop_map(|members| {
        let members: Vec<_> = members.iter().map(|(name, value)| format!("{name} : {value}")).collect();
        format!("{{{}}}", members.join(" ,"))
    })
}

fn list(of: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    prop::collection::vec(of, 0..3).prop_map(|items| format!("[ {} ]", items.join(",")))
}

fn part() -> BoxedStrategy<String> {
    const NAMES: &[&str] = &["type", "text", "refusal", "image_url", "uuid", "input_audio", "cache_control"];
    const VALUES: &[&str] = &["text", "text", "refusal", "image_url", "thinking", "", "a"];
    let value = prop_oneof![6 => one_of(VALUES), 1 => Just("null".to_owned()), 1 => Just(r#"{"url":"a"}"#.to_owned())];
    let plain = Just(r#"{"type":"text","text":"a"}"#.to_owned());
    prop_oneof![4 => object(one_of(NAMES), value), 4 => plain, 1 => one_of(VALUES), 1 => Just("7".to_owned())]
        .boxed()
}

fn message() -> BoxedStrategy<String> {
    const NAMES: &[&str] = &["content", "content", "content", "role", "name", "audio", "files", "tool_calls"];
    let nested = prop_oneof![8 => part().boxed(), 1 => list(part()).boxed()];
    let value = prop_oneof![
        6 => list(nested).boxed(),
        2 => one_of(&["user", "a", ""]).boxed(),
        1 => part().boxed(),
        1 => Just("null".to_owned()).boxed(),
    ];
    object(one_of(NAMES), value).boxed()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Media that an engine sees are never missed, however they are written.
    #[test]
    fn no_media_are_hidden(message in message()) {
        let read = serde_json::from_str::<Value>(&message).expect("JSON");
        let sees_none = has_media(&message) == Some(false);
        prop_assert!(!(sees_none && engine_sees_media(&read)), "{}", message);
    }

    /// What clients write is taken for text.
    #[test]
    fn plain_text_has_no_media(texts in prop::collection::vec("[ -~\u{e9}\n]*", 1..4)) {
        let parts: Vec<_> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
        for content in [json!(texts), json!(parts), json!(texts[0])] {
            let message = json!({"role": "user", "content": content, "name": texts[0]}).to_string();
            prop_assert_eq!(has_media(&message), Some(false), "{}", message);
        }
    }
}
