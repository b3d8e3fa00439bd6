//! Clients that go on with their conversations, whatever becomes of the host.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_harness::workload::{Conversation, WorkloadPlan};
use sluice_harness::{Ask, Client, Reply};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Clients at once.
const CLIENTS: usize = 16;
/// Conversations of each, which it goes on with one after the other; all of them can be listed at once.
const CONVERSATIONS: usize = 12;
/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(30);
/// What they talk about.
const PLAN: WorkloadPlan = WorkloadPlan {
    conversations: CLIENTS * CONVERSATIONS,
    turns: 40,
    at_once: CLIENTS,
    first_words: 150,
    later_words: 20,
    max_tokens: 12,
    seed: 11,
};

/// How requests ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// With the right answer.
    pub right: u64,
    /// With another one.
    pub wrong: u64,
    /// With their host; they were asked again.
    pub cut_off: u64,
    /// Otherwise without an answer.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct Books {
    counts: Counts,
    /// Turns of each conversation that this host must know of: those that it knew at its start, and those that clients have seen
    /// the end of since.
    turns: BTreeMap<String, u64>,
}

/// All clients. Dropped, they leave.
#[derive(Debug)]
pub struct Traffic {
    books: Arc<Mutex<Books>>,
    host: watch::Sender<Option<Client>>,
    _clients: JoinSet<()>,
}

impl Traffic {
    /// They begin.
    pub fn start(host: &Client) -> Self {
        let books = Arc::default();
        let (host, seen) = watch::channel(Some(host.clone()));
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(talk(number, seen.clone(), Arc::clone(&books)));
        }
        Self { books, host, _clients: clients }
    }

    /// From now on whoever loses its connection has lost its host.
    pub fn host_goes(&self) {
        self.host.send_replace(None);
    }

    /// There is a host again, which knows these conversations, with their turns.
    pub fn host_is(&self, client: &Client, known: BTreeMap<String, u64>) {
        locked(&self.books).turns = known;
        self.host.send_replace(Some(client.clone()));
    }

    /// How requests ended so far.
    pub fn counts(&self) -> Counts {
        locked(&self.books).counts
    }

    /// Conversations with the turns that the host must know of.
    pub fn turns(&self) -> BTreeMap<String, u64> {
        locked(&self.books).turns.clone()
    }
}

fn locked(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn talk(client: usize, mut host: watch::Receiver<Option<Client>>, books: Arc<Mutex<Books>>) {
    let numbers = client * CONVERSATIONS..(client + 1) * CONVERSATIONS;
    let mut conversations: Vec<_> = numbers.map(|number| Conversation::new(number, &PLAN)).collect();
    for _ in 0..PLAN.turns {
        for conversation in &mut conversations {
            let ask = conversation.ask(&PLAN);
            let Some(reply) = answer(&ask, &mut host, &books).await else { return };
            conversation.answered(&reply.text);
            let id = ask.body["conversation_id"].as_str().unwrap_or_default();
            *locked(&books).turns.entry(id.to_owned()).or_default() += 1;
            sleep(PAUSE).await;
        }
    }
}

/// Asks until there is an answer, of this host or of the next. `None` when all is over.
async fn answer(
    ask: &Ask,
    host: &mut watch::Receiver<Option<Client>>,
    books: &Mutex<Books>,
) -> Option<Reply> {
    loop {
        let client = host.wait_for(Option::is_some).await.ok()?.clone()?;
        host.mark_unchanged();
        let reply = client.ask(ask).await;
        let is_whole = |reply: &Reply| reply.status == 200 && (reply.done || !ask.streams());
        match reply {
            Ok(reply) if is_whole(&reply) => {
                let is_right = ask.expected().differs_from(&reply).is_none();
                let counts = &mut locked(books).counts;
                *if is_right { &mut counts.right } else { &mut counts.wrong } += 1;
                return Some(reply);
            }
            _ if host.has_changed().ok()? => locked(books).counts.cut_off += 1,
            _ => {
                locked(books).counts.failed += 1;
                sleep(PAUSE).await;
            }
        }
    }
}
