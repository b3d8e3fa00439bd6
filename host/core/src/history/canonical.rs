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
//!
//! Media are what is not proven to be text. Engines look for them in a message's content by members that stand for others, by the last
//! of two with one name, by escaped names. So all of a message has to be known: its members, each once and plainly written, what its
//! content is, and in that each part.

use super::Digest;
use super::digest::Hasher;

/// Values within values, of messages that are read: one that goes deeper is digested as it stands.
const DEPTH_AT_MOST: usize = 32;

/// Of a message, not looked at.
const REASONING: [&[u8]; 2] = [b"reasoning", b"reasoning_content"];

/// Members of a message that are text, so that their tokens say all about them; its content is looked into.
const TEXT_MEMBERS: [&[u8]; 10] = [
    b"role",
    b"content",
    b"name",
    b"tool_calls",
    b"tool_call_id",
    b"function_call",
    b"reasoning",
    b"reasoning_content",
    b"refusal",
    b"annotations",
];

/// Types of a content's parts that are text, each with the member that the text is in.
const TEXT_PARTS: [(&[u8], &[u8]); 5] = [
    (b"text", b"text"),
    (b"input_text", b"text"),
    (b"output_text", b"text"),
    (b"refusal", b"refusal"),
    (b"thinking", b"thinking"),
];

/// Of a part: it tells where to cache, and is no part of the prompt.
const CACHE_CONTROL: &[u8] = b"cache_control";

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

    /// Whether a value that begins so can be text here.
    fn may_be_text(self, first: u8) -> bool {
        match self {
            Self::Message => first == b'{',
            // `null` among them.
            Self::Content => matches!(first, b'[' | b'"' | b'n'),
            Self::Part => matches!(first, b'{' | b'"'),
            Self::Elsewhere => true,
        }
    }
}

/// What has been read of a part.
#[derive(Default)]
struct Part<'a> {
    kind: Option<&'a [u8]>,
    text_in: Option<&'a [u8]>,
    has_others: bool,
}

impl<'a> Part<'a> {
    fn member(&mut self, name: &'a [u8], value: &'a [u8]) {
        if name == b"type" {
            self.kind = unquoted(value);
        } else if name != CACHE_CONTROL {
            self.has_others |= self.text_in.is_some() || unquoted(value).is_none();
            self.text_in = Some(name);
        }
    }

    fn is_text(&self) -> bool {
        let (Some(kind), Some(text_in)) = (self.kind, self.text_in) else { return false };
        !self.has_others && TEXT_PARTS.contains(&(kind, text_in))
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
        let first = *self.text.get(self.at)?;
        self.has_media |= !place.may_be_text(first);
        match first {
            b'{' => self.object(place, depth),
            b'[' => self.array(place, depth),
            b'"' => self.string(),
            _ => self.literal(),
        }
    }

    fn object(&mut self, place: Place, depth: usize) -> Option<Digest> {
        self.at += 1;
        let (mut members, mut part) = (Vec::<(&[u8], Digest)>::new(), Part::default());
        while !self.ends(b'}', members.is_empty())? {
            self.blanks();
            let name = self.name()?;
            self.blanks();
            self.byte(b':')?;
            self.blanks();
            let from = self.at;
            let digest = self.value(place.of_member(name), depth + 1)?;
            let value = &self.text[from..self.at];
            match place {
                Place::Message => {
                    self.is_of_user |= name == b"role" && unquoted(value) == Some(b"user");
                    self.has_media |= !is_text_member(name, digest);
                }
                Place::Part => part.member(name, value),
                Place::Content | Place::Elsewhere => {}
            }
            members.push((name, digest));
        }
        members.sort_by_key(|(name, _)| *name);
        self.has_media |= match place {
            Place::Message => has_repeated(&members),
            Place::Part => has_repeated(&members) || !part.is_text(),
            Place::Content | Place::Elsewhere => false,
        };
        members.retain(|(name, digest)| {
            *digest != NOTHING && !(place == Place::Message && REASONING.contains(name))
        });
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

/// Whether a message's member is text, or says nothing. A name that is escaped is none that is known: it may stand for another.
fn is_text_member(name: &[u8], value: Digest) -> bool {
    TEXT_MEMBERS.contains(&name) || value == NOTHING && !name.contains(&b'\\')
}

/// Whether there are two with one name; they are in the order of their names.
fn has_repeated(members: &[(&[u8], Digest)]) -> bool {
    members.windows(2).any(|pair| pair[0].0 == pair[1].0)
}

/// The inside of a string.
fn unquoted(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

#[cfg(test)]
mod tests;
