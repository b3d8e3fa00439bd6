//! Files for the tests: policies written in WASM's text form, policies built from Rust, and facts to ask them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_core::facts::{Facts, Finish, Lease, Prefilled, TurnEnd};
use sluice_core::testing;
use sluice_policy::{
    Change, Fault, Hook, HostConfig, Limits, LoadError, Observer, Policy, PolicyHost, PutAside,
};
use wit_parser::Resolve;

/// What the text guest does when `seed` has this value; no trial case has so small a seed.
pub mod seed {
    pub const GOOD: u64 = 0;
    pub const TRAP: u64 = 1;
    pub const ENDLESS: u64 = 2;
    pub const MEMORY: u64 = 3;
    pub const STACK: u64 = 4;
    pub const NO_SUCH_CASE: u64 = 5;
    pub const NO_SUCH_ROW: u64 = 6;
    pub const LONG_TEXT: u64 = 7;
    pub const COUNTS_CALLS: u64 = 8;
    pub const TABLE: u64 = 9;
}

/// The answer lies at 1024. A `route` verdict's parts there: its case at +0, the placement's at +4, a unified
/// row at +8, the reason's option at +28, its text at +32 and length at +36.
const GUEST: &str = r#"
(module
  (memory (export "memory") 2)
  (table 1 funcref)
  (global $top (mut i32) (i32.const 4096))
  (global $calls (mut i32) (i32.const 0))
  (func (export "cabi_realloc") (param i32 i32) (param $align i32) (param $bytes i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and
      (i32.add (global.get $top) (i32.sub (local.get $align) (i32.const 1)))
      (i32.sub (i32.const 0) (local.get $align))))
    (global.set $top (i32.add (local.get $at) (local.get $bytes)))
    (local.get $at))
  (func $done (result i32) (global.set $top (i32.const 4096)) (i32.const 1024))
  (func $deeper (param i32) (result i32) (i32.add (i32.const 1) (call $deeper (i32.add (local.get 0) (i32.const 1)))))
  (func $unified (param $row i32)
    (i32.store8 (i32.const 1024) (i32.const 1))
    (i32.store8 (i32.const 1028) (i32.const 0))
    (i32.store (i32.const 1032) (local.get $row)))
  (func (export "HOOKS#describe") (result i32) DESCRIBE (call $done))
  (func (export "HOOKS#configure") (param i32 i32) (result i32) CONFIGURE (call $done))
  (func (export "HOOKS#route") (param $facts i32) (result i32)
    (local $seed i64)
    (local.set $seed (i64.load offset=8 (local.get $facts)))
    (i32.store8 (i32.const 1024) (i32.const 0))
    (if (i64.eq (local.get $seed) (i64.const 1)) (then unreachable))
    (if (i64.eq (local.get $seed) (i64.const 2)) (then (loop $again (br $again))))
    (if (i64.eq (local.get $seed) (i64.const 3)) (then (drop (memory.grow (i32.const 1000)))))
    (if (i64.eq (local.get $seed) (i64.const 4)) (then (drop (call $deeper (i32.const 0)))))
    (if (i64.eq (local.get $seed) (i64.const 5)) (then (i32.store8 (i32.const 1024) (i32.const 9))))
    (if (i64.eq (local.get $seed) (i64.const 6)) (then (call $unified (i32.const 99))))
    (if (i64.eq (local.get $seed) (i64.const 7)) (then
      (call $unified (i32.const 0))
      (i32.store8 (i32.const 1052) (i32.const 1))
      (i32.store (i32.const 1056) (i32.const 8192))
      (i32.store (i32.const 1060) (i32.const 100000))))
    (if (i64.eq (local.get $seed) (i64.const 8)) (then
      (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
      (call $unified (i32.and (global.get $calls) (i32.const 1)))))
    (if (i64.eq (local.get $seed) (i64.const 9)) (then
      (drop (table.grow 0 (ref.null func) (i32.const 30000)))))
    ROUTE
    (call $done))
  (func (export "HOOKS#bind-decode") (param i32) (result i32) (call $done))
  (func (export "HOOKS#retain") (param i32) (result i32) (call $done))
  (func (export "HOOKS#heartbeat") (param i32) (result i32) (call $done))
)"#;

/// Guest code for one hook, put in where it says so; `;; tag` makes another file of the same behaviour.
#[derive(Default)]
pub struct Text {
    pub describe: &'static str,
    pub configure: &'static str,
    pub route: &'static str,
    /// More of the module's parts.
    pub more: String,
    pub tag: u32,
}

/// A well-behaved guest, but for the seeds above.
pub fn text(tag: u32) -> Vec<u8> {
    build(&Text { tag, ..Text::default() }, "0.1.0")
}

/// A guest for this version of the WIT.
pub fn build(text: &Text, version: &str) -> Vec<u8> {
    with_world(wat::parse_str(source(text, version)).unwrap(), version)
}

/// The module with a section that says which world it is for, as the SDK's bindings add it.
fn with_world(module: Vec<u8>, version: &str) -> Vec<u8> {
    with_wit(module, &wit().replace("@0.1.0", &format!("@{version}")))
}

/// A guest whose WIT has one function more, with a type of as many steps, each twice the one before.
pub fn with_extra_types(steps: u32) -> Vec<u8> {
    let types: String =
        (1..steps).map(|step| format!("type t{step} = tuple<t{0}, t{0}>;\n", step - 1)).collect();
    let more = format!("type t0 = tuple<u8, u8>;\n{types} more: func(all: t{});\n", steps - 1);
    let wit = wit().replacen("describe: func", &format!("{more} describe: func"), 1);
    let function = r#"(func (export "sluice:policy/hooks@0.1.0#more") (param i32))"#;
    let text =
        text_of("quiet").replacen("(func (export \"cabi", &format!("{function}\n(func (export \"cabi"), 1);
    with_wit(wat::parse_str(text).unwrap(), &wit)
}

fn wit() -> String {
    fs::read_to_string(manifest_folder().join("../../sdk/policy/wit/policy.wit")).unwrap()
}

fn with_wit(mut module: Vec<u8>, wit: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("policy.wit", wit).unwrap();
    let world = resolve.select_world(&[package], Some("policy")).unwrap();
    let encoding = wit_component::StringEncoding::UTF8;
    wit_component::embed_component_metadata(&mut module, &resolve, world, encoding).unwrap();
    module
}

fn source(text: &Text, version: &str) -> String {
    let tag = format!("(global i32 (i32.const {})) {}", text.tag, text.more);
    GUEST
        .replace("HOOKS", &format!("sluice:policy/hooks@{version}"))
        .replace("DESCRIBE", text.describe)
        .replace("CONFIGURE", text.configure)
        .replace("ROUTE", text.route)
        .replacen("(table", &format!("{tag} (table"), 1)
}

fn manifest_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A guest or policy built from Rust.
pub fn built(group: &str, name: &str) -> PathBuf {
    let folder = std::env::var_os("SLUICE_WASM_DIR")
        .map_or_else(|| manifest_folder().join("../../target"), PathBuf::from);
    let file = folder.join(group).join(format!("{name}.wasm"));
    assert!(file.exists(), "{} is not there: run `make guests`", file.display());
    file
}

/// Guests written in WASM's text form; `_` in their names, where those from Rust have `-`.
fn text_file(name: &str) -> PathBuf {
    manifest_folder().join("../../tests/guests/wat").join(format!("{name}.wat"))
}

/// The file that a guest is when it is dropped into the folder.
pub fn bytes(name: &str) -> Vec<u8> {
    if text_file(name).exists() {
        from_text(&text_of(name))
    } else {
        fs::read(built("guests", name)).unwrap()
    }
}

/// The text of a guest.
pub fn text_of(name: &str) -> String {
    fs::read_to_string(text_file(name)).unwrap()
}

/// The file that a guest is whose text this is.
pub fn from_text(text: &str) -> Vec<u8> {
    let bytes = wat::parse_str(text).unwrap();
    let is_component = wasmparser::Parser::is_component(&bytes);
    if is_component { bytes } else { with_world(bytes, "0.1.0") }
}

/// All guests that there are, as [`bytes`] calls them.
pub fn names() -> Vec<String> {
    let stems = |folder: &str| {
        let files = fs::read_dir(manifest_folder().join("../../tests/guests").join(folder)).unwrap();
        files.map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
    };
    let from_rust = stems("examples").map(|stem| stem.replace('_', "-"));
    from_rust.chain(stems("wat")).collect()
}

/// Asks a hook with this label `x-mood`; well-behaved guests do not mind it.
pub fn ask(policy: &Policy, hook: Hook, mood: &str) -> Result<(), Fault> {
    let mut facts = testing::table(&[testing::prefill(), testing::decode()]);
    facts.request.labels = vec![("x-mood".to_owned(), mood.to_owned())];
    match hook {
        Hook::BindDecode => policy.bind_decode(&facts, &prefilled()).map(drop),
        Hook::Retain => {
            let finish = Finish::Stop;
            let turn = TurnEnd { facts, decode: 1, held_tokens: 1_099, output_tokens: 100, finish };
            policy.retain(&turn).map(drop)
        }
        Hook::Heartbeat => {
            let lease = Lease {
                facts,
                holder: 1,
                held_tokens: 1_099,
                idle_ms: 5_000,
                renewals: 0,
                expires_in_ms: 1_000,
            };
            policy.heartbeat(&lease).map(drop)
        }
        _ => policy.route(&facts).map(drop),
    }
}

/// Limits for tests: little address space each, since tests run side by side, and time enough that a busy
/// machine does not fail a good guest by the clock.
pub fn limits() -> Limits {
    Limits {
        wall_bound_ms: 10_000,
        configure_wall_bound_ms: 10_000,
        instances_per_policy: 16,
        instances_total: 64,
        ..Limits::default()
    }
}

/// Facts that make the text guest do something; two unified workers.
pub fn facts(seed: u64) -> Facts {
    Facts { seed, ..testing::table(&[testing::unified(), testing::unified()]) }
}

pub fn prefilled() -> Prefilled {
    Prefilled { prefill: 0, tokens: 1_000, took_ms: 100, handle_expires_in_ms: 20_000 }
}

/// Writes a line for each event.
#[derive(Default)]
pub struct Log(Mutex<Vec<String>>);

impl Log {
    fn note(&self, line: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// All lines since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Log {
    fn loaded(&self, policy: &Policy, change: Change) {
        let change = match change {
            Change::Settings | Change::CodeAndSettings => format!(" {}", change.name()),
            Change::First | Change::Code => String::new(),
        };
        self.note(format!("loaded {}{change}", policy.name()));
    }

    fn refused(&self, name: &str, error: &LoadError, in_force: bool) {
        self.note(format!("refused {name} {} {in_force}", error.reason.kind()));
    }

    fn removed(&self, name: &str, kept: bool) {
        self.note(format!("removed {name} {kept}"));
    }

    fn swapped(&self, generation: &sluice_policy::Generation) {
        let names: Vec<_> = generation.names().collect();
        self.note(format!("generation {} {}", generation.number, names.join(",")));
    }

    fn folder_refused(&self, _: &sluice_policy::OpenError) {
        self.note("folder refused".to_owned());
    }

    fn cache(&self, used: &sluice_policy::CacheUse) {
        self.note(format!("cache {}", used.name()));
    }

    fn compiled_inside(&self, why: &str) {
        self.note(format!("compiled inside: {why}"));
    }

    fn put_aside(&self, policy: &Policy, _: &PutAside, instead: Option<&Policy>) {
        let instead = instead.map_or("the built-in default", |policy| &policy.digest()[..12]);
        self.note(format!("put aside {} for {instead}", policy.name()));
    }

    fn fault(&self, policy: &str, fault: &Fault) {
        self.note(format!("fault {policy} {} {}", fault.hook(), fault.kind()));
    }
}

/// A folder of policies and its host.
pub struct Bench {
    pub folder: tempfile::TempDir,
    pub log: Arc<Log>,
    pub host: Arc<PolicyHost>,
}

/// A host whose default is `main`, with these files in its folder.
pub fn bench(files: &[(&str, &[u8])]) -> Bench {
    bench_with(files, limits())
}

pub fn bench_with(files: &[(&str, &[u8])], limits: Limits) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let log = Arc::new(Log::default());
    let config = HostConfig {
        folder: folder.path().to_owned(),
        default: "main".to_owned(),
        limits,
        cache_folder: None,
        compiler: None,
    };
    let host = PolicyHost::open(config, Arc::clone(&log) as Arc<dyn Observer>).unwrap();
    Bench { folder, log, host }
}

impl Bench {
    pub fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.folder.path().join(name), bytes).unwrap();
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.folder.path().join(name)).unwrap();
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}
