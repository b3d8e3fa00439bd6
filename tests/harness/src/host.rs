//! A host in a process of its own, with a configuration and a policy folder of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Process, address_after};
use crate::{Client, HarnessError, HostPlan, Metrics, PolicyFile, until};

/// Until the workers of a new host are up: a few probes, on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// A running host.
#[derive(Debug)]
pub struct Host {
    process: Process,
    client: Client,
    admin: Client,
    folder: TempDir,
}

/// What `/admin/policies` says.
#[derive(Debug, Clone, Default)]
pub struct Policies {
    /// Number of the set in force.
    pub generation: u64,
    /// Each policy.
    pub policies: Vec<ListedPolicy>,
}

/// One policy, as listed.
#[derive(Debug, Clone, Default)]
pub struct ListedPolicy {
    /// Its file's name without `.wasm`.
    pub name: String,
    /// `loaded`, `refused` and so on.
    pub state: String,
    /// SHA-256 of the file in force, hexadecimal.
    pub digest: Option<String>,
    /// Short name of why the newest file was refused.
    pub refusal_kind: Option<String>,
    /// Why the newest file was refused, for people.
    pub refusal: Option<String>,
    /// Why the version in the file does not decide although it was loaded, for people.
    pub put_aside: Option<String>,
    /// Digest of the version that decides in its place.
    pub instead: Option<String>,
}

impl Policies {
    /// A policy by name.
    pub fn named(&self, name: &str) -> Option<&ListedPolicy> {
        self.policies.iter().find(|policy| policy.name == name)
    }

    fn read(json: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let policies = json["policies"].as_array()?.iter().map(|policy| ListedPolicy {
            name: text(&policy["name"]).unwrap_or_default(),
            state: text(&policy["state"]).unwrap_or_default(),
            digest: text(&policy["digest"]),
            refusal_kind: text(&policy["refusal"]["kind"]),
            refusal: text(&policy["refusal"]["message"]),
            put_aside: text(&policy["put_aside"]["message"]),
            instead: text(&policy["put_aside"]["instead"]["digest"]),
        });
        Some(Self { generation: json["generation"].as_u64()?, policies: policies.collect() })
    }
}

impl Host {
    /// Writes the configuration and the policies, starts a host and waits until it listens. Its workers may not be up
    /// yet: see [`Host::until_ready`].
    pub async fn start(plan: &HostPlan, policies: &[PolicyFile]) -> Result<Self, HarnessError> {
        let folder = TempDir::with_prefix("sluice-host-").map_err(HarnessError::io("make a folder"))?;
        let policy_folder = folder.path().join("policies.d");
        fs::create_dir(&policy_folder)
            .and_then(|()| fs::set_permissions(&policy_folder, fs::Permissions::from_mode(0o755)))
            .map_err(HarnessError::io("make the policy folder"))?;
        for policy in policies {
            place(folder.path(), &policy_folder, policy)?;
        }
        let config = folder.path().join("sluice.toml");
        fs::write(&config, plan.toml()).map_err(HarnessError::io("write the configuration"))?;
        Self::run(plan.log_json, folder).await
    }

    /// Starts it again in its folder, once it has ended: as it was configured, with what it left there. Ports are others.
    pub async fn start_again(self) -> Result<Self, HarnessError> {
        let Self { process, folder, .. } = self;
        drop(process);
        Self::run(false, folder).await
    }

    async fn run(log_json: bool, folder: TempDir) -> Result<Self, HarnessError> {
        let config = folder.path().join("sluice.toml");
        let mut arguments = vec!["serve".to_owned(), "--config".to_owned(), config.display().to_string()];
        arguments.extend(log_json.then(|| "--log-json".to_owned()));
        let (process, line) = Process::start("host", &arguments, folder.path()).await?;
        let scheme = if line.contains("serves on https://") { "https" } else { "http" };
        let clients = address_after(&line, &format!("serves on {scheme}://"));
        let addresses = (clients, address_after(&line, "admin on http://"));
        let (Some(data), Some(admin)) = addresses else {
            return Err(HarnessError::NotStarted { title: "host".into(), why: line, log: process.log() });
        };
        let client = Client::new(&format!("{scheme}://{data}"));
        Ok(Self { process, client, admin: Client::new(&format!("http://{admin}")), folder })
    }

    /// A client of the data plane.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A client of the admin listener.
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The watched folder.
    pub fn policy_folder(&self) -> PathBuf {
        self.folder.path().join("policies.d")
    }

    /// Whether its log speaks of something.
    pub fn log_tells(&self, text: &str) -> bool {
        self.process.log().contains(text)
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Waits until `/ready` says yes and every worker is up.
    pub async fn until_ready(&self) -> Result<(), HarnessError> {
        until("the host to be ready", READY_WITHIN, async || {
            let ready = self.admin.get("/ready").await.ok()?;
            let pools = ready.json()["pools"].as_array().cloned().unwrap_or_default();
            let all_up = pools.iter().all(|pool| pool["up"] == pool["workers"]);
            (ready.status == 200 && all_up).then_some(())
        })
        .await
    }

    /// Puts a policy into the watched folder by an atomic rename, over one of that name if there is one.
    pub fn drop_policy(&self, policy: &PolicyFile) -> Result<(), HarnessError> {
        place(self.folder.path(), &self.policy_folder(), policy)
    }

    /// Puts a NAME.toml into the watched folder in the same way.
    pub fn drop_settings(&self, name: &str, toml: &str) -> Result<(), HarnessError> {
        put(self.folder.path(), &self.policy_folder(), &format!("{name}.toml"), toml.as_bytes())
    }

    /// The folder of its configuration.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Takes a policy out of the watched folder.
    pub fn remove_policy(&self, name: &str) -> Result<(), HarnessError> {
        let file = self.policy_folder().join(format!("{name}.wasm"));
        fs::remove_file(&file).map_err(HarnessError::io(format!("remove {}", file.display())))
    }

    /// What the admin API says of the policies.
    pub async fn policies(&self) -> Result<Policies, HarnessError> {
        policies(&self.admin).await
    }

    /// Waits until a set later than `after` is in force; says which.
    pub async fn until_generation_after(&self, after: u64, within: Duration) -> Result<u64, HarnessError> {
        until(&format!("a policy generation after {after}"), within, async || {
            let generation = self.policies().await.ok()?.generation;
            (generation > after).then_some(generation)
        })
        .await
    }

    /// Waits until the newest file of a policy is refused; says what is listed then.
    pub async fn until_refused(&self, name: &str, within: Duration) -> Result<ListedPolicy, HarnessError> {
        until(&format!("policy {name:?} to be refused"), within, async || {
            let listed = self.policies().await.ok()?.named(name)?.clone();
            listed.refusal.is_some().then_some(listed)
        })
        .await
    }

    /// The host's metrics.
    pub async fn metrics(&self) -> Result<Metrics, HarnessError> {
        self.client.metrics().await
    }

    /// Waits until a sum of metrics is as wanted.
    pub async fn until_metric(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        wanted: impl Fn(f64) -> bool,
        within: Duration,
    ) -> Result<f64, HarnessError> {
        until(&format!("{name} {labels:?}"), within, async || {
            let sum = self.metrics().await.ok()?.sum(name, labels);
            wanted(sum).then_some(sum)
        })
        .await
    }

    /// What the admin API says of a worker.
    pub async fn worker(&self, name: &str) -> Result<Value, HarnessError> {
        let fleet = self.admin.get("/admin/fleet").await?.json();
        let workers = fleet["pools"][0]["workers"].as_array().cloned().unwrap_or_default();
        let found = workers.into_iter().find(|worker| worker["name"] == name);
        found.ok_or_else(|| HarnessError::Unexpected {
            what: format!("worker {name:?}"),
            found: fleet.to_string(),
        })
    }
}

/// What an admin API says of the policies.
pub async fn policies(admin: &Client) -> Result<Policies, HarnessError> {
    let answer = admin.get("/admin/policies").await?;
    Policies::read(&answer.json())
        .ok_or_else(|| HarnessError::Unexpected { what: "/admin/policies".into(), found: answer.text() })
}

/// Settings first: the policy's own file is what is waited for.
fn place(beside: &Path, folder: &Path, policy: &PolicyFile) -> Result<(), HarnessError> {
    let put = |file: String, bytes: &[u8]| put(beside, folder, &file, bytes);
    if let Some(settings) = &policy.settings {
        put(format!("{}.toml", policy.name), settings.as_bytes())?;
    }
    put(format!("{}.wasm", policy.name), &policy.wasm)
}

/// Writes beside the watched folder and renames into it, so that no half-written file is ever seen there.
fn put(beside: &Path, folder: &Path, file: &str, bytes: &[u8]) -> Result<(), HarnessError> {
    let new = beside.join(format!("{file}.new"));
    fs::write(&new, bytes)
        .and_then(|()| fs::rename(&new, folder.join(file)))
        .map_err(HarnessError::io(format!("drop {file}")))
}
