//! The digests of a request's history, each over all that is before it.
//!
//! A request that continues a conversation resends its history, so its chain begins with that conversation's. The answer
//! in between may come back edited; what the client itself sent before it stays. So the place to find a turn again
//! is the end of its request, not of its answer ([`Chain::mark`]).
//!
//! A prompt that is text has no such joints. It is cut into chunks, counted from its beginning, and found again by its
//! last whole one.

use super::Digest;
use super::canonical::canonical;
use super::digest::Hasher;
use super::scope::Scope;

/// Digests of a chain: 64 KiB of them. A history of more messages than that is no conversation that fits a model.
pub const DIGESTS_AT_MOST: usize = 4_096;

/// Of a text, between two digests. Smaller ones would find more of what is not worth moving.
pub const CHUNK_BYTES: usize = 1_024;

/// Of a history: some 3 ms of SHA-256 where the processor has instructions for it. More is a prompt of about a million tokens, or
/// media.
pub const HISTORY_BYTES_AT_MOST: usize = DIGESTS_AT_MOST * CHUNK_BYTES;

/// Why a request has no chain, so that it continues nothing unless its client names a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoChain {
    /// Nothing was said.
    #[error("the history is empty")]
    Empty,
    /// Over [`DIGESTS_AT_MOST`].
    #[error("the history has more than {DIGESTS_AT_MOST} messages")]
    TooManyMessages,
    /// Over [`HISTORY_BYTES_AT_MOST`].
    #[error("the history has more than {HISTORY_BYTES_AT_MOST} bytes")]
    TooLong,
}

/// The digests of one request's history. Those of other scopes are others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    digests: Vec<Digest>,
    mark: usize,
    opening: usize,
    has_media: bool,
}

impl Chain {
    /// Of a chat's messages, each as raw JSON. One that is no JSON is digested as it stands.
    pub fn of_messages<'a>(
        scope: &Scope,
        messages: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Self, NoChain> {
        let (mut digests, mut bytes, mut has_media, mut opening) = (Vec::new(), 0, false, None);
        let mut before = scope.seed();
        for message in messages {
            bytes += message.len();
            if bytes > HISTORY_BYTES_AT_MOST {
                return Err(NoChain::TooLong);
            }
            if digests.len() == DIGESTS_AT_MOST {
                return Err(NoChain::TooManyMessages);
            }
            before = match canonical(message) {
                Some(read) => {
                    has_media |= read.has_media;
                    opening = opening.or(read.is_of_user.then_some(digests.len()));
                    link(b'm', before, &read.digest.0)
                }
                None => {
                    // Who knows what is in it.
                    has_media = true;
                    link(b'r', before, message)
                }
            };
            digests.push(before);
        }
        let mark = digests.len().checked_sub(1).ok_or(NoChain::Empty)?;
        Ok(Self { digests, mark, opening: opening.unwrap_or(mark), has_media })
    }

    /// Of a prompt's text, as it stands in the body, less what ends it there.
    pub fn of_text(scope: &Scope, text: &[u8]) -> Result<Self, NoChain> {
        if text.is_empty() {
            return Err(NoChain::Empty);
        }
        if text.len() > HISTORY_BYTES_AT_MOST {
            return Err(NoChain::TooLong);
        }
        let mut before = scope.seed();
        let chunks = text.chunks(CHUNK_BYTES).map(|chunk| {
            before = link(b't', before, chunk);
            before
        });
        let digests: Vec<_> = chunks.collect();
        let mark = (text.len() / CHUNK_BYTES).saturating_sub(1);
        Ok(Self { digests, mark, opening: 0, has_media: !is_text_or_ids(text) })
    }

    /// The same, of a request that may bring media beside its history.
    pub fn beside_media(self) -> Self {
        Self { has_media: true, ..self }
    }

    /// All digests, of the shortest part of the history first.
    pub fn digests(&self) -> &[Digest] {
        &self.digests
    }

    /// Of the whole history.
    pub fn end(&self) -> Digest {
        self.digests[self.digests.len() - 1]
    }

    /// The digest that requests which continue this one have too: of all its messages, or of all whole chunks of its
    /// text. A text without a whole chunk is found again only by itself.
    pub fn mark(&self) -> Digest {
        self.digests[self.mark]
    }

    /// Up to the client's first words, or of the first chunk: the same for all turns and on every host, known or not, so that hosts who
    /// share nothing send a conversation's turns the same way.
    pub fn opening(&self) -> Digest {
        self.digests[self.opening]
    }

    /// Whether something that is not text may be in it, which tokens do not prove ([`super::guard::Refusal::Media`]).
    pub fn has_media(&self) -> bool {
        self.has_media
    }
}

/// Whether a prompt, as it stands in a body, is a text, ids, or lists of these: nothing that an engine may take for something else. Its
/// end may be cut off.
fn is_text_or_ids(prompt: &[u8]) -> bool {
    let mut rest = prompt;
    while let Some((first, after)) = rest.split_first() {
        rest = match first {
            b'"' => {
                let Some(after) = after_string(after) else { return true };
                after
            }
            b'[' | b']' | b',' | b'-' | b'0'..=b'9' | b' ' | b'\t' | b'\n' | b'\r' => after,
            _ => return false,
        };
    }
    true
}

/// What follows a string's closing quote, if there is one.
fn after_string(text: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(&text[at + 1..]);
        }
        at += 2;
    }
}

fn link(kind: u8, before: Digest, what: &[u8]) -> Digest {
    let mut hasher = Hasher::of(kind);
    hasher.bytes(&before.0);
    hasher.bytes(what);
    hasher.digest()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;

    fn scope(tenant: &str) -> Scope {
        let (tenant, model) = (tenant.to_owned(), "m".to_owned());
        Scope { tenant, model, adapter: None, salt: None, endpoint: Cow::Borrowed("/v1/chat/completions") }
    }

    fn chat(messages: &[&str]) -> Chain {
        Chain::of_messages(&scope("t"), messages.iter().map(|message| message.as_bytes())).expect("a history")
    }

    #[test]
    fn a_longer_history_begins_with_the_shorter_ones_digests() {
        let first = chat(&["1", "2"]);
        for (messages, equal) in
            [(&["1", "2", "3", "4"][..], 2), (&["1", "x", "3"], 1), (&["x", "2", "3"], 0), (&["2", "1"], 0)]
        {
            let other = chat(messages);
            let shared = first.digests().iter().zip(other.digests()).take_while(|(a, b)| a == b).count();
            assert_eq!(shared, equal, "{messages:?}");
            assert_eq!(other.digests().contains(&first.mark()), equal == 2, "{messages:?}");
        }
    }

    #[test]
    fn all_turns_have_one_opening() {
        let (system, user) = (r#"{"role":"system","content":"s"}"#, r#"{"content":"u","role":"user"}"#);
        let first = chat(&[system, user]);
        assert_eq!(first.opening(), first.end());
        assert_eq!(chat(&[system, user, r#"{"role":"assistant"}"#, user]).opening(), first.end());
        assert_ne!(chat(&[user]).opening(), first.end());
        assert_eq!(chat(&[system]).opening(), chat(&[system]).end());
    }

    #[test]
    fn scopes_share_no_digest() {
        let theirs = Chain::of_messages(&scope("theirs"), [&b"1"[..]]).expect("a history");
        assert_ne!(theirs.end(), chat(&["1"]).end());
    }

    #[test]
    fn what_is_unreadable_counts_as_media() {
        assert!(!chat(&[r#"{"role":"user","content":"x"}"#]).has_media());
        assert!(chat(&[r#"{"role":"user","content":"x"}"#, "{"]).has_media());
        assert_ne!(chat(&["{"]).end(), chat(&["{ "]).end());
    }

    #[test]
    fn a_prompt_is_text_or_ids() {
        for (prompt, has_media) in [
            (r#""a {\"b\":1} \\ "#, false),
            (r#"["a","b{" , "c\\"#, false),
            (r#"["a\"#, false),
            ("[1, 20,3", false),
            ("[[1],[ 2]", false),
            (r#"{"prompt_embeds":"a""#, true),
            (r#"["a",{"prompt_embeds":"a"}"#, true),
            (r#"["a\\",{}"#, true),
            ("[[1,{}]", true),
            ("[null", true),
            ("[true", true),
        ] {
            let chain = Chain::of_text(&scope("t"), prompt.as_bytes()).expect("a text");
            assert_eq!(chain.has_media(), has_media, "{prompt}");
            assert!(chain.beside_media().has_media());
        }
    }

    #[test]
    fn chains_are_bounded() {
        let of = |message: &'static [u8], count| {
            Chain::of_messages(&scope("t"), std::iter::repeat_n(message, count))
                .map(|chain| chain.digests().len())
        };
        static LONG: [u8; HISTORY_BYTES_AT_MOST + 1] = [b'1'; HISTORY_BYTES_AT_MOST + 1];
        assert_eq!(of(b"1", 0), Err(NoChain::Empty));
        assert_eq!(of(b"1", DIGESTS_AT_MOST), Ok(DIGESTS_AT_MOST));
        assert_eq!(of(b"1", DIGESTS_AT_MOST + 1), Err(NoChain::TooManyMessages));
        assert_eq!(of(&LONG, 1), Err(NoChain::TooLong));
        assert_eq!(Chain::of_text(&scope("t"), b""), Err(NoChain::Empty));
        assert_eq!(Chain::of_text(&scope("t"), &LONG), Err(NoChain::TooLong));
        let longest = Chain::of_text(&scope("t"), &LONG[1..]).expect("a text");
        assert_eq!(longest.digests().len(), DIGESTS_AT_MOST);
    }

    proptest! {
        /// A text that goes on has the mark of what it goes on from; one that differs before the mark's end has not.
        #[test]
        fn a_text_is_found_in_those_that_go_on(bytes in 1..5_000_usize, more in 0..3_000_usize, at in 0..5_000_usize) {
            let text = vec![b'x'; bytes];
            let first = Chain::of_text(&scope("t"), &text).expect("a text");
            let mut longer = vec![b'x'; bytes + more];
            let found = |text: &[u8]| Chain::of_text(&scope("t"), text).expect("a text").digests().contains(&first.mark());
            prop_assert_eq!(found(&longer), bytes >= CHUNK_BYTES || more == 0);
            let at = at % bytes;
            longer[at] = b'y';
            let unmarked = bytes >= CHUNK_BYTES && at >= bytes / CHUNK_BYTES * CHUNK_BYTES;
            prop_assert_eq!(found(&longer), unmarked);
        }
    }
}
