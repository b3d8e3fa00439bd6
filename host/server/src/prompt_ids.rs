//! The token ids of a prompt, before it is prefilled: which requests an engine's `/tokenize` reads as its generation
//! endpoints do, and what it is asked.
//!
//! Ids of another rendering would prove the wrong thing. So a member counts as harmless only if vLLM is known to leave
//! prompts alone for it: what is not in a list here refuses.

use std::sync::Arc;

use bytes::Bytes;
use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::members::Members;
use crate::http::segments::Segments;
use crate::http::token_ids::Found;
use crate::request::{ClientRequest, Endpoint, STRIPPED};
use crate::telemetry::labels::Tokenized;

/// What `/tokenize` takes of a chat, and reads as a chat does. Not a template of the client's own: one that throws dice, or tells the
/// time, makes another prompt each time.
const OF_CHATS: [&str; 7] = [
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template_kwargs",
];

/// The same of a completion.
const OF_COMPLETIONS: [&str; 3] = ["model", "prompt", "add_special_tokens"];

/// What acts on the answer alone, on both endpoints, and what only OpenAI's own servers read.
const HARMLESS: [&str; 51] = [
    "allowed_token_ids",
    "bad_words",
    "best_of",
    "frequency_penalty",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "length_penalty",
    "logit_bias",
    "logprob_token_ids",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "min_p",
    "min_tokens",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "priority",
    "prompt_cache_key",
    "repetition_detection",
    "repetition_penalty",
    "return_prompt_text",
    "return_token_ids",
    "return_token_offsets",
    "return_tokens_as_token_ids",
    "routed_experts_prompt_start",
    "safety_identifier",
    "seed",
    "service_tier",
    "session_id",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "store",
    "stream",
    "stream_interval",
    "stream_options",
    "structured_outputs",
    "temperature",
    "thinking_token_budget",
    "top_k",
    "top_logprobs",
    "top_p",
    "use_beam_search",
    "user",
    "verbosity",
    "vllm_xargs",
    "watermarking",
];

/// Members that are known to act on prompts, or on how they are cut: to be named.
const KNOWN: [&str; 15] = [
    "chat_template",
    "documents",
    "echo",
    "function_call",
    "functions",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "prompt_embeds",
    "prompt_logprobs",
    "reasoning_effort",
    "response_format",
    "suffix",
    "tool_choice",
    "truncate_prompt_tokens",
    "truncation_side",
];

/// Those of them that bring what no token tells of, or say how such is read.
const OF_MEDIA: [&str; 3] = ["media_io_kwargs", "mm_processor_kwargs", "prompt_embeds"];

/// An older name of a message's member: generation endpoints rename it, and `/tokenize` does not.
const RENAMED: &str = "reasoning_content";

/// Why a prompt's ids are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoIds {
    /// A member's name, or words where the name is the client's own.
    #[error("{0:?} may act on the prompt in a way that /tokenize does not know")]
    NotRenderable(&'static str),
    /// Each has ids of its own.
    #[error("there are several prompts")]
    SeveralPrompts,
    /// Nobody to ask.
    #[error("no prefill worker is up")]
    NoWorker,
    /// This host asks as much as it may.
    #[error("{at_once} prompts are being tokenised")]
    Busy {
        /// The bound.
        at_once: usize,
    },
    /// No answer came in time.
    #[error("no answer within {within_ms} ms")]
    Late {
        /// The bound.
        within_ms: u128,
    },
    /// The engine could not be asked, or refused.
    #[error("{0}")]
    Failed(String),
    /// What came, or what the client wrote, is no list of ids.
    #[error("there is no list of token ids in {0}")]
    Unreadable(&'static str),
}

impl NoIds {
    /// For metrics.
    pub fn result(&self) -> Tokenized {
        match self {
            Self::NotRenderable(_) => Tokenized::NotRenderable,
            Self::SeveralPrompts => Tokenized::SeveralPrompts,
            Self::NoWorker => Tokenized::NoWorker,
            Self::Busy { .. } => Tokenized::Busy,
            Self::Late { .. } => Tokenized::Late,
            Self::Failed(_) => Tokenized::Failed,
            Self::Unreadable(_) => Tokenized::Unreadable,
        }
    }
}

/// A prompt's token ids, at least one. Cheap to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptIds(Arc<[u32]>);

/// Whether an engine read a prompt as `/tokenize` did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreement {
    /// The same ids.
    Same,
    /// Others, from this token on.
    Differ {
        /// Tokens that are the same.
        from: usize,
    },
    /// The answer does not say what it read.
    Untold,
}

impl PromptIds {
    fn new(ids: Vec<u32>, of: &'static str) -> Result<Self, NoIds> {
        if ids.is_empty() { Err(NoIds::Unreadable(of)) } else { Ok(Self(ids.into())) }
    }

    /// The ids.
    pub fn ids(&self) -> &Arc<[u32]> {
        &self.0
    }

    /// Holds them against what an engine read, as a JSON list ([`read_by`]).
    pub fn agree_with(&self, read: Option<&[u8]>) -> Agreement {
        let Some(read) = read.and_then(|list| serde_json::from_slice::<Vec<u32>>(list).ok()) else {
            return Agreement::Untold;
        };
        if read[..] == self.0[..] {
            return Agreement::Same;
        }
        Agreement::Differ {
            from: read.iter().zip(self.0.iter()).take_while(|(one, other)| one == other).count(),
        }
    }
}

/// The JSON list of a prompt's ids in the answer of a leg that was asked for them, as its engine read it.
pub fn read_by(answer: &Bytes) -> Option<Bytes> {
    let list = Found::read(answer).ok()?.prompt_ids.text()?;
    Some(answer.slice_ref(list))
}

/// `kv_transfer_params` (raw JSON) with this list of ids in it, so that an engine from 0.33 on does not tokenise again. What is no
/// object stays as it is.
pub fn in_params(params: &str, list: &[u8]) -> String {
    let list = std::str::from_utf8(list).ok();
    let members = list.zip(Members::parse(params.as_bytes()).ok());
    let written = members.map(|(list, members)| members.write(&[], &[("prompt_token_ids", list)]));
    written.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| params.to_owned())
}

/// How a prompt's ids are found.
#[derive(Debug)]
pub enum Source {
    /// The client wrote ids.
    Written(PromptIds),
    /// An engine is to be asked with this body.
    Asked(Segments),
}

/// Where a request's prompt ids come from, or why they cannot be known.
///
/// # Errors
/// See [`NoIds`].
pub fn source(request: &ClientRequest<'_>) -> Result<Source, NoIds> {
    let members = &request.members;
    let taken: &[&str] = match request.endpoint {
        Endpoint::Chat => &OF_CHATS,
        Endpoint::Completions => &OF_COMPLETIONS,
    };
    for name in members.names().filter(|name| !taken.contains(name)) {
        if members.get(name).is_some() && !is_harmless(request, name) {
            let known = KNOWN.iter().find(|known| **known == name);
            return Err(NoIds::NotRenderable(known.copied().unwrap_or("a member of another name")));
        }
    }
    let prompt = match request.endpoint {
        Endpoint::Chat => {
            let messages = members.get("messages").map_or("", |messages| messages.get());
            if memmem::find(messages.as_bytes(), RENAMED.as_bytes()).is_some() {
                return Err(NoIds::NotRenderable(RENAMED));
            }
            None
        }
        Endpoint::Completions => match written(members.get("prompt").map_or("", |prompt| prompt.get()))? {
            Written::Ids(ids) => return Ok(Source::Written(ids)),
            Written::Text(text) => Some(("prompt", text)),
        },
    };
    Ok(Source::Asked(request.only(taken, prompt.as_slice())))
}

/// Whether a request may bring, beside its prompt, what that prompt's token ids say nothing of. Who knows what is in a member that
/// nobody knows.
pub fn may_bring_media(request: &ClientRequest<'_>) -> bool {
    let is_told_by_tokens = |name: &str| {
        let known = [&OF_CHATS[..], &OF_COMPLETIONS, &HARMLESS, &KNOWN, &STRIPPED]
            .iter()
            .any(|all| all.contains(&name));
        known && !OF_MEDIA.contains(&name)
    };
    request.members.names().any(|name| request.members.get(name).is_some() && !is_told_by_tokens(name))
}

fn is_harmless(request: &ClientRequest<'_>, name: &str) -> bool {
    let written = || request.members.get(name).map_or("", |value| value.get());
    match (request.endpoint, name) {
        // Some templates tell a model of a choice that it must make, some servers leave out tools that it must not use.
        (Endpoint::Chat, "tool_choice") => match written() {
            "\"auto\"" => true,
            "\"none\"" => request.members.get("tools").is_none(),
            _ => false,
        },
        // Some chat templates tell of it.
        (Endpoint::Completions, "response_format") => true,
        (_, "echo") => written() == "false",
        _ => HARMLESS.contains(&name) || STRIPPED.contains(&name),
    }
}

/// A completion's prompt.
enum Written<'a> {
    Ids(PromptIds),
    /// A JSON string.
    Text(&'a str),
}

/// `"a"` and `["a"]` are one text, `[1, 2]` and `[[1, 2]]` one list of ids.
fn written(prompt: &str) -> Result<Written<'_>, NoIds> {
    const OF: &str = "the member \"prompt\"";
    let first = |text: &str| text.bytes().next();
    let inside = prompt.strip_prefix('[').map(str::trim_start);
    let one = match inside.map(first) {
        Some(Some(b'"' | b'[')) => {
            let prompts: Vec<&RawValue> = serde_json::from_str(prompt).map_err(|_| NoIds::Unreadable(OF))?;
            let [one] = prompts[..] else { return Err(NoIds::SeveralPrompts) };
            one.get()
        }
        _ => prompt,
    };
    if first(one) == Some(b'"') {
        return Ok(Written::Text(one));
    }
    let ids = serde_json::from_str(one).map_err(|_| NoIds::Unreadable(OF))?;
    PromptIds::new(ids, OF).map(Written::Ids)
}

/// The ids in an answer of `/tokenize`.
///
/// # Errors
/// [`NoIds::Unreadable`], also where it counts other than it lists.
pub fn answered(answer: &[u8]) -> Result<PromptIds, NoIds> {
    const OF: &str = "the answer of /tokenize";
    #[derive(Deserialize)]
    struct Answer {
        count: usize,
        tokens: Vec<u32>,
    }
    match serde_json::from_slice::<Answer>(answer) {
        Ok(Answer { count, tokens }) if count == tokens.len() => PromptIds::new(tokens, OF),
        _ => Err(NoIds::Unreadable(OF)),
    }
}

#[cfg(test)]
#[path = "prompt_ids_cases.rs"]
mod cases;
