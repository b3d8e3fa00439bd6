//! Requests in a closed loop, each compared with the answer that the oracle knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_harness::{Ask, Client, Reply};
use sluice_sim::words;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Ends that may wait to be counted.
const ENDS_WAITING: usize = 1_024;

/// Faults of each kind kept to be shown; all are counted.
const FAULTS_KEPT: usize = 5;

/// Conversations that requests belong to: enough to fill a session store for good, few enough to do so early.
const CONVERSATIONS: u64 = 5_000;

/// Words of a prompt, and tokens of an answer.
const PROMPT_WORDS: usize = 24;
const ANSWER_TOKENS: usize = 8;

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// As it should.
    Right,
    /// With an error, and nothing of an answer: the host could have tried again.
    Failed(String),
    /// A stream that had begun ended in an error event: nobody may try it again.
    CutShort(String),
    /// An answer that is not the right one passed for it. Must never happen.
    Wrong(String),
}

/// Ends, counted.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Right answers.
    pub right: u64,
    /// Requests that failed before the first byte of an answer.
    pub failed: u64,
    /// Streams that ended in an error event.
    pub cut_short: u64,
    /// Wrong answers that passed for right ones.
    pub wrong: u64,
    failures: Vec<String>,
    cuts: Vec<String>,
    wrongs: Vec<String>,
}

impl Tally {
    /// All of them.
    pub fn requests(&self) -> u64 {
        self.right + self.failed + self.cut_short + self.wrong
    }

    /// Those that the host could answer rightly, whatever happened to engines: all but streams that had begun.
    pub fn retryable(&self) -> u64 {
        self.requests() - self.cut_short
    }

    /// One more.
    pub fn count(&mut self, end: End) {
        let (count, kept, why) = match end {
            End::Right => {
                self.right += 1;
                return;
            }
            End::Failed(why) => (&mut self.failed, &mut self.failures, why),
            End::CutShort(why) => (&mut self.cut_short, &mut self.cuts, why),
            End::Wrong(why) => (&mut self.wrong, &mut self.wrongs, why),
        };
        *count += 1;
        if kept.len() < FAULTS_KEPT {
            kept.push(why);
        }
    }

    /// The first faults of each kind, a line each.
    pub fn faults(&self) -> Vec<String> {
        let kinds = [("failed", &self.failures), ("cut short", &self.cuts), ("WRONG", &self.wrongs)];
        kinds
            .iter()
            .flat_map(|(kind, faults)| faults.iter().map(move |why| format!("{kind}: {why}")))
            .collect()
    }
}

/// Request `number`: chats and completions, whole and in events, within a conversation and without. Its number opens
/// the prompt, so that no two answers are the same but by chance.
pub fn ask(number: u64) -> Ask {
    let prompt = format!("[{number}]{}", words(number, PROMPT_WORDS));
    let ask = match number % 2 {
        0 => Ask::completion(&prompt, ANSWER_TOKENS),
        _ => Ask::question(&prompt, ANSWER_TOKENS),
    };
    let ask = if number % 8 < 4 {
        ask.with("conversation_id", format!("c{}", number % CONVERSATIONS))
    } else {
        ask
    };
    if (number / 2).is_multiple_of(4) { ask.streamed() } else { ask }
}

/// What to think of an answer.
pub fn judge(ask: &Ask, reply: &Reply) -> End {
    if reply.status != 200 {
        return End::Failed(format!("status {}: {:?}", reply.status, reply.error));
    }
    let expected = ask.expected();
    if let Some(error) = &reply.error {
        // An engine ends a stream with [DONE] after its error event, too: the event is what tells the client.
        return match &reply.text {
            none if none.is_empty() => End::Failed(format!("an error before any text: {error}")),
            begun if expected.text.starts_with(begun) => End::CutShort(error.to_string()),
            other => End::Wrong(format!("{other:?} instead of {:?}, then {error}", expected.text)),
        };
    }
    if ask.streams() && !reply.done {
        return End::Wrong(format!("a stream ends without [DONE] after {:?}", reply.text));
    }
    expected.differs_from(reply).map_or(End::Right, End::Wrong)
}

/// A load under way. Dropping it ends it.
#[derive(Debug)]
pub struct Running {
    ends: mpsc::Receiver<End>,
    _clients: JoinSet<()>,
}

impl Running {
    /// The next request that ended; `None` after the last.
    pub async fn next(&mut self) -> Option<End> {
        self.ends.recv().await
    }
}

/// Sends requests 0 to `requests` from so many clients, each of which waits for its answer.
pub fn start(client: &Client, requests: u64, clients: usize) -> Running {
    let (sender, ends) = mpsc::channel(ENDS_WAITING);
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let (client, sender, next) = (client.clone(), sender.clone(), next.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return;
                }
                let ask = ask(number);
                let end = match client.ask(&ask).await {
                    Ok(reply) => judge(&ask, &reply),
                    // The host itself broke the exchange off, or hung: it never may.
                    Err(error) => End::Wrong(error.to_string()),
                };
                if sender.send(end).await.is_err() {
                    return;
                }
            }
        });
    }
    Running { ends, _clients: tasks }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn right(ask: &Ask) -> Reply {
        let expected = ask.expected();
        Reply {
            status: 200,
            text: expected.text,
            finish_reason: Some(expected.finish_reason.into()),
            prompt_tokens: Some(expected.prompt_tokens as u64),
            completion_tokens: Some(expected.completion_tokens as u64),
            done: ask.streams(),
            ..Reply::default()
        }
    }

    #[test]
    fn each_kind_of_end_is_told() {
        let (stream, whole) = (ask(0), ask(2));
        assert!(stream.streams() && !whole.streams());
        let error = Some(json!({"message": "x"}));
        assert_eq!(judge(&stream, &right(&stream)), End::Right);
        assert_eq!(judge(&whole, &right(&whole)), End::Right);
        let other = judge(&whole, &right(&ask(4)));
        assert!(matches!(other, End::Wrong(_)), "another's answer: {other:?}");
        let half = Reply { text: right(&stream).text[..3].into(), error, done: false, ..right(&stream) };
        assert!(matches!(judge(&stream, &half), End::CutShort(_)));
        let early = Reply { text: String::new(), ..half.clone() };
        assert!(matches!(judge(&stream, &early), End::Failed(_)));
        let silent = Reply { error: None, ..half.clone() };
        assert!(matches!(judge(&stream, &silent), End::Wrong(_)));
        let garbled = Reply { text: "?".into(), ..half };
        assert!(matches!(judge(&stream, &garbled), End::Wrong(_)));
        let refused = Reply { status: 503, ..Reply::default() };
        assert!(matches!(judge(&whole, &refused), End::Failed(_)));
    }
}
