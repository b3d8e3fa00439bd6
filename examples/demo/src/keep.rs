//! `--keep`: everything stays, with a few things to try.

use sluice_harness::process::stop_signal;
use sluice_harness::{Fleet, artifacts};

use crate::{POLICY, Part};

/// Says what to try, and waits for Ctrl-C.
pub async fn until_interrupted(fleet: &Fleet, part: Part) -> anyhow::Result<()> {
    let base = fleet.client().base();
    let admin = fleet.host.admin().base();
    let admin_address = admin.trim_start_matches("http://");
    let folder = fleet.host.policy_folder();
    let folder = folder.display();
    let sluice = artifacts::binary()?;
    let sluice = sluice.display();
    let change = match part {
        Part::EngineManaged => {
            let random = artifacts::policy_path("random")?;
            format!("Swap the policy:\n  cp {} {folder}/{POLICY}.wasm", random.display())
        }
        Part::HostManaged => {
            format!(
                "Have KV pulled, and turns kept for a minute:\n  echo 'retain_ttl_ms = 60000' > {folder}/{POLICY}.toml"
            )
        }
    };
    println!(
        "\nEverything is still running. Ask (the answer's head says who decided what):\n\
         \x20 curl -i {base}/v1/chat/completions -H 'content-type: application/json' -H 'x-sluice-decision: 1' \\\n\
         \x20   -d '{{\"model\":\"emulated\",\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}],\"max_tokens\":16}}'\n\
         {change}\n\
         \x20 {sluice} policy list --admin {admin_address}     (a moment later)\n\
         Look:\n\
         \x20 {sluice} fleet --admin {admin_address}\n\
         \x20 {base}/metrics, {admin}/admin/fleet, {admin}/admin/policies\n\
         Ctrl-C ends it."
    );
    stop_signal().await;
    Ok(())
}
