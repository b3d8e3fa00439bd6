//! What a host is configured with.

use std::fmt::Write;

/// How a pool shares the work of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Prefill and decode workers.
    Pull,
    /// Prefill and decode workers; decode workers keep turns for the next one.
    Bidirectional,
    /// Prefill and decode workers whose KV the host moves.
    HostManaged,
    /// Each worker serves alone.
    Unified,
}

/// One worker of the pool.
#[derive(Debug, Clone)]
pub struct WorkerPlan {
    /// Its name.
    pub name: String,
    /// `prefill`, `decode` or `unified`.
    pub role: &'static str,
    /// `http://HOST:PORT`
    pub url: String,
    /// Whether a decode worker may serve alone.
    pub can_prefill: bool,
}

/// A host with one pool.
#[derive(Debug, Clone)]
pub struct HostPlan {
    /// How the pool works.
    pub mode: Mode,
    /// Served model name.
    pub model: String,
    /// The pool's workers.
    pub workers: Vec<WorkerPlan>,
    /// Name of the policy that decides.
    pub policy: String,
    /// Where clients connect.
    pub listen: String,
    /// Where operators connect.
    pub admin_listen: String,
    /// More lines of `[server]`.
    pub server: String,
    /// Lines of `[upstream]`.
    pub upstream: String,
    /// More lines of `[policy]`.
    pub policy_keys: String,
    /// Lines of `[telemetry]`.
    pub telemetry: String,
    /// More lines of `[[pool]]`.
    pub pool: String,
    /// Whether the log is written as JSON.
    pub log_json: bool,
    /// More tables.
    pub tables: String,
}

impl HostPlan {
    /// A host without workers yet, under the host's own policy.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            model: "emulated".into(),
            workers: Vec::new(),
            policy: "builtin".into(),
            listen: "127.0.0.1:0".into(),
            admin_listen: "127.0.0.1:0".into(),
            server: String::new(),
            upstream: String::new(),
            policy_keys: String::new(),
            telemetry: String::new(),
            log_json: false,
            // Tests count what engines are sent: the host's own requests come only where they are asked for.
            pool: "kv_bytes_per_token = 64\nprobe_kv = false\n".into(),
            tables: String::new(),
        }
    }

    /// The same with one more worker, named after its role.
    pub fn worker(mut self, role: &'static str, url: &str) -> Self {
        let number = self.workers.iter().filter(|worker| worker.role == role).count();
        let worker =
            WorkerPlan { name: format!("{role}-{number}"), role, url: url.into(), can_prefill: false };
        self.workers.push(worker);
        self
    }

    /// The same under another policy.
    pub fn policy(self, name: &str) -> Self {
        Self { policy: name.into(), ..self }
    }

    /// The configuration file.
    pub fn toml(&self) -> String {
        let mode = match self.mode {
            Mode::Pull => "pull",
            Mode::Bidirectional => "bidirectional",
            Mode::HostManaged => "host-managed",
            Mode::Unified => "unified",
        };
        let Self {
            listen,
            admin_listen,
            server,
            upstream,
            policy,
            policy_keys,
            telemetry,
            model,
            pool,
            tables,
            ..
        } = self;
        let mut toml = format!(
            "[server]\nlisten = \"{listen}\"\nadmin_listen = \"{admin_listen}\"\n{server}\n\
             [upstream]\n{upstream}\n\
             [policy]\nfolder = \"policies.d\"\ndefault = \"{policy}\"\n{policy_keys}\n\
             [telemetry]\n{telemetry}\n{tables}\n\
             [[pool]]\nname = \"main\"\nmodel = \"{model}\"\nmode = \"{mode}\"\n{pool}"
        );
        for WorkerPlan { name, role, url, can_prefill } in &self.workers {
            let able = if *can_prefill { "can_prefill = true\n" } else { "" };
            let _ = write!(
                toml,
                "\n[[pool.worker]]\nname = \"{name}\"\nrole = \"{role}\"\nurl = \"{url}\"\n{able}"
            );
        }
        toml
    }
}
