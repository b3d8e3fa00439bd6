//! What an answer tells of its turn beside its words: the engine's handle to the KV that it keeps, and the ids of the
//! tokens in it. An id too few or too many would let KV pass for that of another text, so what is not sure is not told.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::turn::AnswerEnd;
use crate::fleet::Pool;
use crate::http::sse::{self, Line};
use crate::http::token_ids::{Found, Value};
use crate::off_loop;
use crate::request::{Asks, ClientRequest};
use crate::telemetry::labels::TokenIds;

/// The most ids taken of a turn where its pool has no `max_model_len`, prompt and answer together: 8 MiB of them, more
/// than any model reads.
const TOKENS_AT_MOST: usize = 2 * 1024 * 1024;

/// The engine's `kv_transfer_params`, as soon as they came: the first that did. As long as an event or an answer may be; what is
/// too long for a handle is no good one.
pub(super) type ToldParams = Arc<OnceLock<Box<str>>>;

/// What an answer told, when it is whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Of the prompt as the engine read it.
    pub prompt_ids: Option<Ids>,
    /// Of all tokens that it generated.
    pub output_ids: Option<Vec<u32>>,
    /// Why there are no ids, or that there are; `None`: nobody asked for any.
    pub ids: Option<TokenIds>,
}

/// Ids as they were told at once. Those of a long prompt are read when they are needed: on no event loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ids {
    /// In numbers.
    Read(Vec<u32>),
    /// A JSON list of numbers.
    Text(Box<[u8]>),
}

impl Ids {
    fn of(list: &[u8]) -> Result<Self, TokenIds> {
        if off_loop::is_short(list.len()) {
            read_ids(list).map(Self::Read)
        } else {
            Ok(Self::Text(list.into()))
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        match self {
            Self::Read(ids) => ids.len(),
            Self::Text(list) => memchr::memchr_iter(b',', list).count() + 1,
        }
    }

    /// In numbers. `None` where one is none of an id.
    pub fn read(self) -> Option<Vec<u32>> {
        match self {
            Self::Read(ids) => Some(ids),
            Self::Text(list) => read_ids(&list).ok(),
        }
    }
}

/// Collects it from an answer on its way, and takes out what the client did not ask for.
#[derive(Debug)]
pub(super) struct Telling {
    /// Whether ids were asked for.
    asks: bool,
    /// Whether ids are for the host alone.
    strips: bool,
    ids_at_most: usize,
    params: ToldParams,
    prompt: Option<Ids>,
    output: Option<Vec<u32>>,
    doubt: Option<TokenIds>,
}

impl Telling {
    /// For the answer of a leg that was asked for this. One that was not asked for ids tells of the engine's handle alone, in the
    /// place that is given.
    pub fn of(pool: &Pool, request: &ClientRequest<'_>, asks: Asks, params: Option<ToldParams>) -> Self {
        let ids_at_most = pool.config.max_model_len.map_or(TOKENS_AT_MOST, |tokens| tokens as usize);
        let telling = Self::new(asks.token_ids && request.wants_token_ids() == Some(false), ids_at_most);
        Self { asks: asks.token_ids, params: params.unwrap_or_default(), ..telling }
    }

    /// Whether there is something to look for in each event.
    pub fn looks_at_each(&self) -> bool {
        self.strips || self.asks && self.doubt.is_none()
    }

    pub(super) fn new(strips: bool, ids_at_most: usize) -> Self {
        let params = ToldParams::default();
        Self { asks: true, strips, ids_at_most, params, prompt: None, output: None, doubt: None }
    }

    #[cfg(test)]
    pub fn params(&self) -> Option<String> {
        self.params.get().map(|params| params.to_string())
    }

    /// What the client gets of a whole answer.
    pub fn whole(&mut self, answer: Bytes) -> Bytes {
        let Ok(found) = Found::read(&answer) else { return answer };
        self.takes(&found);
        let cleaned = if self.strips { found.without_ids(&answer) } else { None };
        cleaned.map_or(answer, Bytes::from)
    }

    /// What the client gets of an event of a stream; `None`: it would not be there if nobody had asked for ids.
    pub fn event(&mut self, event: Bytes) -> Option<Bytes> {
        let (mut is_needless, mut changes) = (false, false);
        let cleaned = sse::rewrite(&event, |payload| {
            let Ok(found) = Found::read(payload) else { return Line::Keep };
            self.takes(&found);
            is_needless |= self.strips && found.has_ids_alone;
            let cleaned = if self.strips { found.without_ids(payload) } else { None };
            changes |= cleaned.is_some();
            cleaned.map_or(Line::Keep, Line::Replace)
        });
        if is_needless {
            return None;
        }
        Some(if changes { cleaned } else { event })
    }

    /// Takes what events of a stream tell that nobody gets any more.
    pub fn events(&mut self, whole: &Bytes) {
        sse::events(whole).for_each(|event| drop(self.event(event)));
    }

    fn takes(&mut self, found: &Found<'_>) {
        if let Some(params) = found.params.text().and_then(|params| std::str::from_utf8(params).ok()) {
            let _ = self.params.set(params.into());
        }
        if self.asks
            && self.doubt.is_none()
            && let Err(doubt) = self.takes_ids(found)
        {
            self.doubt = Some(doubt);
            (self.prompt, self.output) = (None, None);
        }
    }

    fn takes_ids(&mut self, found: &Found<'_>) -> Result<(), TokenIds> {
        if found.choices > 1 || found.has_others {
            return Err(TokenIds::SeveralChoices);
        }
        if let Some(ids) = found.prompt_ids.text() {
            self.prompt = Some(Ids::of(ids)?);
        }
        match found.output_ids {
            Value::Text(ids) => self.output.get_or_insert_default().append(&mut read_ids(ids)?),
            Value::Null => return Err(TokenIds::Hidden),
            // A chat opens with a chunk of its role alone, and ends with one of usage alone.
            Value::Absent if found.choices > 0 && self.output.is_some() => return Err(TokenIds::Hidden),
            Value::Absent => {}
        }
        let prompt = self.prompt.as_ref().map_or(0, Ids::count);
        if prompt + self.output.as_ref().map_or(0, Vec::len) > self.ids_at_most {
            return Err(TokenIds::TooMany);
        }
        Ok(())
    }

    /// The answer is whole.
    pub fn end(self, end: &AnswerEnd) -> Told {
        let counts = |ids: usize, counted: Option<u32>| counted.is_none_or(|count| ids == count as usize);
        let (prompt_ids, output_ids, ids) = match (self.doubt, self.prompt, self.output) {
            (Some(doubt), ..) => (None, None, doubt),
            (None, Some(prompt), Some(output)) => {
                if counts(prompt.count(), end.prompt_tokens) && counts(output.len(), end.output_tokens) {
                    (Some(prompt), Some(output), TokenIds::Told)
                } else {
                    (None, None, TokenIds::Miscounted)
                }
            }
            _ => (None, None, TokenIds::Absent),
        };
        Told { prompt_ids, output_ids, ids: self.asks.then_some(ids) }
    }
}

fn read_ids(list: &[u8]) -> Result<Vec<u32>, TokenIds> {
    serde_json::from_slice(list).map_err(|_| TokenIds::Unreadable)
}
