//! An engine emulator in a process of its own.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::process::{Process, address_after};
use crate::{Client, HarnessError, Metrics, until};

/// What an emulator is started with.
#[derive(Debug, Clone)]
pub struct EmulatorPlan {
    /// `prefill`, `decode` or `unified`.
    pub role: &'static str,
    /// Served model name.
    pub model: String,
    /// More arguments of `sluice emulate`.
    pub arguments: Vec<String>,
}

impl EmulatorPlan {
    /// A fast one: a hundredth of the time a real engine would take.
    pub fn fast(role: &'static str) -> Self {
        Self { role, model: "emulated".into(), arguments: Vec::new() }.with("--time-scale 0.01")
    }

    /// The same with more arguments, separated by spaces.
    pub fn with(mut self, arguments: &str) -> Self {
        self.arguments.extend(arguments.split_whitespace().map(str::to_owned));
        self
    }
}

/// A running emulator.
#[derive(Debug)]
pub struct Emulator {
    process: Process,
    url: String,
    client: Client,
}

impl Emulator {
    /// Starts one; its log goes to `folder/TITLE.log`.
    pub async fn start(title: &str, plan: &EmulatorPlan, folder: &Path) -> Result<Self, HarnessError> {
        let mut arguments: Vec<String> =
            ["emulate", "--role", plan.role, "--model", &plan.model].map(str::to_owned).to_vec();
        arguments.extend(once_each(&plan.arguments));
        let (process, line) = Process::start(title, &arguments, folder).await?;
        let Some(address) = address_after(&line, " on http://") else {
            return Err(HarnessError::NotStarted { title: title.to_owned(), why: line, log: process.log() });
        };
        let url = format!("http://{address}");
        Ok(Self { process, client: Client::new(&url), url })
    }

    /// `http://HOST:PORT`
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// What it says of itself: blocks, holds, sequences.
    pub async fn state(&self) -> Result<Value, HarnessError> {
        Ok(self.client.get("/emulator/state").await?.json())
    }

    /// A client that talks to the engine past any host.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its `/metrics`.
    pub async fn metrics(&self) -> Result<Metrics, HarnessError> {
        self.client.metrics().await
    }

    /// Prompt tokens by where their KV came from: `local_compute`, `local_cache_hit` or `external_kv_transfer`.
    pub async fn prompt_tokens(&self, source: &str) -> Result<f64, HarnessError> {
        Ok(self.metrics().await?.sum("vllm:prompt_tokens_by_source_total", &[("source", source)]))
    }

    /// KV bytes it read from other engines.
    pub async fn bytes_read(&self) -> Result<f64, HarnessError> {
        Ok(self.metrics().await?.sum("vllm:nixl_bytes_transferred_sum", &[]))
    }

    /// Waits until it knows that it is attached to its host.
    pub async fn until_attached(&self, within: Duration) -> Result<(), HarnessError> {
        let what = format!("{} to be attached", self.url);
        until(&what, within, async || {
            let metrics = self.metrics().await.ok()?;
            (metrics.sum("sluice:kv_link_attached", &[]) == 1.0).then_some(())
        })
        .await
    }

    /// Waits until it runs so many requests.
    pub async fn until_running(&self, requests: u32, within: Duration) -> Result<(), HarnessError> {
        let what = format!("{requests} requests running at {}", self.url);
        until(&what, within, async || {
            let metrics = self.metrics().await.ok()?;
            (metrics.sum("vllm:num_requests_running", &[]) == f64::from(requests)).then_some(())
        })
        .await
    }

    /// Waits until no request runs and every KV block is free again.
    pub async fn until_idle(&self, within: Duration) -> Result<(), HarnessError> {
        let what = format!("{} to free all blocks", self.url);
        until(&what, within, async || {
            let state = self.state().await.ok()?;
            let blocks = &state["blocks"];
            let is_idle = blocks["used"] == 0 && blocks["held"] == 0 && state["sequences"]["running"] == 0;
            (is_idle && blocks["total"].is_u64()).then_some(())
        })
        .await
    }
}

/// The command line takes each option once: a later value stands for an earlier one.
fn once_each(arguments: &[String]) -> Vec<String> {
    let mut options: Vec<Vec<String>> = Vec::new();
    for word in arguments {
        match options.last_mut() {
            Some(option) if !word.starts_with("--") => option.push(word.clone()),
            _ => {
                options.retain(|option| option[0] != *word);
                options.push(vec![word.clone()]);
            }
        }
    }
    options.concat()
}
