//! Finding where a JSON value ends without building it.
//!
//! Long strings, which prompts are, are crossed by a vectorised search for their end, so that the few members
//! that routing needs are found at memory speed. Structure is checked fully: brackets, commas, colons, literals.
//! What is inside numbers and strings is left to whoever reads them, since it cannot move a value's end.

use memchr::{memchr, memchr2, memchr3};

/// Nesting allowed, in levels. Tool schemas nest a dozen deep; serde_json's own bound is the same.
const DEPTH_AT_MOST: u32 = 128;

/// What is wrong with a text, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct JsonError {
    /// What was found or expected.
    pub what: &'static str,
    /// Offset from the text's start, in bytes.
    pub at: usize,
}

/// A place in a text.
#[derive(Debug, Clone)]
pub(super) struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

/// What may come next inside a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Value,
    ValueOrEnd,
    Name,
    NameOrEnd,
    CommaOrEnd,
}

impl<'a> Scanner<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn error<T>(&self, what: &'static str) -> Result<T, JsonError> {
        Err(JsonError { what, at: self.at })
    }

    /// The next byte that is no white space, without passing it.
    pub fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.text.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    /// Passes this byte, after white space, if it is next.
    pub fn take(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    /// Passes a string, whose opening quote is next. Returns whether it holds an escape.
    pub fn string(&mut self) -> Result<bool, JsonError> {
        if !self.take(b'"') {
            return self.error("a string was expected");
        }
        let mut escaped = false;
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let Some(offset) = memchr2(b'"', b'\\', rest) else {
                self.at = self.text.len();
                return self.error("the text ends inside a string");
            };
            if rest[offset] == b'"' {
                self.at += offset + 1;
                return Ok(escaped);
            }
            // Whatever is escaped cannot end the string.
            self.at += offset + 2;
            escaped = true;
        }
    }

    /// Passes a list of numbers at memory speed; any other value as [`Self::value`] does.
    pub fn numbers(&mut self) -> Result<(), JsonError> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let inside = rest.strip_prefix(b"[").and_then(|inside| inside.get(..memchr(b']', inside)?));
        match inside.filter(|inside| memchr3(b'[', b'{', b'"', inside).is_none()) {
            Some(inside) => {
                self.at += inside.len() + 2;
                Ok(())
            }
            None => self.value(),
        }
    }

    /// Passes a value of any kind.
    pub fn value(&mut self) -> Result<(), JsonError> {
        // One bit a level: set for objects.
        let (mut objects, mut depth) = (0_u128, 0);
        let mut next = Next::Value;
        loop {
            let in_object = objects & 1 == 1;
            let Some(byte) = self.peek() else { return self.error("the text ends inside a value") };
            let closes = matches!((byte, in_object), (b'}', true) | (b']', false)) && depth > 0;
            match next {
                Next::ValueOrEnd | Next::NameOrEnd | Next::CommaOrEnd if closes => {
                    self.at += 1;
                    objects >>= 1;
                    depth -= 1;
                    next = Next::CommaOrEnd;
                }
                Next::CommaOrEnd => {
                    if byte != b',' {
                        return self.error("a comma or a closing bracket was expected");
                    }
                    self.at += 1;
                    next = if in_object { Next::Name } else { Next::Value };
                }
                Next::Name | Next::NameOrEnd => {
                    self.string()?;
                    if !self.take(b':') {
                        return self.error("a colon was expected");
                    }
                    next = Next::Value;
                }
                Next::Value | Next::ValueOrEnd => {
                    next = match byte {
                        b'{' | b'[' => {
                            if depth == DEPTH_AT_MOST {
                                return self.error("nested deeper than 128 levels");
                            }
                            self.at += 1;
                            depth += 1;
                            objects = objects << 1 | u128::from(byte == b'{');
                            if byte == b'{' { Next::NameOrEnd } else { Next::ValueOrEnd }
                        }
                        _ => {
                            self.scalar(byte)?;
                            Next::CommaOrEnd
                        }
                    };
                }
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn scalar(&mut self, first: u8) -> Result<(), JsonError> {
        match first {
            b'"' => self.string().map(drop),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            b'-' | b'0'..=b'9' => {
                let rest = self.text.get(self.at..).unwrap_or_default();
                let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                self.at += rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
                Ok(())
            }
            _ => self.error("a value was expected"),
        }
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), JsonError> {
        if self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            self.at += word.len();
            return Ok(());
        }
        self.error("a value was expected")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(text: &str) -> Result<usize, JsonError> {
        let mut scanner = Scanner::new(text.as_bytes());
        scanner.value().map(|()| scanner.at())
    }

    #[test]
    fn values_end_where_they_end() {
        for text in [
            "1",
            "-1.5e+3",
            "true",
            "false",
            "null",
            r#""""#,
            r#""a\"b\\""#,
            "[]",
            "{}",
            "[1 , [2,{}] ]",
            r#"{"a":[{"b":"]}"}],"c":null}"#,
            " \n[\t1 ]",
        ] {
            assert_eq!(length(text), Ok(text.len()), "{text}");
            assert_eq!(length(&format!("{text} ,x")), Ok(text.len()), "{text}");
        }
    }

    #[test]
    fn errors_say_what_and_where() {
        for (text, what, at) in [
            ("", "the text ends inside a value", 0),
            ("[1", "the text ends inside a value", 2),
            (r#"["a"#, "the text ends inside a string", 3),
            (r#""a\"#, "the text ends inside a string", 3),
            ("[1 2]", "a comma or a closing bracket was expected", 3),
            ("[1}", "a comma or a closing bracket was expected", 2),
            ("[1,]", "a value was expected", 3),
            (r#"{"a" 1}"#, "a colon was expected", 5),
            (r#"{"a":1,}"#, "a string was expected", 7),
            ("{1:2}", "a string was expected", 1),
            ("nul", "a value was expected", 0),
            ("}", "a value was expected", 0),
            ("[NaN]", "a value was expected", 1),
        ] {
            assert_eq!(length(text), Err(JsonError { what, at }), "{text}");
        }
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(length(&deep(128)).is_ok());
        assert!(length(&deep(129)).is_err());
    }

    proptest::proptest! {
        #[test]
        fn what_serde_reads_is_passed_whole(text in r#"[\[\]{}",:a1\\ tn-]{0,24}"#) {
            let strict = serde_json::from_str::<&serde_json::value::RawValue>(&text);
            if let Ok(value) = strict {
                let mut scanner = Scanner::new(text.as_bytes());
                proptest::prop_assert_eq!(scanner.value(), Ok(()));
                proptest::prop_assert_eq!(text[..scanner.at()].trim_start(), value.get());
            }
        }
    }
}
