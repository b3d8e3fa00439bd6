//! `--keep`: everything stays, with a few things to try.

use sluice_harness::process::stop_signal;
use sluice_harness::{Fleet, artifacts};

use crate::POLICY;

/// Says what to try, and waits for Ctrl-C.
pub async fn until_interrupted(fleet: &Fleet) -> anyhow::Result<()> {
    let base = fleet.client().base();
    let admin = fleet.host.admin().base();
    let admin_address = admin.trim_start_matches("http://");
    let folder = fleet.host.policy_folder();
    let folder = folder.display();
    let sluice = artifacts::binary()?;
    let sluice = sluice.display();
    let random = artifacts::policy_path("random")?;
    let random = random.display();
    println!(
        "\nEverything is still running. Ask (the answer's head says who decided what):\n\
         \x20 curl -i {base}/v1/chat/completions -H 'content-type: application/json' -H 'x-sluice-decision: 1' \\\n\
         \x20   -d '{{\"model\":\"emulated\",\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}],\"max_tokens\":16}}'\n\
         Swap the policy:\n\
         \x20 cp {random} {folder}/{POLICY}.wasm\n\
         \x20 {sluice} policy list --admin {admin_address}     (a moment later)\n\
         Look: {base}/metrics, {admin}/admin/fleet, {admin}/admin/policies\n\
         Ctrl-C ends it."
    );
    stop_signal().await;
    Ok(())
}
