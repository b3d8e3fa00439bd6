//! Which requests cannot be split over prefill and decode: several sequences of one prompt, several prompts, and
//! logits of the prompt itself.

use serde_json::value::RawValue;

use crate::http::error::ApiError;
use crate::http::members::{Members, Raw};
use crate::request::optional;

/// The member for which a request cannot be split, if there is one.
pub(crate) fn unsplittable(members: &Members<'_>) -> Result<Option<&'static str>, ApiError> {
    for name in ["n", "best_of"] {
        if optional::<u32>(members, name)?.is_some_and(|count| count > 1) {
            return Ok(Some(name));
        }
    }
    if optional::<bool>(members, "echo")?.unwrap_or(false) {
        return Ok(Some("echo"));
    }
    if members.get("prompt_logprobs").is_some() {
        return Ok(Some("prompt_logprobs"));
    }
    Ok(members.get("prompt").is_some_and(holds_several_prompts).then_some("prompt"))
}

/// `["a", "b"]` and `[[1], [2]]` are several prompts; `[1, 2]`, `["a"]` and `[[1, 2]]` are one.
fn holds_several_prompts(prompt: Raw<'_>) -> bool {
    let inner = prompt.get().strip_prefix('[').unwrap_or_default().trim_start();
    // An array of token ids is one prompt, and too long to be read for nothing.
    if !inner.starts_with(['"', '[']) {
        return false;
    }
    serde_json::from_str::<Vec<&RawValue>>(prompt.get()).is_ok_and(|prompts| prompts.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_split_is_known() {
        for (extra, expected) in [
            ("", None),
            (r#","n":1"#, None),
            (r#","n":2"#, Some("n")),
            (r#","best_of":3"#, Some("best_of")),
            (r#","echo":true"#, Some("echo")),
            (r#","echo":false"#, None),
            (r#","prompt_logprobs":0"#, Some("prompt_logprobs")),
            (r#","prompt_logprobs":null"#, None),
            (r#","prompt":["a","b"]"#, Some("prompt")),
            (r#","prompt":[[1,2],[3]]"#, Some("prompt")),
            (r#","prompt":[ 1, 2 ]"#, None),
            (r#","prompt":["one"]"#, None),
            (r#","prompt":[ [1, 2] ]"#, None),
            (r##","prompt":"[[""##, None),
        ] {
            let body = format!(r#"{{"model":"m","prompt":"x"{extra}}}"#);
            let members = Members::parse(body.as_bytes()).expect("valid");
            assert_eq!(unsplittable(&members).expect("valid"), expected, "{extra}");
        }
    }
}
