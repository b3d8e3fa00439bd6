//! Conversations of several turns: made up from a seed, run side by side, every answer checked.

use std::sync::Arc;

use sluice_sim::chat::Message;
use sluice_sim::{Model, words};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::ask::message;
use crate::{Ask, Client, Endpoint, Reply};

/// Outcomes that may wait to be looked at.
const OUTCOMES_WAITING: usize = 1_024;

/// What conversations look like.
#[derive(Debug, Clone)]
pub struct WorkloadPlan {
    /// How many.
    pub conversations: usize,
    /// Turns of each.
    pub turns: usize,
    /// Conversations at a time; each has one request under way.
    pub at_once: usize,
    /// Words of the first message: a document to talk about.
    pub first_words: usize,
    /// Words of each later message.
    pub later_words: usize,
    /// Of an answer.
    pub max_tokens: usize,
    /// Another seed, other words.
    pub seed: u64,
}

/// One request, as it ended.
#[derive(Debug)]
pub struct Outcome {
    /// Which conversation, from 0.
    pub conversation: usize,
    /// Which turn, from 0.
    pub turn: usize,
    /// What was asked.
    pub ask: Ask,
    /// The answer, or why there is none.
    pub reply: Result<Reply, String>,
    /// What is wrong with the answer.
    pub wrong: Option<String>,
}

impl Outcome {
    /// Compares the answer with the right one of engines of this model.
    pub fn check(&mut self, model: Model) {
        let reply = self.reply.as_ref().ok();
        self.wrong = reply.and_then(|reply| self.ask.expected_of(model).differs_from(reply));
    }

    /// Whether no answer came, or an error.
    pub fn failed(&self) -> bool {
        self.reply.as_ref().map_or(true, |reply| reply.status != 200 || reply.error.is_some())
    }
}

/// A conversation: chats and completions, streamed and whole, in turn.
#[derive(Debug)]
pub struct Conversation {
    number: usize,
    endpoint: Endpoint,
    streamed: bool,
    seed: u64,
    messages: Vec<Message>,
    text: String,
    turn: usize,
}

impl Conversation {
    /// Conversation `number` of a workload.
    pub fn new(number: usize, plan: &WorkloadPlan) -> Self {
        let endpoint = if number.is_multiple_of(2) { Endpoint::Chat } else { Endpoint::Completions };
        let streamed = (number / 2).is_multiple_of(2);
        let seed = plan.seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
        Self { number, endpoint, streamed, seed, messages: Vec::new(), text: String::new(), turn: 0 }
    }

    /// The next request. Its nonce is in no other, so no other's answer can pass for its own.
    pub fn ask(&mut self, plan: &WorkloadPlan) -> Ask {
        let count = if self.turn == 0 { plan.first_words } else { plan.later_words };
        let nonce = format!("[{}.{}.{}]", plan.seed, self.number, self.turn);
        let said =
            format!("{nonce}{}", words(self.seed.wrapping_mul(31).wrapping_add(self.turn as u64), count));
        let ask = match self.endpoint {
            Endpoint::Chat => {
                self.messages.push(message("user", &said));
                Ask::chat(&self.messages, plan.max_tokens)
            }
            Endpoint::Completions => {
                self.text.push_str(&said);
                Ask::completion(&self.text, plan.max_tokens)
            }
        };
        let ask = ask.with("conversation_id", format!("{}-{}", plan.seed, self.number));
        if self.streamed { ask.streamed() } else { ask }
    }

    /// The answer becomes part of the history.
    pub fn answered(&mut self, text: &str) {
        match self.endpoint {
            Endpoint::Chat => self.messages.push(message("assistant", text)),
            Endpoint::Completions => {
                self.text.push_str(text);
                self.text.push('\n');
            }
        }
        self.turn += 1;
    }
}

/// A workload under way. Dropping it ends it.
#[derive(Debug)]
pub struct Running {
    outcomes: mpsc::Receiver<Outcome>,
    _tasks: JoinSet<()>,
}

impl Running {
    /// The next request that ended; `None` after the last.
    pub async fn next(&mut self) -> Option<Outcome> {
        self.outcomes.recv().await
    }
}

/// Starts all conversations, so many at once.
pub fn start(client: &Client, plan: &WorkloadPlan) -> Running {
    start_with(client, plan, true)
}

/// The same, whose answers are left to [`Outcome::check`]: where that would take the time that is measured.
pub fn start_unchecked(client: &Client, plan: &WorkloadPlan) -> Running {
    start_with(client, plan, false)
}

fn start_with(client: &Client, plan: &WorkloadPlan, checks: bool) -> Running {
    let (sender, outcomes) = mpsc::channel(OUTCOMES_WAITING);
    let places = Arc::new(Semaphore::new(plan.at_once));
    let mut tasks = JoinSet::new();
    for number in 0..plan.conversations {
        let (client, plan, sender, places) = (client.clone(), plan.clone(), sender.clone(), places.clone());
        tasks.spawn(async move {
            let Ok(_place) = places.acquire().await else { return };
            let mut conversation = Conversation::new(number, &plan);
            for turn in 0..plan.turns {
                let mut outcome = one(&client, &mut conversation, &plan, number, turn).await;
                if checks {
                    outcome.check(Model::default());
                }
                let over = outcome.failed();
                if sender.send(outcome).await.is_err() || over {
                    return;
                }
            }
        });
    }
    Running { outcomes, _tasks: tasks }
}

async fn one(
    client: &Client,
    conversation: &mut Conversation,
    plan: &WorkloadPlan,
    number: usize,
    turn: usize,
) -> Outcome {
    let ask = conversation.ask(plan);
    let reply = client.ask(&ask).await.map_err(|error| error.to_string());
    if let Ok(reply) = &reply {
        conversation.answered(&reply.text);
    }
    Outcome { conversation: number, turn, ask, reply, wrong: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: WorkloadPlan = WorkloadPlan {
        conversations: 4,
        turns: 2,
        at_once: 2,
        first_words: 10,
        later_words: 5,
        max_tokens: 4,
        seed: 1,
    };

    #[test]
    fn conversations_grow_and_are_the_same_every_time() {
        let run = |number| {
            let mut conversation = Conversation::new(number, &PLAN);
            let first = conversation.ask(&PLAN);
            conversation.answered(&first.expected().text);
            let second = conversation.ask(&PLAN);
            (first.json(), second.expected().prompt_tokens - first.expected().prompt_tokens, second.json())
        };
        for number in 0..4 {
            let (first, grew, second) = run(number);
            assert_eq!((&first, grew, &second), (&run(number).0, run(number).1, &run(number).2));
            assert!(grew > PLAN.later_words, "{number}: {grew}");
        }
        assert_ne!(run(0).0, run(2).0);
    }

    #[test]
    fn a_wrong_answer_is_noticed() {
        let ask = Ask::completion("hello", 4);
        let expected = ask.expected();
        let right = Reply {
            status: 200,
            text: expected.text.clone(),
            finish_reason: Some(expected.finish_reason.into()),
            prompt_tokens: Some(expected.prompt_tokens as u64),
            completion_tokens: Some(expected.completion_tokens as u64),
            ..Reply::default()
        };
        assert_eq!(expected.differs_from(&right), None);
        for wrong in [
            Reply { text: format!("{}x", expected.text), ..right.clone() },
            Reply { finish_reason: Some("stop".into()), ..right.clone() },
            Reply { completion_tokens: Some(5), ..right.clone() },
            Reply { status: 500, ..right.clone() },
        ] {
            assert!(expected.differs_from(&wrong).is_some(), "{wrong:?}");
        }
    }
}
