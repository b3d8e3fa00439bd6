//! Ending a hold early: a prefill worker is told to free KV blocks that no decode worker will fetch.
//!
//! vLLM has no request for it, but a decode engine that refuses a request before admission tells the holder named in
//! its handle that the blocks are done with (seen on 0.32.0). So the handle is sent once, to a decode worker, in a
//! request for a model that no engine serves. Where that cannot be done the blocks stay until their lease ends; both
//! are counted.

use std::sync::Arc;
use std::time::Duration;

use hyper::{HeaderMap, Method, StatusCode};
use sluice_core::facts::Role;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::app::App;
use crate::fleet::{Pool, Worker};
use crate::held::Blocks;
use crate::request::Endpoint;
use crate::telemetry::labels::HandleFate;
use crate::upstream::UpstreamError;

/// Holds that wait to be ended. Past it their leases end them; a burst of leaving clients is within it.
const WAITING_AT_MOST: usize = 4_096;

/// Holds that are being ended at one time: they must not crowd out requests.
const AT_ONCE: usize = 16;

/// How long an engine may take to refuse.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);

/// Decode workers asked until one is reached: the first may have died with the leg that the handle was for.
const WORKERS_ASKED_AT_MOST: usize = 3;

/// A model that no engine serves.
const NO_MODEL: &str = "sluice-ends-a-hold";

/// Where holds to end are put.
#[derive(Debug, Clone)]
pub struct Releases(mpsc::Sender<Arc<Blocks>>);

/// Where they are taken from.
pub type Waiting = mpsc::Receiver<Arc<Blocks>>;

/// A bounded queue.
pub fn queue() -> (Releases, Waiting) {
    let (sender, receiver) = mpsc::channel(WAITING_AT_MOST);
    (Releases(sender), receiver)
}

impl Releases {
    /// Asks for a hold's end. Never waits.
    pub fn send(&self, blocks: Arc<Blocks>) {
        if let Err(error) = self.0.try_send(blocks) {
            error.into_inner().pool.metrics.transfer(HandleFate::Unreleased);
        }
    }
}

/// Ends holds until the queue's other side is gone.
pub async fn run(app: Arc<App>, mut waiting: Waiting) {
    let mut ending = JoinSet::new();
    while let Some(blocks) = waiting.recv().await {
        while ending.len() >= AT_ONCE {
            ending.join_next().await;
        }
        ending.spawn(end(app.clone(), blocks));
    }
}

async fn end(app: Arc<App>, blocks: Arc<Blocks>) {
    let pool = &blocks.pool;
    let fate = match refused(&app, &blocks).await {
        Ok(()) => {
            blocks.kept.over();
            HandleFate::Released
        }
        Err(why) => {
            let key = format!("release {}", pool.config.name);
            app.telemetry.warn_once(&key, || {
                let name = &pool.config.name;
                format!(
                    "KV blocks of pool {name:?} that nobody will fetch stay until their lease ends: {why}"
                )
            });
            HandleFate::Unreleased
        }
    };
    pool.metrics.transfer(fate);
}

/// Asks decode workers in turn until one refuses. Only one that was not reached gives way to the next: any other has the
/// handle.
async fn refused(app: &App, blocks: &Blocks) -> Result<(), String> {
    if app.clock.elapsed() >= blocks.good_until {
        return Err(format!("the lease on {:?} was over first", blocks.holder.name));
    }
    let pool = &blocks.pool;
    let table = pool.table();
    let gets_on = |worker: &&Arc<Worker>| pool.pairs.passes((blocks.holder.id, worker.id), pool.now_ms());
    let decodes = table.workers.iter().filter(|worker| worker.role == Role::Decode).filter(gets_on);
    let mut unreached = "no decode worker is up to tell it".to_owned();
    for decode in decodes.take(WORKERS_ASKED_AT_MOST) {
        let sent = app.upstream.send(
            Method::POST,
            &decode.url,
            blocks.endpoint.path(),
            body(blocks),
            headers(app, pool),
        );
        return match timeout(REFUSED_WITHIN, sent).await {
            Ok(Ok(response)) if response.status() == StatusCode::NOT_FOUND => Ok(()),
            Ok(Ok(response)) => {
                let status = response.status();
                Err(format!("{:?} answered {status} to a model nobody serves, not 404", decode.name))
            }
            Ok(Err(error @ UpstreamError::Connect { .. })) => {
                unreached = error.to_string();
                continue;
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                Err(format!("{:?} did not answer within {} ms", decode.name, REFUSED_WITHIN.as_millis()))
            }
        };
    }
    Err(unreached)
}

fn body(blocks: &Blocks) -> String {
    let prompt = match blocks.endpoint {
        Endpoint::Chat => r#""messages":[{"role":"user","content":"x"}]"#,
        Endpoint::Completions => r#""prompt":"x""#,
    };
    let handle = blocks.handle.json();
    format!(r#"{{"model":"{NO_MODEL}",{prompt},"max_tokens":1,"kv_transfer_params":{handle}}}"#)
}

fn headers(app: &App, pool: &Pool) -> HeaderMap {
    let mut headers = pool.own_headers();
    if let Ok(id) = format!("sluice-release-{}", app.ids.next()).try_into() {
        headers.insert("x-request-id", id);
    }
    headers
}
