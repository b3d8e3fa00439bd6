//! What users were promised, checked on real processes: hosts, engine emulators, and engines that misbehave. Each test
//! starts its own, on ports that the system chooses.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access_log;
mod admin_token;
mod admission;
mod bad_answers;
mod board;
mod certificates;
mod config;
mod decision_header;
mod disconnect;
mod doctor;
mod drain;
mod draining;
mod edges;
mod errors;
mod faults;
mod flows;
mod hold_times;
mod hosted;
mod ipv6;
mod kept;
mod legs;
mod limits;
mod passthrough;
mod policies;
mod policy_bindings;
mod policy_commands;
mod policy_explain;
mod policy_faults;
mod policy_generations;
mod readiness;
mod sessions;
mod signals;
mod stale_connections;
mod streams;
mod surface;
mod tenants;
mod tls;
mod token_ids;
mod traces;
mod usage;
mod wire;
mod workers;

use std::time::Duration;

/// For anything that must come about; far above what it takes, since tests share few cores.
const SOON: Duration = Duration::from_secs(20);

/// Asks and insists on the right answer.
async fn right(client: &sluice_harness::Client, ask: &sluice_harness::Ask) -> sluice_harness::Reply {
    let reply = client.ask(ask).await.unwrap();
    let wrong = ask.expected().differs_from(&reply);
    assert_eq!(wrong, None, "asked: {}, answered: {:?}", ask.json(), reply.decision);
    if ask.streams() {
        assert!(reply.done, "a whole stream ends with [DONE]: {:?}", reply.events);
    }
    reply
}

/// Nothing is booked on a worker and nothing is in flight: every ended request left the books as it found them.
async fn nothing_left_booked(host: &sluice_harness::Host, workers: &[&str]) {
    sluice_harness::until("nothing to be booked", SOON, async || {
        for name in workers {
            let booked = host.worker(name).await.unwrap()["booked"].clone();
            let columns = booked.as_object().unwrap();
            assert_eq!(columns.len(), 5, "{booked}");
            if columns.values().any(|figure| figure != 0) {
                return None;
            }
        }
        let in_flight = host.metrics().await.unwrap().sum("sluice_in_flight_requests", &[]);
        (in_flight == 0.0).then_some(())
    })
    .await
    .unwrap();
}

/// A host in front of one mock engine that does it all, under the host's own policy.
async fn in_front_of(engine: &sluice_harness::MockEngine) -> sluice_harness::Host {
    use sluice_harness::{Host, HostPlan, Mode};
    let plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    host
}
