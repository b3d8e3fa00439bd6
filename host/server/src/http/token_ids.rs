//! Token ids in engines' answers: where they stand, and the answer as it is where nobody asked for them.
//!
//! vLLM writes them on `return_token_ids`: those of the prompt once, at a chat's top or in a completion's choice, those of
//! the answer in each choice of a whole answer or chunk. Where nobody asks, the same members are there as `null`, so that
//! is what takes an id list's place, and all other bytes stay as they came.

use std::ops::Range;

use crate::http::json_scan::{JsonError, Scanner};

/// The ids of a prompt.
const PROMPT: &[u8] = b"prompt_token_ids";
/// Those of a choice's tokens.
const OUTPUT: &[u8] = b"token_ids";

/// A member that may be there as `null`, or not be there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Value<'a> {
    /// No such member.
    #[default]
    Absent,
    /// `null`.
    Null,
    /// Its JSON text.
    Text(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Of another type than `null`.
    pub fn text(self) -> Option<&'a [u8]> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// What a whole answer or a chunk tells of tokens.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found<'a> {
    /// `kv_transfer_params`.
    pub params: Value<'a>,
    /// Of the prompt.
    pub prompt_ids: Value<'a>,
    /// Of the first choice.
    pub output_ids: Value<'a>,
    /// How many there are.
    pub choices: usize,
    /// Whether a choice is not the answer's first.
    pub has_others: bool,
    /// Whether it is a chunk that would not have been sent if nobody had asked: it has neither words nor an end.
    pub has_ids_alone: bool,
    /// Where ids stand in the text.
    lists: Vec<Range<usize>>,
}

impl<'a> Found<'a> {
    /// Looks through a whole answer, or a chunk's payload. One pass, at memory speed.
    ///
    /// # Errors
    /// What is no JSON object.
    pub fn read(text: &'a [u8]) -> Result<Self, JsonError> {
        let (mut scanner, mut found) = (Scanner::new(text), Self::default());
        object(&mut scanner, text, |scanner, name| match name {
            b"choices" if scanner.peek() == Some(b'[') => found.read_choices(scanner, text),
            b"kv_transfer_params" => value(scanner, text).map(|(_, value)| found.params = value),
            PROMPT => found.list(scanner, text).map(|ids| found.prompt_ids = ids),
            _ => scanner.value(),
        })?;
        Ok(found)
    }

    fn read_choices(&mut self, scanner: &mut Scanner<'a>, text: &'a [u8]) -> Result<(), JsonError> {
        scanner.take(b'[');
        while !scanner.take(b']') {
            self.read_choice(scanner, text)?;
            scanner.take(b',');
        }
        Ok(())
    }

    fn read_choice(&mut self, scanner: &mut Scanner<'a>, text: &'a [u8]) -> Result<(), JsonError> {
        let (mut is_empty, mut has_more) = (false, false);
        let (mut output_ids, mut is_first) = (Value::Absent, true);
        object(scanner, text, |scanner, name| match name {
            OUTPUT => self.list(scanner, text).map(|ids| output_ids = ids),
            PROMPT => self.list(scanner, text).map(|ids| self.prompt_ids = ids),
            b"index" => value(scanner, text).map(|(_, index)| is_first = index == Value::Text(b"0")),
            b"delta" => value(scanner, text).map(|(_, delta)| is_empty = delta == Value::Text(b"{}")),
            b"finish_reason" | b"logprobs" => {
                value(scanner, text).map(|(_, value)| has_more |= value != Value::Null)
            }
            _ => scanner.value(),
        })?;
        self.choices += 1;
        self.has_others |= !is_first;
        self.has_ids_alone = self.choices == 1 && is_empty && !has_more && output_ids.text().is_some();
        if is_first {
            self.output_ids = output_ids;
        }
        Ok(())
    }

    /// An id list, which is noted down.
    fn list(&mut self, scanner: &mut Scanner<'a>, text: &'a [u8]) -> Result<Value<'a>, JsonError> {
        let (range, value) = passed(scanner, text, Scanner::numbers)?;
        if value != Value::Null {
            self.lists.push(range);
        }
        Ok(value)
    }

    /// The text with `null` for each id list; `None` when there is none.
    pub fn without_ids(&self, text: &[u8]) -> Option<Vec<u8>> {
        if self.lists.is_empty() {
            return None;
        }
        let mut out = Vec::with_capacity(text.len());
        let mut from = 0;
        for list in &self.lists {
            out.extend_from_slice(&text[from..list.start]);
            out.extend_from_slice(b"null");
            from = list.end;
        }
        out.extend_from_slice(&text[from..]);
        Some(out)
    }
}

/// Passes an object whose members' values are passed by `member`.
fn object<'a>(
    scanner: &mut Scanner<'a>,
    text: &'a [u8],
    mut member: impl FnMut(&mut Scanner<'a>, &'a [u8]) -> Result<(), JsonError>,
) -> Result<(), JsonError> {
    if !scanner.take(b'{') {
        return scanner.error("a JSON object was expected");
    }
    if scanner.take(b'}') {
        return Ok(());
    }
    loop {
        scanner.peek();
        let from = scanner.at();
        scanner.string()?;
        let name = &text[from + 1..scanner.at() - 1];
        if !scanner.take(b':') {
            return scanner.error("a colon was expected");
        }
        scanner.peek();
        member(scanner, name)?;
        if scanner.take(b'}') {
            return Ok(());
        }
        if !scanner.take(b',') {
            return scanner.error("a comma or a closing bracket was expected");
        }
    }
}

fn value<'a>(scanner: &mut Scanner<'a>, text: &'a [u8]) -> Result<(Range<usize>, Value<'a>), JsonError> {
    passed(scanner, text, Scanner::value)
}

/// A value that is passed in this way.
fn passed<'a>(
    scanner: &mut Scanner<'a>,
    text: &'a [u8],
    pass: impl FnOnce(&mut Scanner<'a>) -> Result<(), JsonError>,
) -> Result<(Range<usize>, Value<'a>), JsonError> {
    let from = scanner.at();
    pass(scanner)?;
    let range = from..scanner.at();
    let value = &text[range.clone()];
    Ok((range, if value == b"null" { Value::Null } else { Value::Text(value) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_where_engines_write_them() {
        let chunk = br#"{"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop","token_ids":[1, 2]}],"kv_transfer_params":{"a":[1]}}"#;
        let found = Found::read(chunk).expect("valid");
        assert_eq!((found.output_ids, found.prompt_ids), (Value::Text(b"[1, 2]"), Value::Absent));
        assert_eq!((found.params, found.choices), (Value::Text(br#"{"a":[1]}"#), 1));
        let completion = br#"{"choices":[{"index":0,"text":"a","prompt_token_ids":[7],"token_ids":null}],"kv_transfer_params":null}"#;
        let found = Found::read(completion).expect("valid");
        assert_eq!(
            (found.output_ids, found.prompt_ids, found.params),
            (Value::Null, Value::Text(b"[7]"), Value::Null)
        );
    }

    /// What is not a member of the answer or of a choice is words, and stays.
    #[test]
    fn lists_become_null_and_nothing_else_changes() {
        for (text, expected) in [
            (r#"{}"#, None),
            (r#"{"choices":[]}"#, None),
            (r#"{"choices":7,"token_ids":[1]}"#, None),
            (r#"{"choices":[{"index":0,"token_ids":null}],"prompt_token_ids":null}"#, None),
            (
                r#"{"prompt_token_ids":[1,2] ,"choices": [ {"index":0, "token_ids": [3] } , {"token_ids":[]}]}"#,
                Some(
                    r#"{"prompt_token_ids":null ,"choices": [ {"index":0, "token_ids": null } , {"token_ids":null}]}"#,
                ),
            ),
            // No list of numbers, but a value all the same.
            (r#"{"prompt_token_ids":["]",[1]],"x":1}"#, Some(r#"{"prompt_token_ids":null,"x":1}"#)),
            (
                r#"{"choices":[{"message":{"content":"\"token_ids\":[1]","token_ids":[1]},"token_ids":[2]}]}"#,
                Some(
                    r#"{"choices":[{"message":{"content":"\"token_ids\":[1]","token_ids":[1]},"token_ids":null}]}"#,
                ),
            ),
        ] {
            let found = Found::read(text.as_bytes()).expect(text);
            let cleaned =
                found.without_ids(text.as_bytes()).map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
            assert_eq!(cleaned.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn choices_are_told_apart() {
        for (choices, expected) in [
            (r#"[{"index":0,"token_ids":[1]}]"#, (1, false, false)),
            (r#"[{"index":1,"token_ids":[1]}]"#, (1, true, false)),
            (r#"[{"index":0,"token_ids":[1]},{"index":1,"token_ids":[1]}]"#, (2, true, false)),
            (
                r#"[{"index":0,"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[1]}]"#,
                (1, false, true),
            ),
            (
                r#"[{"index":0,"delta":{},"logprobs":null,"finish_reason":null,"token_ids":null}]"#,
                (1, false, false),
            ),
            (
                r#"[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","token_ids":[1]}]"#,
                (1, false, false),
            ),
            (
                r#"[{"index":0,"delta":{},"logprobs":{"content":[]},"finish_reason":null,"token_ids":[1]}]"#,
                (1, false, false),
            ),
            (
                r#"[{"index":0,"delta":{"content":""},"finish_reason":null,"token_ids":[1]}]"#,
                (1, false, false),
            ),
        ] {
            let text = format!(r#"{{"choices":{choices}}}"#);
            let found = Found::read(text.as_bytes()).expect("valid");
            assert_eq!((found.choices, found.has_others, found.has_ids_alone), expected, "{choices}");
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["", "[DONE]", "null", "{", r#"{"choices":[1]}"#, r#"{"choices":[{}"#, r#"{"a":1 "b":2}"#]
        {
            assert!(Found::read(text.as_bytes()).is_err(), "{text}");
        }
    }
}
