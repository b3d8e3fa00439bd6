//! What the policy host reports, into logs and metrics.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_core::workload::Binding;
use sluice_policy::{
    BINDINGS, BindingsError, CacheUse, Change, Fault, Generation, LoadError, Observer, OpenError, Policy,
    PutAside, Refusal,
};

use crate::binding_notes;
use crate::config::BUILTIN;
use crate::telemetry::Telemetry;

/// Says once that a policy that should decide is not there. It is forgotten when the policy comes.
pub fn tell_missing(telemetry: &Telemetry, policy: &str, folder: &Path, generation: &Generation) {
    telemetry.warn_once(&missing_key(policy), || {
        format!(
            "policy {policy:?} is not in force: drop {}/{policy}.wasm; the built-in default decides until then{}",
            folder.display(),
            binding_notes::did_you_mean(policy, generation.names().chain([BUILTIN])),
        )
    });
}

/// Says once that a binding waits for a model that no pool serves. It is forgotten when the binding is another.
fn tell_unserved(telemetry: &Telemetry, binding: &Binding, models: &[String]) {
    let about = format!("bound model {} ", binding.workload);
    match binding_notes::unserved(binding, models.iter().map(String::as_str)) {
        None => telemetry.forget_prefix(&about),
        Some(note) if telemetry.is_news(&format!("{about}{note}")) => {
            tracing::warn!(workload = binding.workload, "a binding can be used, but {note}");
        }
        Some(_) => {}
    }
}

/// The folder itself among refused files: no policy is called so.
const FOLDER: &str = "(folder)";

fn missing_key(policy: &str) -> String {
    format!("policy not loaded {policy}")
}

/// Writes policy events down.
pub struct PolicyEvents {
    telemetry: Arc<Telemetry>,
    folder: PathBuf,
    models: Vec<String>,
}

impl PolicyEvents {
    /// Into this telemetry; `folder` is the policies', `models` are those that are served.
    pub fn new(telemetry: Arc<Telemetry>, folder: PathBuf, models: Vec<String>) -> Self {
        Self { telemetry, folder, models }
    }

    fn fault_key(policy: &str, fault: &Fault) -> String {
        format!("fault {policy} {} {}", fault.hook().name(), fault.kind())
    }
}

impl Observer for PolicyEvents {
    fn loaded(&self, policy: &Policy, change: Change) {
        let (name, version) = (policy.name(), policy.version());
        tracing::info!(
            policy = name,
            version,
            digest = policy.digest().get(..12),
            settings = policy.settings_digest().and_then(|digest| digest.get(..12)),
            changed = change.name(),
            code = ?policy.code(),
            compile_ms = policy.compile_ms(),
            "policy loaded"
        );
        // A new version's faults are news again.
        self.telemetry.forget_prefix(&format!("fault {name} "));
        self.telemetry.forget(&missing_key(name));
    }

    fn refused(&self, name: &str, error: &LoadError, in_force: bool) {
        let instead = if in_force { "its last good version stays in force" } else { "it is not in force" };
        if matches!(error.reason, Refusal::StillCompiling) {
            tracing::info!(policy = name, "policy is being compiled, {instead} until then: {error}");
            return;
        }
        if matches!(error.reason, Refusal::SettingsOnly) {
            // Not counted: whoever drops the settings first and the policy next does nothing wrong.
            tracing::info!(policy = name, "settings have no effect: {error}");
            return;
        }
        self.telemetry.metrics.refused(name);
        tracing::error!(policy = name, "policy refused, {instead}: {error}");
    }

    fn removed(&self, name: &str, kept: bool) {
        if kept {
            tracing::error!(
                policy = name,
                "the file of a policy that decides is gone: its last good version stays in force until another is bound"
            );
        } else {
            tracing::info!(policy = name, "policy removed");
        }
    }

    fn swapped(&self, generation: &Generation) {
        self.telemetry.metrics.swapped(generation.number);
        let workloads = generation.bindings().len();
        tracing::info!(generation = generation.number, workloads, "policies in force");
        for binding in generation.bindings() {
            tell_unserved(&self.telemetry, binding, &self.models);
            let policy = binding.policy.as_str();
            if policy == BUILTIN {
                continue;
            }
            self.telemetry.metrics.expect_policy(policy);
            if generation.policy(policy).is_none() {
                tell_missing(&self.telemetry, policy, &self.folder, generation);
            }
        }
    }

    fn bindings_refused(&self, error: &BindingsError) {
        self.telemetry.metrics.refused(BINDINGS);
        tracing::error!("workload bindings refused, they stay as they are: {error}");
    }

    fn put_aside(&self, policy: &Policy, why: &PutAside, instead: Option<&Policy>) {
        let name = policy.name();
        self.telemetry.metrics.put_aside(name);
        let instead = match instead {
            Some(good) => format!("its last good version {} ({:.12})", good.version(), good.digest()),
            None => "the built-in default".to_owned(),
        };
        tracing::error!(
            policy = name,
            version = policy.version(),
            digest = policy.digest().get(..12),
            "policy put aside, {instead} decides instead: {why}"
        );
    }

    fn folder_refused(&self, error: &OpenError) {
        self.telemetry.metrics.refused(FOLDER);
        tracing::error!("policies stay as they are: {error}; cure: {}", error.cure());
    }

    fn cache(&self, used: &CacheUse) {
        self.telemetry.metrics.policy_cache(used);
        if let CacheUse::Refused { why } | CacheUse::Failed { why } = used {
            self.telemetry.warn_once(&format!("policy cache {}", used.name()), || {
                format!(
                    "a policy is compiled anew, since the cache of compiled policies cannot be used: {why}"
                )
            });
        }
    }

    fn compiled_inside(&self, why: &str) {
        self.telemetry.metrics.compiled_inside();
        self.telemetry.warn_once("compiled inside", || {
            format!("a policy was compiled in the host's own process, which requests may have felt: {why}")
        });
    }

    fn fault(&self, policy: &str, fault: &Fault) {
        self.telemetry.metrics.policy_fault(policy, fault.hook().name(), fault.kind());
        self.telemetry.warn_once(&Self::fault_key(policy, fault), || {
            format!("policy {policy:?} failed, the default decides instead: {fault}")
        });
    }
}
