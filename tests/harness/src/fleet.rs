//! Emulators and a host in front of them.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::{Client, Emulator, EmulatorPlan, Gate, HarnessError, Host, HostPlan, Mode, PolicyFile};

/// What a fleet is made of.
#[derive(Debug, Clone)]
pub struct FleetPlan {
    /// The host; its workers are added by the fleet.
    pub host: HostPlan,
    /// Engines. Workers are named after their role: `prefill-0`, `prefill-1`, `decode-0`.
    pub emulators: Vec<EmulatorPlan>,
    /// Whether decode workers may serve alone.
    pub can_prefill: bool,
    /// Whether all that engines are asked, and all KV they give, goes through gates.
    pub gated: bool,
    /// Whether engines of a pool whose KV the host moves attach to it.
    pub attached: bool,
    /// Policies in the folder at the start.
    pub policies: Vec<PolicyFile>,
}

/// For engines to attach; far above what it takes, since tests share few cores.
const ATTACHED_WITHIN: Duration = Duration::from_secs(20);

impl FleetPlan {
    /// So many prefill and decode engines, as fast as they can be.
    pub fn pull(prefills: usize, decodes: usize) -> Self {
        let prefills = std::iter::repeat_n(EmulatorPlan::fast("prefill"), prefills);
        let decodes = std::iter::repeat_n(EmulatorPlan::fast("decode"), decodes);
        Self::new(Mode::Pull, prefills.chain(decodes).collect())
    }

    /// The same, whose decode engines keep turns for the next one.
    pub fn bidirectional(prefills: usize, decodes: usize) -> Self {
        let plan = Self { host: HostPlan::new(Mode::Bidirectional), ..Self::pull(prefills, decodes) };
        plan.engines("", "--bidirectional")
    }

    /// The same, whose KV the host moves.
    pub fn hosted(prefills: usize, decodes: usize) -> Self {
        Self { host: HostPlan::new(Mode::HostManaged), attached: true, ..Self::pull(prefills, decodes) }
    }

    /// The same with engines that do not attach to their host.
    pub fn unattached(self) -> Self {
        Self { attached: false, ..self }
    }

    /// So many engines that serve alone.
    pub fn unified(workers: usize) -> Self {
        Self::new(Mode::Unified, vec![EmulatorPlan::fast("unified"); workers])
    }

    fn new(mode: Mode, emulators: Vec<EmulatorPlan>) -> Self {
        Self {
            host: HostPlan::new(mode),
            emulators,
            can_prefill: false,
            gated: false,
            attached: false,
            policies: Vec::new(),
        }
    }

    /// The same, decided by this policy.
    pub fn decided_by(mut self, policy: PolicyFile) -> Self {
        self.host.policy.clone_from(&policy.name);
        self.policies.push(policy);
        self
    }

    /// The same with more arguments for the engines of a role, or for all when the role is empty.
    pub fn engines(mut self, role: &str, arguments: &str) -> Self {
        for emulator in &mut self.emulators {
            if role.is_empty() || emulator.role == role {
                *emulator = emulator.clone().with(arguments);
            }
        }
        self
    }

    /// The same without this argument for the engines of a role.
    pub fn engines_without(mut self, role: &str, argument: &str) -> Self {
        for emulator in self.emulators.iter_mut().filter(|emulator| emulator.role == role) {
            emulator.arguments.retain(|given| given != argument);
        }
        self
    }

    /// The same with more lines of `[[pool]]`.
    pub fn pool(mut self, lines: &str) -> Self {
        self.host.pool.push_str(lines);
        self
    }

    /// The same behind gates.
    pub fn gated(self) -> Self {
        Self { gated: true, ..self }
    }

    /// Starts all of it and waits until the host is ready.
    pub async fn start(&self) -> Result<Fleet, HarnessError> {
        let folder = TempDir::with_prefix("sluice-engines-").map_err(HarnessError::io("make a folder"))?;
        let names = self.names();
        let mut host = self.host.clone();
        let mut workers = Vec::new();
        let mut gates = Vec::new();
        let socket = folder.path().join("kv.sock");
        if host.mode == Mode::HostManaged {
            host.tables.push_str(&format!("[transfer]\nsocket = {:?}\n", socket.display().to_string()));
        }
        let link = |(plan, name): (&EmulatorPlan, &String)| match self.attached {
            true => plan.clone().with(&format!("--kv-link {} --name {name}", socket.display())),
            false => plan.clone(),
        };
        let plans: Vec<_> = self.emulators.iter().zip(&names).map(link).collect();
        for (plan, name) in plans.iter().zip(&names) {
            let mut gate = None;
            if self.gated {
                gate = Some(Gates { http: Gate::start().await?, kv: Gate::start().await? });
            }
            let emulator = start(name, plan, gate.as_ref(), folder.path()).await?;
            let url = gate.as_ref().map(|gates| format!("http://{}", gates.http.address()));
            host = host.worker(plan.role, url.as_deref().unwrap_or(emulator.url()));
            workers.push(emulator);
            gates.push(gate);
        }
        for worker in &mut host.workers {
            worker.can_prefill = self.can_prefill && worker.role == "decode";
        }
        let host = Host::start(&host, &self.policies).await?;
        host.until_ready().await?;
        if self.attached {
            let all = plans.len() as f64;
            host.until_metric("sluice_transfer_engines", &[], |count| count == all, ATTACHED_WITHIN).await?;
            // An engine hears of it a moment after the host knows.
            for worker in &workers {
                worker.until_attached(ATTACHED_WITHIN).await?;
            }
        }
        Ok(Fleet { host, workers, gates, plans, names, folder })
    }

    fn names(&self) -> Vec<String> {
        let number = |index: usize| {
            let role = self.emulators[index].role;
            self.emulators[..index].iter().filter(|other| other.role == role).count()
        };
        (0..self.emulators.len())
            .map(|index| format!("{}-{}", self.emulators[index].role, number(index)))
            .collect()
    }
}

/// A running fleet.
#[derive(Debug)]
pub struct Fleet {
    /// The host.
    pub host: Host,
    workers: Vec<Emulator>,
    gates: Vec<Option<Gates>>,
    plans: Vec<EmulatorPlan>,
    names: Vec<String>,
    folder: TempDir,
}

/// The gates before an engine.
#[derive(Debug)]
pub struct Gates {
    /// Between the host and the engine.
    pub http: Gate,
    /// Between the engine and those that read its KV.
    pub kv: Gate,
}

/// Starts an engine, behind its gates if it has some.
async fn start(
    name: &str,
    plan: &EmulatorPlan,
    gates: Option<&Gates>,
    folder: &Path,
) -> Result<Emulator, HarnessError> {
    let Some(gates) = gates else { return Emulator::start(name, plan, folder).await };
    let plan = plan.clone().with(&format!("--kv-advertise {}", gates.kv.address()));
    let emulator = Emulator::start(name, &plan, folder).await?;
    let state = emulator.state().await?;
    let address = |member: &str| -> Result<SocketAddr, HarnessError> {
        let text = state[member].as_str().unwrap_or_default();
        text.parse().map_err(|_| HarnessError::Unexpected {
            what: "/emulator/state".into(),
            found: state.to_string(),
        })
    };
    gates.http.leads_to(address("http")?);
    gates.kv.leads_to(address("kv")?);
    Ok(emulator)
}

impl Fleet {
    /// A client of the data plane.
    pub fn client(&self) -> &Client {
        self.host.client()
    }

    /// All engines, in the order of the plan.
    pub fn workers(&self) -> &[Emulator] {
        &self.workers
    }

    /// Names of all workers, in the order of the plan.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// An engine by its worker's name.
    pub fn worker(&self, name: &str) -> &Emulator {
        &self.workers[self.position(name)]
    }

    /// An engine by its worker's name, to be ended.
    pub fn worker_mut(&mut self, name: &str) -> &mut Emulator {
        let position = self.position(name);
        &mut self.workers[position]
    }

    /// The gates before an engine.
    pub fn gates(&mut self, name: &str) -> &mut Gates {
        let position = self.position(name);
        self.gates[position].as_mut().unwrap_or_else(|| panic!("{name} has no gates: plan them"))
    }

    /// Kills an engine and starts it anew at the same address. It has another engine id, and none of its blocks.
    pub async fn restart(&mut self, name: &str) -> Result<(), HarnessError> {
        let position = self.position(name);
        self.workers[position].process().kill().await?;
        let address = self.workers[position].url().trim_start_matches("http://").to_owned();
        let plan = self.plans[position].clone().with(&format!("--listen {address}"));
        let gates = self.gates[position].as_ref();
        self.workers[position] = start(name, &plan, gates, self.folder.path()).await?;
        Ok(())
    }

    /// Starts the host again, once it has ended: see [`Host::start_again`].
    pub async fn host_again(self) -> Result<Self, HarnessError> {
        let host = self.host.start_again().await?;
        host.until_ready().await?;
        Ok(Self { host, ..self })
    }

    /// Kills engines, all in one moment, and waits until they are gone.
    pub async fn kill_at_once(&mut self, names: &[&str]) -> Result<(), HarnessError> {
        for name in names {
            self.worker_mut(name).process().start_kill()?;
        }
        for name in names {
            self.worker_mut(name).process().kill().await?;
        }
        Ok(())
    }

    fn position(&self, name: &str) -> usize {
        let position = self.names.iter().position(|other| other == name);
        position.unwrap_or_else(|| panic!("the fleet has no {name:?}, only {}", self.names.join(", ")))
    }

    /// KV bytes that engines read from each other so far.
    pub async fn bytes_moved(&self) -> Result<f64, HarnessError> {
        let mut bytes = 0.0;
        for worker in &self.workers {
            bytes += worker.bytes_read().await?;
        }
        Ok(bytes)
    }
}
