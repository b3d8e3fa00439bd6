//! `sluice fleet` and `sluice drain`: the workers of a running host, and taking one out.

use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;

use super::fleet_transfer::{self, Transfer};
use super::{BAD_INPUT, admin_client, complain, say};
use crate::admin_workers;
use crate::cli::{Drain, FleetArgs};
use crate::text_table::TextTable;

/// Between looks at a worker that drains.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The state of a worker that takes work, as the host names it.
const UP: &str = "up";

#[derive(Debug, Deserialize)]
struct Listing {
    pools: Vec<Pool>,
    /// Of hosts that move KV.
    #[serde(default)]
    transfer: Option<Transfer>,
}

#[derive(Debug, Deserialize)]
struct Pool {
    name: String,
    serves: bool,
    #[serde(default)]
    note: Option<String>,
    #[serde(default)]
    turns_note: Option<String>,
    workers: Vec<Worker>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Worker {
    name: String,
    role: String,
    state: String,
    draining: bool,
    safe_to_stop: bool,
    handles: u32,
    booked: Booked,
    engine_running: u32,
    engine_waiting: u32,
    prefill_tokens_per_s: f32,
    decode_step_ms: f32,
    last_error: Option<String>,
    breaker_open: bool,
    spared_for: Option<String>,
    attached: Option<bool>,
    misfit: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Booked {
    requests: u32,
    prefill_tokens: u32,
}

/// What an order answers.
#[derive(Debug, Deserialize)]
struct Ordered {
    draining: bool,
    requests: u32,
    handles: u32,
    safe_to_stop: bool,
}

/// Prints the workers.
pub fn run(args: &FleetArgs) -> ExitCode {
    match admin_client::get::<Listing>(&args.host, "/admin/fleet") {
        Ok(listing) => {
            say(&shown(&listing));
            ExitCode::SUCCESS
        }
        Err(message) => failed(&message),
    }
}

fn failed(message: &str) -> ExitCode {
    complain(message);
    ExitCode::FAILURE
}

fn shown(listing: &Listing) -> String {
    let mut table = TextTable::new(&[
        "worker", "role", "state", "requests", "handles", "backlog", "tokens/s", "ms/token", "engine", "note",
    ]);
    for (pool, worker) in listing.pools.iter().flat_map(|pool| pool.workers.iter().map(move |w| (pool, w))) {
        let measured = |figure: f32, digits: usize| match figure {
            0.0 => "-".to_owned(),
            figure => format!("{figure:.digits$}"),
        };
        table.row([
            format!("{}/{}", pool.name, worker.name),
            worker.role.clone(),
            state(worker),
            worker.booked.requests.to_string(),
            worker.handles.to_string(),
            worker.booked.prefill_tokens.to_string(),
            measured(worker.prefill_tokens_per_s, 0),
            measured(worker.decode_step_ms, 1),
            format!("{} running, {} waiting", worker.engine_running, worker.engine_waiting),
            note(worker),
        ]);
    }
    let mut out = table.to_string();
    for pool in &listing.pools {
        for note in pool.note.iter().chain(&pool.turns_note) {
            let serves = if pool.serves { "serves" } else { "does not serve" };
            out.push_str(&format!("\npool {} {serves}: {note}", pool.name));
        }
    }
    if let Some(transfer) = &listing.transfer {
        out.push_str(&format!("\n\n{}", fleet_transfer::shown(transfer)));
    }
    out
}

fn state(worker: &Worker) -> String {
    match (worker.draining, worker.safe_to_stop) {
        (true, true) => "drained, safe to stop".to_owned(),
        (true, false) if worker.state == UP => "draining".to_owned(),
        (true, false) => format!("{}, draining", worker.state),
        (false, _) if worker.breaker_open && worker.state == UP => "up, spared".to_owned(),
        (false, _) => worker.state.clone(),
    }
}

/// Why it takes no work: of one that is down what its probe met, of one that is spared what its legs met.
fn note(worker: &Worker) -> String {
    match (&worker.last_error, &worker.spared_for) {
        (_, Some(why)) if worker.state == UP && worker.breaker_open => {
            format!("fails again and again: {why}")
        }
        (None, _) if worker.state == UP && worker.attached == Some(false) => {
            let misfit = worker.misfit.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("no KV is moved, its engine is not attached{misfit}")
        }
        (error, _) => error.clone().unwrap_or_default(),
    }
}

/// Lets a worker drain, or take work again.
pub fn drain(args: &Drain) -> ExitCode {
    let Some((pool, worker)) = args.worker.split_once('/') else {
        complain(&format!("{:?} is no worker: write POOL/WORKER, as `sluice fleet` lists them", args.worker));
        return ExitCode::from(BAD_INPUT);
    };
    if !admin_workers::can_be_names(pool, worker) {
        complain(&format!("{:?} is no POOL/WORKER: names are letters, digits, - _ and .", args.worker));
        return ExitCode::from(BAD_INPUT);
    }
    let order = if args.undo { "undrain" } else { "drain" };
    let path = format!("{}{pool}/{worker}/{order}", admin_workers::PREFIX);
    match admin_client::post::<Ordered>(&args.host, &path) {
        Ok(ordered) if args.wait && !args.undo => wait(args, &ordered, &path),
        Ok(ordered) => {
            say(&told(&args.worker, &ordered));
            ExitCode::SUCCESS
        }
        Err(message) => failed(&message),
    }
}

fn told(worker: &str, ordered: &Ordered) -> String {
    if !ordered.draining {
        return format!("{worker} takes work");
    }
    if ordered.safe_to_stop {
        return format!("{worker} is safe to stop");
    }
    let counted = |count: u32, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let (requests, handles) = (counted(ordered.requests, "request"), counted(ordered.handles, "live handle"));
    format!("{worker} is draining: {requests}, {handles}")
}

/// The order changes nothing when it is given again, and its answer tells how far it is.
fn wait(args: &Drain, ordered: &Ordered, path: &str) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("cannot start the runtime: {error}")),
    };
    let mut shown = String::new();
    let mut text = told(&args.worker, ordered);
    let mut safe = ordered.safe_to_stop;
    let looks = u128::from(args.wait_s) * 1_000 / LOOK_EVERY.as_millis();
    for _ in 0..looks {
        if safe {
            break;
        }
        if text != shown {
            complain(&text);
            shown.clone_from(&text);
        }
        runtime.block_on(async { tokio::time::sleep(LOOK_EVERY).await });
        match admin_client::post::<Ordered>(&args.host, path) {
            Ok(ordered) => (text, safe) = (told(&args.worker, &ordered), ordered.safe_to_stop),
            Err(message) => return failed(&message),
        }
    }
    if safe {
        say(&text);
        return ExitCode::SUCCESS;
    }
    failed(&format!(
        "after {} s {text}. It goes on draining; wait longer with --wait-s, or see what runs there with `sluice fleet`",
        args.wait_s
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_line_up() {
        let listing: Listing = serde_json::from_value(serde_json::json!({"pools": [{
            "name": "main", "serves": true, "note": "KV does not move", "turns_note": "no turn comes back", "workers": [
                {"name": "prefill-0", "role": "prefill", "state": "up", "draining": true, "handles": 2,
                 "booked": {"requests": 1, "prefill_tokens": 900}, "prefill_tokens_per_s": 5120.4},
                {"name": "decode-0", "role": "decode", "state": "up", "draining": true, "safe_to_stop": true,
                 "booked": {"requests": 0, "prefill_tokens": 0}},
                {"name": "decode-1", "role": "decode", "state": "up", "breaker_open": true,
                 "spared_for": "answered 500", "last_error": "old"},
                {"name": "decode-2", "role": "decode", "state": "down", "breaker_open": true,
                 "spared_for": "answered 500", "last_error": "connection refused"},
            ],
        }]}))
        .expect("a listing");
        assert_eq!(
            shown(&listing),
            "worker          role     state                  requests  handles  backlog  tokens/s  ms/token  engine                note\n\
             main/prefill-0  prefill  draining               1         2        900      5120      -         0 running, 0 waiting\n\
             main/decode-0   decode   drained, safe to stop  0         0        0        -         -         0 running, 0 waiting\n\
             main/decode-1   decode   up, spared             0         0        0        -         -         0 running, 0 waiting  fails again and again: answered 500\n\
             main/decode-2   decode   down                   0         0        0        -         -         0 running, 0 waiting  connection refused\n\
             pool main serves: KV does not move\n\
             pool main serves: no turn comes back"
        );
    }

    #[test]
    fn how_far_a_drain_is_is_told() {
        let ordered =
            |draining, requests, handles, safe_to_stop| Ordered { draining, requests, handles, safe_to_stop };
        for (ordered, expected) in [
            (ordered(false, 3, 0, false), "p takes work"),
            (ordered(true, 1, 2, false), "p is draining: 1 request, 2 live handles"),
            (ordered(true, 0, 0, true), "p is safe to stop"),
        ] {
            assert_eq!(told("p", &ordered), expected);
        }
    }
}
