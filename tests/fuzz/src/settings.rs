//! A policy's settings and the schema that it states for them: read, checked, and given to the policy as JSON.

use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use sluice_policy::Refusal;

use crate::policy_host::{self, Bench};

/// Between the schema and the settings of an input.
const BORDER: &[u8] = b"\n====\n";

/// Its settings schema is what is put in; it refuses its settings with those very settings, so that they can be seen.
const TELLER: &str = r#"(module
  (memory (export "memory") 4)
  (data (i32.const 65536) "SCHEMA")
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 131072))
  (func (export "sluice:policy/hooks@0.1.0#describe") (result i32)
    (i32.store (i32.const 1048) (i32.const 65536))
    (i32.store (i32.const 1052) (i32.const BYTES))
    (i32.const 1024))
  (func (export "sluice:policy/hooks@0.1.0#configure") (param i32 i32) (result i32)
    (i32.store8 (i32.const 2048) (i32.const 1))
    (i32.store (i32.const 2052) (local.get 0))
    (i32.store (i32.const 2056) (local.get 1))
    (i32.const 2048))
  (func (export "sluice:policy/hooks@0.1.0#route") (param i32) (result i32) (i32.const 1024))
  (func (export "sluice:policy/hooks@0.1.0#bind-decode") (param i32) (result i32) (i32.const 1024))
  (func (export "sluice:policy/hooks@0.1.0#retain") (param i32) (result i32) (i32.const 1024))
  (func (export "sluice:policy/hooks@0.1.0#heartbeat") (param i32) (result i32) (i32.const 1024)))"#;

/// The longest message that a refusal holds whole, in bytes.
const WHOLE_BYTES_AT_MOST: usize = 500;

/// Takes a schema, a border, and settings. Says whether the settings could be read.
pub fn check(input: &[u8]) -> bool {
    static BENCH: OnceLock<Mutex<Bench>> = OnceLock::new();
    let (schema, settings) = match memchr::memmem::find(input, BORDER) {
        Some(at) => (&input[..at], &input[at + BORDER.len()..]),
        None => (&b""[..], input),
    };
    let first = || Mutex::new(Bench::new(&teller(b"")));
    let bench = BENCH.get_or_init(first).lock().unwrap_or_else(PoisonError::into_inner);
    bench.write("wasm", &teller(schema));
    bench.write("toml", settings);
    // Seen before: nothing to load again.
    let Some(refusal) = bench.reload() else { return true };
    let table = std::str::from_utf8(settings).ok().and_then(|text| text.parse::<toml::Table>().ok());
    match refusal {
        Refusal::ConfigureRefused { message } => {
            let table = table.expect("the policy got settings, so they can be read");
            let is_whole = message.len() < WHOLE_BYTES_AT_MOST && !message.contains("\\u{");
            if is_whole && !message.is_empty() {
                let given: serde_json::Map<_, _> = serde_json::from_str(&message).expect("a JSON object");
                assert_eq!(given.len(), table.len(), "{message}");
                assert!(table.keys().all(|key| given.contains_key(key)), "{message}");
            }
            true
        }
        Refusal::SettingsSyntax { .. } => {
            assert!(table.is_none(), "they can be read: {refusal}");
            false
        }
        // The schema is none, or does not take them, or is more than a guest may say.
        _ => table.is_some(),
    }
}

fn teller(schema: &[u8]) -> Vec<u8> {
    let mut escaped = String::new();
    for byte in schema {
        write!(escaped, "\\{byte:02x}").expect("a string takes all");
    }
    let text = TELLER.replace("SCHEMA", &escaped).replace("BYTES", &schema.len().to_string());
    policy_host::assembled(&text).expect("a guest")
}
