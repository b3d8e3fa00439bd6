//! Which prompts' ids are known, and by what they are asked for.

use bytes::Bytes;
use hyper::HeaderMap;

use super::*;

fn of(endpoint: Endpoint, body: &str) -> Result<Source, NoIds> {
    let body = Bytes::copy_from_slice(body.as_bytes());
    source(&ClientRequest::parse(endpoint, &HeaderMap::new(), &body).expect("a request"))
}

fn asked(endpoint: Endpoint, body: &str) -> Result<String, NoIds> {
    match of(endpoint, body)? {
        Source::Asked(body) => Ok(String::from_utf8(body.joined()).expect("UTF-8")),
        Source::Written(ids) => Ok(format!("{:?}", ids.ids())),
    }
}

#[test]
fn what_acts_on_the_answer_alone_is_left_out() {
    let body = r#"{"temperature":0,"model":"m","messages":[],"stream":true,"cache_salt":"x","reasoning_effort":null,"tools":[{"type":"function"}],"tool_choice":"auto","max_tokens":3,"add_generation_prompt":false,"chat_template_kwargs":{"a":1}}"#;
    let expected = r#"{"model":"m","messages":[],"tools":[{"type":"function"}],"add_generation_prompt":false,"chat_template_kwargs":{"a":1}}"#;
    assert_eq!(asked(Endpoint::Chat, body).as_deref(), Ok(expected));
    for name in HARMLESS {
        // No value of a request's own type is needed: none is looked at.
        let body = format!(r#"{{"model":"m","prompt":"x","{name}":1}}"#);
        let parsed =
            ClientRequest::parse(Endpoint::Completions, &HeaderMap::new(), &Bytes::from(body.clone()))
                .is_ok();
        assert!(
            !parsed || asked(Endpoint::Completions, &body).as_deref() == Ok(r#"{"model":"m","prompt":"x"}"#),
            "{name}"
        );
    }
}

#[test]
fn what_may_act_on_the_prompt_refuses() {
    let member = NoIds::NotRenderable;
    for (extra, expected) in [
        (r#""documents":[{"a":"b"}]"#, member("documents")),
        (r#""chat_template":"{{ range(9) | random }}""#, member("chat_template")),
        (r#""reasoning_effort":"low""#, member("reasoning_effort")),
        (r#""response_format":{"type":"json_object"}"#, member("response_format")),
        (r#""truncate_prompt_tokens":-1"#, member("truncate_prompt_tokens")),
        (r#""mm_processor_kwargs":{}"#, member("mm_processor_kwargs")),
        (r#""echo":true"#, member("echo")),
        (r#""tool_choice":"required""#, member("tool_choice")),
        (r#""tool_choice":{"type":"function"}"#, member("tool_choice")),
        (r#""tool_choice":"none","tools":[{}]"#, member("tool_choice")),
        (r#""a_new_member":false"#, member("a member of another name")),
        (r#""messages":[{"role":"assistant","reasoning_content":"x"}]"#, member("reasoning_content")),
    ] {
        let body = format!(r#"{{"model":"m","messages":[],{extra}}}"#);
        assert_eq!(asked(Endpoint::Chat, &body), Err(expected), "{extra}");
    }
    for extra in
        [r#""tool_choice":"none""#, r#""echo":false"#, r#""documents":null"#, r#""a_new_member":null"#]
    {
        let body = format!(r#"{{"model":"m","messages":[],{extra}}}"#);
        assert!(asked(Endpoint::Chat, &body).is_ok(), "{extra}");
    }
    for (extra, known) in [(r#""suffix":"x""#, "suffix"), (r#""messages":[1]"#, "a member of another name")] {
        let body = format!(r#"{{"model":"m","prompt":"x",{extra}}}"#);
        assert_eq!(asked(Endpoint::Completions, &body), Err(member(known)));
    }
}

#[test]
fn what_may_be_beside_a_prompt_counts_as_media() {
    for (extra, expected) in [
        (r#""temperature":0,"tools":[],"response_format":{},"chat_template":"x","cache_salt":"x""#, false),
        (r#""prompt_embeds":null,"a_new_member":null"#, false),
        (r#""prompt_embeds":"x""#, true),
        (r#""prompt\u005fembeds":["x"]"#, true),
        (r#""prompt_embeds":null,"prompt_embeds":"x""#, true),
        (r#""mm_processor_kwargs":{}"#, true),
        (r#""media_io_kwargs":{}"#, true),
        (r#""multi_modal_data":{}"#, true),
    ] {
        let body = Bytes::from(format!(r#"{{"model":"m","prompt":"x","messages":[],{extra}}}"#));
        for endpoint in [Endpoint::Chat, Endpoint::Completions] {
            let request = ClientRequest::parse(endpoint, &HeaderMap::new(), &body).expect("a request");
            // Each endpoint's own prompt is unknown to the other.
            let other = if endpoint == Endpoint::Chat { "prompt" } else { "messages" };
            assert!(request.members.has(other));
            assert_eq!(may_bring_media(&request), expected, "{extra}");
        }
    }
}

#[test]
fn ids_that_the_client_wrote_need_no_engine() {
    for (prompt, expected) in [
        (r#""a [1]""#, Ok(r#"{"model":"m","prompt":"a [1]"}"#)),
        (r#"[ "a" ]"#, Ok(r#"{"model":"m","prompt":"a"}"#)),
        ("[1, 2]", Ok("[1, 2]")),
        ("[ [1,2] ]", Ok("[1, 2]")),
        ("[[1],[2]]", Err(NoIds::SeveralPrompts)),
        (r#"["a","b"]"#, Err(NoIds::SeveralPrompts)),
        ("[]", Err(NoIds::Unreadable("the member \"prompt\""))),
        ("[1.5]", Err(NoIds::Unreadable("the member \"prompt\""))),
        ("[-1]", Err(NoIds::Unreadable("the member \"prompt\""))),
        ("[1,[2]]", Err(NoIds::Unreadable("the member \"prompt\""))),
    ] {
        let body = format!(r#"{{"model":"m","prompt":{prompt}}}"#);
        assert_eq!(asked(Endpoint::Completions, &body), expected.map(str::to_owned), "{prompt}");
    }
}

#[test]
fn an_answer_must_count_what_it_lists() {
    let ids = answered(br#"{"count":3,"max_model_len":64,"tokens":[1,2,3],"token_strs":null}"#).expect("ids");
    assert_eq!(ids.ids()[..], [1, 2, 3]);
    for answer in [
        r#"{"count":2,"tokens":[1,2,3]}"#,
        r#"{"count":0,"tokens":[]}"#,
        r#"{"tokens":[1]}"#,
        r#"{"count":1,"tokens":["a"]}"#,
        r#"{"count":1,"tokens":[4294967296]}"#,
        "[]",
        "",
    ] {
        assert!(answered(answer.as_bytes()).is_err(), "{answer}");
    }
}

#[test]
fn ids_are_held_against_what_an_engine_read() {
    let ids = answered(br#"{"count":3,"tokens":[1,2,3]}"#).expect("ids");
    for (answer, expected) in [
        (r#"{"prompt_token_ids":[1,2,3],"choices":[{"index":0}]}"#, Agreement::Same),
        (r#"{"choices":[{"index":0,"prompt_token_ids":[1,2,3]}]}"#, Agreement::Same),
        (r#"{"prompt_token_ids":[1,9,3]}"#, Agreement::Differ { from: 1 }),
        (r#"{"prompt_token_ids":[1,2,3,4]}"#, Agreement::Differ { from: 3 }),
        (r#"{"prompt_token_ids":[1,2]}"#, Agreement::Differ { from: 2 }),
        (r#"{"prompt_token_ids":null}"#, Agreement::Untold),
        (r#"{}"#, Agreement::Untold),
        ("", Agreement::Untold),
    ] {
        let read = read_by(&Bytes::from_static(answer.as_bytes()));
        assert_eq!(ids.agree_with(read.as_deref()), expected, "{answer}");
    }
}

#[test]
fn params_carry_ids() {
    for (params, expected) in [
        (r#"{"a":1}"#, r#"{"a":1,"prompt_token_ids":[1,20]}"#),
        (r#"{"prompt_token_ids":[9],"a":1}"#, r#"{"a":1,"prompt_token_ids":[1,20]}"#),
        ("7", "7"),
    ] {
        assert_eq!(in_params(params, b"[1,20]"), expected);
    }
}
