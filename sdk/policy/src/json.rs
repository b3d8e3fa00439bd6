//! Reads the outermost object of a JSON text, and writes JSON texts. Small on purpose: a general JSON library
//! would be more than half of a policy's file.

/// Deeper nesting than this is refused, so that no text can exhaust the guest's stack.
const MAX_DEPTH: u32 = 32;

/// Keys and raw values of the object that the text is.
pub(crate) fn object(text: &str) -> Result<Vec<(String, &str)>, String> {
    let mut reader = Reader { text, at: 0 };
    reader.skip_space();
    if reader.peek() != Some(b'{') {
        return Err(format!("they must be a JSON object such as {{}}, and are {}", text.trim()));
    }
    let mut members = Vec::new();
    reader.members(MAX_DEPTH, |key, value| members.push((key, value)))?;
    reader.skip_space();
    if reader.at < text.len() { Err(reader.expected("the end")) } else { Ok(members) }
}

/// The text that a raw JSON string stands for; `None` when the raw value is no string.
pub(crate) fn unquote(raw: &str) -> Option<String> {
    let mut inner = raw.strip_prefix('"')?.strip_suffix('"')?.chars();
    let mut text = String::with_capacity(raw.len());
    while let Some(character) = inner.next() {
        text.push(if character == '\\' { escaped(&mut inner)? } else { character });
    }
    Some(text)
}

/// A text as a raw JSON string.
pub(crate) fn quote(text: &str) -> String {
    let mut raw = String::with_capacity(text.len() + 2);
    raw.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => raw.extend(['\\', character]),
            '\n' => raw.push_str("\\n"),
            // Other control characters have no place in a description or a setting.
            control if control < ' ' => raw.push(' '),
            plain => raw.push(plain),
        }
    }
    raw.push('"');
    raw
}

fn escaped(rest: &mut std::str::Chars<'_>) -> Option<char> {
    Some(match rest.next()? {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'u' => match code_unit(rest)? {
            high @ 0xd800..=0xdbff => {
                let pair = rest.next() == Some('\\') && rest.next() == Some('u');
                let low = pair.then(|| code_unit(rest))??;
                char::decode_utf16([high, low]).next()?.ok()?
            }
            unit => char::from_u32(u32::from(unit))?,
        },
        itself @ ('"' | '\\' | '/') => itself,
        _ => return None,
    })
}

fn code_unit(rest: &mut std::str::Chars<'_>) -> Option<u16> {
    let digits = rest.as_str().get(..4)?;
    *rest = rest.as_str().get(4..)?.chars();
    u16::from_str_radix(digits, 16).ok()
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The text from there to here. Both are ends of ASCII characters, so that it is never cut inside one.
    fn since(&self, from: usize) -> &'a str {
        self.text.get(from..self.at).unwrap_or_default()
    }

    fn skip_while(&mut self, wanted: impl Fn(u8) -> bool) {
        while self.peek().is_some_and(&wanted) {
            self.at += 1;
        }
    }

    fn skip_space(&mut self) {
        self.skip_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    }

    fn accept(&mut self, byte: u8) -> bool {
        self.skip_space();
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn expected(&self, what: &str) -> String {
        format!("they are not JSON: expected {what} at byte {}", self.at)
    }

    /// An object, from its opening brace on.
    fn members(&mut self, depth: u32, mut member: impl FnMut(String, &'a str)) -> Result<(), String> {
        self.at += 1;
        if self.accept(b'}') {
            return Ok(());
        }
        loop {
            self.skip_space();
            let key = unquote(self.string()?).ok_or_else(|| self.expected("a valid key before here"))?;
            if !self.accept(b':') {
                return Err(self.expected("`:`"));
            }
            member(key, self.value(depth)?);
            if self.accept(b'}') {
                return Ok(());
            }
            if !self.accept(b',') {
                return Err(self.expected("`,` or `}`"));
            }
        }
    }

    /// An array, from its opening bracket on.
    fn elements(&mut self, depth: u32) -> Result<(), String> {
        self.at += 1;
        if self.accept(b']') {
            return Ok(());
        }
        loop {
            self.value(depth)?;
            if self.accept(b']') {
                return Ok(());
            }
            if !self.accept(b',') {
                return Err(self.expected("`,` or `]`"));
            }
        }
    }

    fn value(&mut self, depth: u32) -> Result<&'a str, String> {
        let Some(depth) = depth.checked_sub(1) else { return Err(self.expected("less nesting")) };
        self.skip_space();
        let from = self.at;
        match self.peek() {
            Some(b'{') => self.members(depth, |_, _| ())?,
            Some(b'[') => self.elements(depth)?,
            Some(b'"') => {
                self.string()?;
            }
            Some(b'-' | b'0'..=b'9') => {
                self.skip_while(|byte| matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E' | b'0'..=b'9'));
            }
            _ => {
                self.skip_while(|byte| byte.is_ascii_lowercase());
                if !matches!(self.since(from), "true" | "false" | "null") {
                    self.at = from;
                    return Err(self.expected("a value"));
                }
            }
        }
        Ok(self.since(from))
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let from = self.at;
        if !self.accept(b'"') {
            return Err(self.expected("`\"`"));
        }
        loop {
            self.skip_while(|byte| byte != b'"' && byte != b'\\');
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(self.since(from));
                }
                // The escaped character cannot end the string, whatever it is.
                Some(_) if self.at + 1 < self.text.len() => self.at += 2,
                _ => return Err(self.expected("the end of the text that starts before here")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_members_raw() {
        let text = r#" { "a" : 1e3, "b\n": "x\"y\\", "c": [1, {"d": []}, null], "e": {"f": true} } "#;
        let members = object(text).expect("valid");
        let members: Vec<_> = members.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        let expected =
            [("a", "1e3"), ("b\n", r#""x\"y\\""#), ("c", r#"[1, {"d": []}, null]"#), ("e", r#"{"f": true}"#)];
        assert_eq!(members, expected);
        assert_eq!(object("{}").expect("empty"), []);
    }

    #[test]
    fn refuses_what_is_not_an_object() {
        let cases = [
            ("[1]", "must be a JSON object"),
            ("", "must be a JSON object"),
            ("{", "expected `\"` at byte 1"),
            (r#"{"a""#, "expected `:` at byte 4"),
            (r#"{"a": maybe}"#, "expected a value at byte 6"),
            (r#"{"a": "#, "expected a value at byte 6"),
            (r#"{"a": 1 "b": 2}"#, "expected `,` or `}` at byte 8"),
            (r#"{"a": [1 2]}"#, "expected `,` or `]` at byte 9"),
            (r#"{"a": "\"#, "expected the end of the text"),
            (r#"{"a": "é"#, "expected the end of the text"),
            (r#"{"\x": 1}"#, "expected a valid key"),
            (r#"{"a": 1} 2"#, "expected the end at byte 9"),
        ];
        for (text, expected) in cases {
            let message = object(text).expect_err(text);
            assert!(message.contains(expected), "{text}: {message}");
        }
        let deep = format!(r#"{{"a": {}}}"#, "[".repeat(100_000));
        assert!(object(&deep).expect_err("too deep").contains("less nesting"));
    }

    #[test]
    fn strings_go_there_and_back() {
        for text in ["", "plain", "two\nlines", r#"quo"te \ slash"#, "é 😀"] {
            assert_eq!(unquote(&quote(text)).as_deref(), Some(text));
        }
        assert_eq!(unquote(r#""\u00e9 \ud83d\ude00 \/""#).as_deref(), Some("é 😀 /"));
        for raw in [r#""\ud83d""#, r#""\u12""#, r#""\q""#, "1", r#"""#] {
            assert_eq!(unquote(raw), None, "{raw}");
        }
    }
}
