//! The `usage` that a client of a split request is told.
//!
//! Its counts of prompt and completion tokens are the decode engine's, which generates every token of the answer; of the
//! prefill leg's token nothing reaches the client. Its `cached_tokens` must come from the prefill engine: to the decode
//! engine, a prompt whose KV was transferred is cached as a whole.

use bytes::Bytes;
use memchr::memmem::Finder;

use crate::http::members::Members;
use crate::http::sse::{self, Line};

/// Where the count of cached prompt tokens stands in `usage`.
const DETAILS: &str = "prompt_tokens_details";
const CACHED: &str = "cached_tokens";

/// What the prefill engine said of a prompt whose KV was transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillUsage {
    /// Prompt tokens that it had cached, if it said.
    pub cached_tokens: Option<u32>,
}

impl PrefillUsage {
    /// Reads a prefill engine's answer: its handle's count, else its own usage.
    pub fn of(handle_says: Option<u32>, answer: &Members<'_>) -> Self {
        let usage_says = || {
            let usage = Members::parse(answer.get("usage")?.get().as_bytes()).ok()?;
            let details = Members::parse(usage.get(DETAILS)?.get().as_bytes()).ok()?;
            details.read(CACHED).ok()?
        };
        Self { cached_tokens: handle_says.or_else(usage_says) }
    }

    /// The `usage` of the decode engine's answer as the client is told it; `None` when it stays as it is: it tells
    /// nothing of cached tokens, or the same.
    pub fn usage(self, answer: &Members<'_>) -> Option<String> {
        let usage = Members::parse(answer.get("usage")?.get().as_bytes()).ok()?;
        let details = Members::parse(usage.get(DETAILS)?.get().as_bytes()).ok()?;
        let told = details.get(CACHED)?.get();
        let details = match self.cached_tokens {
            Some(cached) => {
                let prompt = usage.read::<u32>("prompt_tokens").ok().flatten().unwrap_or(u32::MAX);
                let cached = cached.min(prompt).to_string();
                if told == cached {
                    return None;
                }
                details.write(&[], &[(CACHED, &cached)])
            }
            // Nobody said: better nothing than the decode engine's count, which is of transferred tokens.
            None => details.write(&[CACHED], &[]),
        };
        let details = String::from_utf8(details).ok()?;
        let details = if details == "{}" { "null" } else { &details };
        String::from_utf8(usage.write(&[], &[(DETAILS, details)])).ok()
    }

    /// The same for an event of a stream, which stays as it came unless its usage changes.
    pub fn in_event(self, event: Bytes) -> Bytes {
        thread_local! {
            static FINDER: Finder<'static> = Finder::new(CACHED);
        }
        if FINDER.with(|finder| finder.find(&event).is_none()) {
            return event;
        }
        sse::rewrite(&event, |payload| {
            let Ok(members) = Members::parse(payload) else { return Line::Keep };
            let usage = self.usage(&members);
            usage.map_or(Line::Keep, |usage| Line::Replace(members.write(&[], &[("usage", &usage)])))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(details: &str) -> String {
        format!(
            r#"{{"prompt_tokens":58,"total_tokens":90,"completion_tokens":32,"prompt_tokens_details":{details}}}"#
        )
    }

    #[test]
    fn cached_tokens_are_the_prefill_engines() {
        for (prefill_says, decode_says, client_is_told) in [
            (Some(32), r#"{"cached_tokens":58}"#, Some(r#"{"cached_tokens":32}"#)),
            (Some(0), r#"{"cached_tokens":57}"#, Some(r#"{"cached_tokens":0}"#)),
            (
                Some(32),
                r#"{"cached_tokens":0,"audio_tokens":1}"#,
                Some(r#"{"audio_tokens":1,"cached_tokens":32}"#),
            ),
            // More than there are is no count.
            (Some(99), r#"{"cached_tokens":3}"#, Some(r#"{"cached_tokens":58}"#)),
            (None, r#"{"cached_tokens":58}"#, Some("null")),
            (None, r#"{"cached_tokens":58,"audio_tokens":1}"#, Some(r#"{"audio_tokens":1}"#)),
            (Some(32), r#"{"cached_tokens":32}"#, None),
            // An engine that does not tell such details is not made to.
            (Some(32), "null", None),
            (Some(32), "{}", None),
            (Some(32), r#"{"cached_tokens":null}"#, None),
            (Some(32), "7", None),
        ] {
            let answer = format!(r#"{{"id":"x","usage":{}}}"#, usage(decode_says));
            let members = Members::parse(answer.as_bytes()).expect("valid");
            let told = PrefillUsage { cached_tokens: prefill_says }.usage(&members);
            let expected = client_is_told.map(usage);
            assert_eq!(told, expected, "prefill {prefill_says:?}, decode {decode_says}");
        }
    }

    #[test]
    fn what_a_prefill_engine_says_is_found() {
        for (handle_says, answer, expected) in [
            (Some(3), format!(r#"{{"usage":{}}}"#, usage(r#"{"cached_tokens":9}"#)), Some(3)),
            (None, format!(r#"{{"usage":{}}}"#, usage(r#"{"cached_tokens":9}"#)), Some(9)),
            (None, format!(r#"{{"usage":{}}}"#, usage("null")), None),
            (None, r#"{"usage":"odd"}"#.to_owned(), None),
            (None, "{}".to_owned(), None),
        ] {
            let members = Members::parse(answer.as_bytes()).expect("valid");
            assert_eq!(PrefillUsage::of(handle_says, &members).cached_tokens, expected, "{answer}");
        }
    }

    #[test]
    fn only_events_with_such_a_count_change() {
        let prefilled = PrefillUsage { cached_tokens: Some(32) };
        for (event, expected) in [
            ("data: {\"id\":1, \"usage\":null}\n\n".to_owned(), None),
            ("data: {\"choices\":[{\"text\":\"cached_tokens\"}], \"usage\":null}\n\n".to_owned(), None),
            ("data: [DONE]\n\n".to_owned(), None),
            ("data: {\"cached_tokens\": half\n\n".to_owned(), None),
            (
                format!("id: 3\ndata: {{\"choices\":[],\"usage\":{}}}\n\n", usage("{\"cached_tokens\":58}")),
                Some(format!(
                    "id: 3\ndata: {{\"choices\":[],\"usage\":{}}}\n\n",
                    usage("{\"cached_tokens\":32}")
                )),
            ),
        ] {
            let expected = expected.unwrap_or_else(|| event.clone());
            assert_eq!(prefilled.in_event(Bytes::from(event)), expected);
        }
    }
}
