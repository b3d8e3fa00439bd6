//! Which engines of host-managed pools are attached, as the running host says.

use serde::Deserialize;

use super::examine::WorkerSeen;
use super::findings::{Finding, Severity};
use crate::config::{Config, PoolMode};

/// What a host says of its fleet, as far as it concerns this.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Told {
    pools: Vec<Pool>,
    transfer: Option<Transfer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pool {
    name: String,
    workers: Vec<Worker>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Worker {
    name: String,
    attached: Option<bool>,
    misfit: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Transfer {
    engines: Vec<Engine>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Engine {
    name: String,
    worker: Option<String>,
}

/// What is wrong with who is attached, or why that is not known.
pub fn findings(config: &Config, workers: &[WorkerSeen], told: &Result<Told, String>) -> Vec<Finding> {
    let told = match told {
        Ok(told) => told,
        Err(why) => return vec![not_known(why)],
    };
    let engines = told.transfer.iter().flat_map(|transfer| &transfer.engines);
    let strays: Vec<_> = engines.filter(|engine| engine.worker.is_none()).collect();
    // Of one that cannot be reached, that is said already.
    let is_there = |pool: &str, worker: &str| {
        let mut down = workers.iter().filter(|seen| seen.unreachable.is_some());
        !down.any(|seen| seen.pool == pool && seen.worker == worker)
    };
    let pools = config.pools.iter().filter(|pool| pool.mode == PoolMode::HostManaged);
    let workers = pools.flat_map(|pool| pool.workers.iter().map(move |worker| (&pool.name, worker)));
    let missing = workers.filter_map(|(pool, worker)| {
        let seen = told.worker(pool, &worker.name)?;
        let is_missing = seen.attached == Some(false) && is_there(pool, &worker.name);
        is_missing.then(|| Finding {
            severity: Severity::Wrong,
            place: format!("{pool}/{}", worker.name),
            what: match &seen.misfit {
                Some(why) => format!("no KV is moved of its engine: {why}"),
                None => "its engine is not attached to the host".to_owned(),
            },
            why: "its KV is not moved: prompts are computed where they are decoded, and prefill engines stand idle",
            cure: format!(
                "let the engine attach at {} under the name {:?}, with the pool's model and the worker's role",
                config.transfer.socket.display(),
                worker.engine.as_deref().unwrap_or_default()
            ),
        })
    });
    let strays = strays.iter().map(|engine| Finding {
        severity: Severity::Note,
        place: "[transfer]".to_owned(),
        what: format!("engine {:?} is attached, and no worker has this name", engine.name),
        why: "its KV is not moved",
        cure: format!(
            "give it its worker's name, or write engine = {:?} where its worker stands",
            engine.name
        ),
    });
    missing.chain(strays).collect()
}

impl Told {
    fn worker(&self, pool: &str, worker: &str) -> Option<&Worker> {
        let pool = self.pools.iter().find(|told| told.name == pool)?;
        pool.workers.iter().find(|told| told.name == worker)
    }
}

fn not_known(why: &str) -> Finding {
    Finding {
        severity: Severity::Note,
        place: "[transfer]".to_owned(),
        what: format!("which engines are attached is not known: {}", why.lines().next().unwrap_or_default()),
        why: "an engine that is not attached serves all the same, only slow: its prompts are computed where they are decoded",
        cure: "start the host with this configuration, then ask the doctor again, or `sluice fleet`"
            .to_owned(),
    }
}
