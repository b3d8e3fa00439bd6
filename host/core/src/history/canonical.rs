//! A chat message's digest, the same for JSON that libraries write differently.
//!
//! One pass. Each object's members are digested where they stand and then put in the order of their names, which costs
//! a sort of a few names. What is not told apart, and why:
//!
//! - blanks between tokens, the order of members, and how characters are escaped: a client may send an answer back as another
//!   library wrote it;
//! - members that say nothing (`null`, `""`, `[]`): libraries send an answer's empty members back, or do not;
//! - an answer's reasoning: clients leave it out in one turn or another, and chat templates do as well.
//!
//! Numbers are told apart as they are written, and so are names that are escaped: nobody writes those in two ways.

use super::Digest;
use super::digest::Hasher;

/// Values within values, of messages that are read: one that goes deeper is digested as it stands.
const DEPTH_AT_MOST: usize = 32;

/// Of a message, not looked at.
const REASONING: [&[u8]; 2] = [b"reasoning", b"reasoning_content"];

/// Types of a content's parts that are text, so that their tokens say all about them.
const TEXT_TYPES: [&[u8]; 5] = [b"text", b"input_text", b"output_text", b"refusal", b"thinking"];

/// A value that says nothing.
const NOTHING: Digest = Digest([0; 16]);

pub(super) struct Canonical {
    pub digest: Digest,
    /// Something that is not text may be in it: tokens do not tell two images apart.
    pub has_media: bool,
    /// The client's own words.
    pub is_of_user: bool,
}

/// Reads a message. `None` where it is no JSON value, or one too deep.
pub(super) fn canonical(message: &[u8]) -> Option<Canonical> {
    let mut reader = Reader { text: message, at: 0, has_media: false, is_of_user: false };
    let digest = reader.value(Place::Message, 0)?;
    reader.blanks();
    let Reader { at, has_media, is_of_user, .. } = reader;
    (at == message.len()).then_some(Canonical { digest, has_media, is_of_user })
}

/// Where in a message a value stands.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Message,
    Content,
    Part,
    Elsewhere,
}

impl Place {
    fn of_member(self, name: &[u8]) -> Self {
        if self == Self::Message && name == b"content" { Self::Content } else { Self::Elsewhere }
    }

    fn of_item(self) -> Self {
        if self == Self::Content { Self::Part } else { Self::Elsewhere }
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    has_media: bool,
    is_of_user: bool,
}

impl<'a> Reader<'a> {
    fn value(&mut self, place: Place, depth: usize) -> Option<Digest> {
        if depth > DEPTH_AT_MOST {
            return None;
        }
        self.blanks();
        match self.text.get(self.at)? {
            b'{' => self.object(place, depth),
            b'[' => self.array(place, depth),
            b'"' => self.string(),
            _ => self.literal(),
        }
    }

    fn object(&mut self, place: Place, depth: usize) -> Option<Digest> {
        self.at += 1;
        let mut members: Vec<(&[u8], Digest)> = Vec::new();
        let mut is_text = false;
        while !self.ends(b'}', members.is_empty())? {
            self.blanks();
            let name = self.name()?;
            self.blanks();
            self.byte(b':')?;
            self.blanks();
            let from = self.at;
            let digest = self.value(place.of_member(name), depth + 1)?;
            let value = unquoted(&self.text[from..self.at]);
            is_text |= name == b"type" && value.is_some_and(|value| TEXT_TYPES.contains(&value));
            self.is_of_user |= place == Place::Message && name == b"role" && value == Some(b"user");
            members.push((name, digest));
        }
        self.has_media |= place == Place::Part && !is_text;
        members.retain(|(name, digest)| {
            *digest != NOTHING && !(place == Place::Message && REASONING.contains(name))
        });
        members.sort_by_key(|(name, _)| *name);
        let mut hasher = Hasher::of(b'o');
        for (name, digest) in members {
            hasher.counted(name);
            hasher.bytes(&digest.0);
        }
        Some(hasher.digest())
    }

    fn array(&mut self, place: Place, depth: usize) -> Option<Digest> {
        self.at += 1;
        let (mut hasher, mut is_empty) = (Hasher::of(b'a'), true);
        while !self.ends(b']', is_empty)? {
            hasher.bytes(&self.value(place.of_item(), depth + 1)?.0);
            is_empty = false;
        }
        Some(if is_empty { NOTHING } else { hasher.digest() })
    }

    /// Whether what was opened ends here, or has another item, which is then next.
    fn ends(&mut self, end: u8, is_first: bool) -> Option<bool> {
        self.blanks();
        if *self.text.get(self.at)? == end {
            self.at += 1;
            return Some(true);
        }
        if !is_first {
            self.byte(b',')?;
        }
        Some(false)
    }

    /// Characters that are always escaped stay so, since nearly all write them alike; the others are taken out of it.
    fn string(&mut self) -> Option<Digest> {
        self.at += 1;
        let (mut hasher, start) = (Hasher::of(b's'), self.at);
        let mut from = start;
        loop {
            self.skip_plain()?;
            let end = self.at;
            self.at += 1;
            if self.text[end] == b'"' {
                hasher.bytes(&self.text[from..end]);
                return Some(if end == start { NOTHING } else { hasher.digest() });
            }
            let escaped = *self.text.get(self.at)?;
            self.at += 1;
            match escaped {
                b'"' | b'\\' | b'n' | b't' | b'r' | b'b' | b'f' => continue,
                b'/' | b'u' => hasher.bytes(&self.text[from..end]),
                _ => return None,
            }
            match if escaped == b'/' { '/' } else { self.code()? } {
                '"' => hasher.bytes(b"\\\""),
                '\\' => hasher.bytes(b"\\\\"),
                '\n' => hasher.bytes(b"\\n"),
                '\t' => hasher.bytes(b"\\t"),
                '\r' => hasher.bytes(b"\\r"),
                '\u{8}' => hasher.bytes(b"\\b"),
                '\u{c}' => hasher.bytes(b"\\f"),
                other => hasher.bytes(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
            from = self.at;
        }
    }

    /// To the next quote or backslash.
    fn skip_plain(&mut self) -> Option<()> {
        self.at += memchr::memchr2(b'"', b'\\', &self.text[self.at..])?;
        Some(())
    }

    /// The character behind `\u`. Halves of pairs that stand alone are all taken for one.
    fn code(&mut self) -> Option<char> {
        let high = self.hex()?;
        let mut code = high;
        if (0xd800..0xdc00).contains(&high) && self.text[self.at..].starts_with(b"\\u") {
            self.at += 2;
            code = 0x1_0000 + ((high - 0xd800) << 10) + (self.hex()? & 0x3ff);
        }
        Some(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = std::str::from_utf8(self.text.get(self.at..self.at + 4)?).ok()?;
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }

    fn literal(&mut self) -> Option<Digest> {
        let rest = &self.text[self.at..];
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let literal = &rest[..rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len())];
        self.at += literal.len();
        let mut hasher = Hasher::of(b'l');
        hasher.bytes(literal);
        match literal {
            b"" => None,
            b"null" => Some(NOTHING),
            _ => Some(hasher.digest()),
        }
    }

    fn name(&mut self) -> Option<&'a [u8]> {
        self.byte(b'"')?;
        let from = self.at;
        loop {
            self.skip_plain()?;
            self.at += 1;
            match self.text[self.at - 1] {
                b'"' => return Some(&self.text[from..self.at - 1]),
                _ => self.at += 1,
            }
            // A backslash at the end.
            self.text.get(self.at)?;
        }
    }

    fn byte(&mut self, wanted: u8) -> Option<()> {
        (*self.text.get(self.at)? == wanted).then(|| self.at += 1)
    }

    fn blanks(&mut self) {
        let is_blank = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.at += self.text[self.at..].iter().take_while(is_blank).count();
    }
}

/// The inside of a string.
fn unquoted(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        let (one, other) =
            (r#""\" \\ / \n\t\r\b\f""#, r#""\u0022 \u005C \/ \u000a\u0009\u000D\u0008\u000c""#);
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

    #[test]
    fn media_are_seen_by_what_is_not_said_to_be_text() {
        for (content, expected) in [
            (r#""a""#, false),
            (r#"["a"]"#, false),
            (r#"[{"type":"text","text":"a"},{"text":"b","type":"input_text"}]"#, false),
            (r#"[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:"}}]"#, true),
            (r#"[{"image_url":"data:"}]"#, true),
            (r#"[{"type":"new_kind","text":"a"}]"#, true),
        ] {
            let message = format!(r#"{{"role":"user","content":{content}}}"#);
            let has_media = canonical(message.as_bytes()).map(|canonical| canonical.has_media);
            assert_eq!(has_media, Some(expected), "{content}");
        }
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
}
