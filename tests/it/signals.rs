//! Signals at odd moments.

use serde_json::json;
use sluice_harness::{MockEngine, PolicyFile, until};

use crate::{SOON, in_front_of};

#[tokio::test]
async fn a_hangup_does_not_end_the_host() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let mut host = in_front_of(&engine).await;
    for _ in 0..3 {
        host.process().hang_up().unwrap();
    }
    until("the host to say so", SOON, async || host.log_tells("SIGHUP").then_some(())).await.unwrap();
    let asked = json!({"model": "emulated", "prompt": "hi"});
    assert_eq!(host.client().post("/v1/completions", &asked).await.unwrap().status, 200);
}

/// Enough policies that compiling them takes well longer than noticing that it began.
const POLICIES: u32 = 24;

/// Processor time that an idle host does not use, in ticks: compiling has begun.
const COMPILING_TICKS: u64 = 20;

/// A policy that takes long to compile, or many of them, do not keep the host from stopping.
#[tokio::test]
async fn the_host_stops_while_policies_are_compiling() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let mut host = in_front_of(&engine).await;
    let before = host.process().used_ticks();
    for number in 0..POLICIES {
        let policy = PolicyFile::policy(&format!("p-{number}"), "adaptive").unwrap().marked(number);
        host.drop_policy(&policy).unwrap();
    }
    let compiling = until("policies to be compiling", SOON, async || {
        (host.process().used_ticks() >= before + COMPILING_TICKS).then_some(())
    });
    compiling.await.unwrap();
    host.process().terminate().unwrap();
    assert_eq!(host.process().ended(SOON).await.unwrap(), Some(0));
    let log = host.process().log();
    let loaded = log.matches("policy loaded").count();
    assert!(loaded < POLICIES as usize, "the host compiled all of them first:\n{log}");
}
