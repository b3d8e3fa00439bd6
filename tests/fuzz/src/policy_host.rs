//! A policy host on a folder of its own, with limits under which each input is quick.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use sluice_core::facts::{Facts, Finish, Lease, Prefilled, TurnEnd};
use sluice_policy::{Fault, HostConfig, Limits, LoadError, Observer, Policy, PolicyHost, Refusal};
use wit_parser::Resolve;

/// The name of the one policy.
const NAME: &str = "main";

/// The interface, as policies are built for it.
const WIT: &str = include_str!("../../../sdk/policy/wit/policy.wit");

/// Little time, little memory, and room for few: an input that uses up all of it is still quick.
fn limits() -> Limits {
    Limits {
        cpu_budget_ms: 20,
        configure_cpu_budget_ms: 20,
        // A machine that is busy with other things is no finding.
        wall_bound_ms: 10_000,
        configure_wall_bound_ms: 10_000,
        memory_bytes: 4 * 1024 * 1024,
        instances_per_policy: 4,
        instances_total: 64,
        recheck_one_in: 16,
        ..Limits::default()
    }
}

/// Keeps the last refusal.
#[derive(Default)]
struct LastRefusal(Mutex<Option<Refusal>>);

impl Observer for LastRefusal {
    fn refused(&self, _: &str, error: &LoadError, _: bool) {
        let sentence = error.to_string();
        assert!(sentence.len() < 8_192 && !sentence.contains('\n'), "fits a log line: {sentence}");
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.reason.clone());
    }
}

/// A host and its folder.
pub struct Bench {
    folder: tempfile::TempDir,
    host: Arc<PolicyHost>,
    last_refusal: Arc<LastRefusal>,
}

impl Bench {
    /// A host in whose folder there is this policy.
    pub fn new(wasm: &[u8]) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the policy");
        fs::write(folder.path().join(format!("{NAME}.wasm")), wasm).expect("room for a policy");
        let last_refusal = Arc::new(LastRefusal::default());
        let config = HostConfig {
            folder: folder.path().to_owned(),
            default: NAME.to_owned(),
            limits: limits(),
            cache_folder: None,
            compiler: None,
        };
        let observer = Arc::clone(&last_refusal) as Arc<dyn Observer>;
        let host = PolicyHost::open(config, observer).expect("a host for the policy");
        Self { folder, host, last_refusal }
    }

    /// The policy's file, or with `toml` that of its settings.
    pub fn write(&self, extension: &str, bytes: &[u8]) {
        fs::write(self.path(extension), bytes).expect("room for a file");
    }

    fn path(&self, extension: &str) -> PathBuf {
        self.folder.path().join(format!("{NAME}.{extension}"))
    }

    /// Looks at the folder. What is refused leaves what was in force, and is refused for a reason of its own.
    pub fn reload(&self) -> Option<Refusal> {
        let before = self.host.generation();
        let outcome = self.host.reload();
        let refusal = self.last_refusal.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        assert_eq!(outcome.folder_error, None);
        if let Some(refusal) = &refusal {
            assert_ne!(refusal.kind(), "loader-failed", "{refusal}");
            let after = self.host.generation();
            let digest = |policy: Option<&Arc<Policy>>| policy.map(|policy| policy.digest().to_owned());
            assert_eq!(digest(before.default_policy()), digest(after.default_policy()));
        }
        refusal
    }

    /// The policy of the file, though it was put aside for its faults, which inputs make many of.
    pub fn policy(&self) -> Option<Arc<Policy>> {
        let generation = self.host.generation();
        generation.put_aside(NAME).or_else(|| generation.default_policy()).cloned()
    }
}

/// A core module in WASM's text form, or a component, as the file that a host takes; `None` when the text is none.
pub fn assembled(text: &str) -> Option<Vec<u8>> {
    let mut bytes = wat::parse_str(text).ok()?;
    if wasmparser::Parser::is_component(&bytes) {
        return Some(bytes);
    }
    let mut resolve = Resolve::default();
    let package = resolve.push_str("policy.wit", WIT).expect("the interface");
    let world = resolve.select_world(&[package], Some("policy")).expect("its world");
    let encoding = wit_component::StringEncoding::UTF8;
    wit_component::embed_component_metadata(&mut bytes, &resolve, world, encoding).ok()?;
    Some(bytes)
}

/// What came of one call.
pub enum Answer {
    /// Of `route`.
    Verdict(sluice_core::verdict::Verdict),
    /// Of `bind-decode`.
    Decode(Option<u32>),
    /// Of `retain`.
    Retention(sluice_core::verdict::Retention),
    /// Of `heartbeat`.
    Renewal(sluice_core::verdict::Renewal),
}

/// Who prefilled, where a question needs it.
pub const PREFILL: u32 = 0;

/// Asks one of the four hooks.
pub fn ask(policy: &Policy, hook: u8, facts: Facts) -> Result<Answer, Fault> {
    match hook % 4 {
        0 => policy.route(&facts).map(Answer::Verdict),
        1 => {
            let prefilled =
                Prefilled { prefill: PREFILL, tokens: 1_000, took_ms: 100, handle_expires_in_ms: 20_000 };
            policy.bind_decode(&facts, &prefilled).map(Answer::Decode)
        }
        2 => {
            let finish = Finish::Stop;
            let turn = TurnEnd { facts, decode: 1, held_tokens: 1_099, output_tokens: 100, finish };
            policy.retain(&turn).map(Answer::Retention)
        }
        _ => {
            let lease = Lease {
                facts,
                holder: 1,
                held_tokens: 1_099,
                idle_ms: 5_000,
                renewals: 0,
                expires_in_ms: 1_000,
            };
            policy.heartbeat(&lease).map(Answer::Renewal)
        }
    }
}
