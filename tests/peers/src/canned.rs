//! What the mock engine answers, and how a client knows that an answer is its own.
//!
//! A prompt begins with a mark, `[mark NNNNNNNN pace PPPP]`: a number that the answer must repeat, and the time between
//! the chunks of a stream in milliseconds. A mark is text of the prompt, so every router passes it on.

use bytes::Bytes;
use memchr::memmem;

/// The model of the mock.
pub const MODEL: &str = "emulated";

/// Chunks of a streamed answer, `[DONE]` not counted.
pub const CHUNKS: usize = 64;

/// Digits of a mark's number.
const NUMBER_DIGITS: usize = 8;
/// Digits of a mark's pace.
const PACE_DIGITS: usize = 4;

const MARK: &str = "[mark ";
const PACE: &str = " pace ";

/// What a prompt's mark says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The answer repeats it.
    pub number: u32,
    /// Between two chunks.
    pub pace_ms: u16,
}

impl Mark {
    /// As text.
    pub fn text(self) -> String {
        format!("{MARK}{:0NUMBER_DIGITS$}{PACE}{:0PACE_DIGITS$}]", self.number, self.pace_ms)
    }

    /// The first mark in a body.
    pub fn find(body: &[u8]) -> Option<Self> {
        let number_at = memmem::find(body, MARK.as_bytes())? + MARK.len();
        let pace_at = number_at + NUMBER_DIGITS + PACE.len();
        let digits = |at: usize, count: usize| std::str::from_utf8(body.get(at..at + count)?).ok();
        Some(Self {
            number: digits(number_at, NUMBER_DIGITS)?.parse().ok()?,
            pace_ms: digits(pace_at, PACE_DIGITS)?.parse().ok()?,
        })
    }
}

/// A chat request: exactly `bytes` long as JSON, a mark first, then words with an escape in each line.
pub fn request(mark: Mark, bytes: usize, streamed: bool) -> Bytes {
    let head = format!(
        "{{\"model\":\"{MODEL}\",\"max_tokens\":{CHUNKS},\"temperature\":0,{}\"messages\":[{{\"role\":\"user\",\"content\":\"{}",
        if streamed { "\"stream\":true,\"stream_options\":{\"include_usage\":true}," } else { "" },
        mark.text()
    );
    let tail = "\"}]}";
    let line = "the quick brown fox jumps over the lazy dog and a router sends it on its way\\n";
    let mut body = head;
    while body.len() + line.len() + tail.len() <= bytes {
        body.push_str(line);
    }
    while body.len() + tail.len() < bytes {
        body.push('.');
    }
    body.push_str(tail);
    body.into()
}

/// Who answered: an engine that did all of it, or a decode engine with a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// One engine, without a handle.
    Alone,
    /// The second leg of a split request.
    Pulled,
}

impl Served {
    /// Its word in an answer.
    fn word(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Pulled => "pulled",
        }
    }
}

fn said(mark: Mark, served: Served) -> String {
    format!("{:0NUMBER_DIGITS$} {}", mark.number, served.word())
}

/// A whole answer in the shape of vLLM 0.32's.
pub fn whole(mark: Mark, served: Served) -> Bytes {
    answer(&said(mark, served), "null").into()
}

/// The answer to a prefill leg: one token, and a handle as vLLM 0.32 with NIXL gives it.
pub fn prefilled(mark: Mark) -> Bytes {
    const HANDLE: &str = "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":[[1,2,3,4]],\
        \"remote_engine_id\":\"153c11c5-e4d8-4219-9b21-fca21b23bf4f\",\
        \"remote_request_id\":\"chatcmpl-6eaacf161d524e509fbb2186adacbf6d-0-aab29650\",\"remote_host\":\"127.0.0.1\",\
        \"remote_port\":5600,\"tp_size\":1,\"dcp_size\":1,\"pp_size\":1,\"remote_num_tokens\":58,\
        \"remote_blocks_expiry_time\":null,\"transfer_mode\":\"pull\",\"remote_prefill_cached_tokens\":0}";
    answer(&said(mark, Served::Alone), HANDLE).into()
}

fn answer(said: &str, handle: &str) -> String {
    format!(
        "{{\"id\":\"chatcmpl-6eaacf161d524e509fbb2186adacbf6d\",\"object\":\"chat.completion\",\"created\":1795973302,\
         \"model\":\"{MODEL}\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{said}\",\
         \"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],\
         \"reasoning\":null}},\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null,\
         \"routed_experts\":null}}],\"service_tier\":null,\"system_fingerprint\":\"vllm-0.32.0-bf936440\",\
         \"usage\":{{\"prompt_tokens\":58,\"total_tokens\":122,\"completion_tokens\":64,\
         \"prompt_tokens_details\":null}},\"prompt_logprobs\":null,\"prompt_token_ids\":null,\"prompt_text\":null,\
         \"kv_transfer_params\":{handle},\"ec_transfer_params\":null,\"metrics\":null}}"
    )
}

/// The first chunk of a stream, which alone tells the mark.
pub fn first_chunk(mark: Mark, served: Served) -> Bytes {
    chunk(&said(mark, served), "null").into()
}

/// Every chunk between the first and the last.
pub fn middle_chunk() -> Bytes {
    Bytes::from(chunk(" word", "null"))
}

/// The last chunk and the end of the stream, each an event.
pub fn last_chunks() -> [Bytes; 2] {
    [Bytes::from(chunk(".", "\"length\"")), Bytes::from_static(b"data: [DONE]\n\n")]
}

fn chunk(content: &str, finish_reason: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-afcbcae5e13eb5d9\",\"object\":\"chat.completion.chunk\",\"created\":1795982931,\
         \"model\":\"{MODEL}\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}},\"logprobs\":null,\
         \"finish_reason\":{finish_reason},\"token_ids\":null}}]}}\n\n"
    )
}

/// Says what is wrong with an answer's body, if anything is.
pub fn fault(body: &[u8], mark: Mark, served: Served, streamed: bool) -> Option<String> {
    let wanted = format!("\"{}\"", said(mark, served));
    if memmem::find(body, wanted.as_bytes()).is_none() {
        return Some(format!("does not say {wanted}: {}", shown(body)));
    }
    if !streamed {
        return (!body.ends_with(b"}")).then(|| format!("breaks off: {}", shown(body)));
    }
    let events = memmem::find_iter(body, b"data: ").count();
    if events != CHUNKS + 1 || !body.ends_with(b"data: [DONE]\n\n") {
        return Some(format!("{events} events, ends with {}", shown(&body[body.len().saturating_sub(80)..])));
    }
    None
}

/// The head of a body, for people.
pub fn shown(body: &[u8]) -> String {
    const SHOWN_BYTES: usize = 200;
    String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Mark = Mark { number: 7, pace_ms: 250 };

    #[test]
    fn a_request_has_its_length_and_its_mark() {
        for (bytes, streamed) in [(2_048, false), (2_048, true), (65_536, true)] {
            let body = request(ONE, bytes, streamed);
            assert_eq!((body.len(), Mark::find(&body)), (bytes, Some(ONE)));
            let json: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(json["stream"].as_bool(), streamed.then_some(true));
        }
        assert_eq!(Mark::find(b"[mark 1"), None);
    }

    #[test]
    fn only_the_right_answer_passes() {
        let other = Mark { number: 8, ..ONE };
        let right = whole(ONE, Served::Pulled);
        assert_eq!(fault(&right, ONE, Served::Pulled, false), None);
        assert!(fault(&right, other, Served::Pulled, false).is_some());
        assert!(fault(&right, ONE, Served::Alone, false).is_some());
        assert!(fault(&right[..right.len() - 1], ONE, Served::Pulled, false).is_some());
        assert!(serde_json::from_slice::<serde_json::Value>(&prefilled(ONE)).is_ok());
    }

    #[test]
    fn a_stream_must_be_whole() {
        let mut stream = first_chunk(ONE, Served::Alone).to_vec();
        for _ in 2..CHUNKS {
            stream.extend_from_slice(&middle_chunk());
        }
        let short = [&stream[..], &last_chunks()[1]].concat();
        stream.extend_from_slice(&last_chunks().concat());
        assert_eq!(fault(&stream, ONE, Served::Alone, true), None);
        assert!(fault(&short, ONE, Served::Alone, true).is_some());
        assert!(fault(&stream[..stream.len() - 3], ONE, Served::Alone, true).is_some());
    }
}
