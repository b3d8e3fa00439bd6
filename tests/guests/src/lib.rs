//! Guests that misbehave, one file each under `examples/`: what the policy host must survive.
//!
//! `cargo build --profile wasm --target wasm32-unknown-unknown -p sluice-guests --examples` builds them. Those that Rust
//! cannot make are in WASM's text form, in `wat/`.

use std::hint::black_box;

use sluice_policy_sdk::{
    DecodeChoice, Disaggregated, Facts, Placement, Route, Row, TransferMode, Verdict, Worker, pick,
};

/// Decides as a plain, well-behaved policy would: the first pair, else the first worker that serves alone.
pub fn first(facts: &Facts) -> Verdict {
    let pair = facts
        .paired_prefills()
        .next()
        .and_then(|prefill| facts.decodes_for(prefill).next().map(|decode| (prefill, decode)));
    match (pair, facts.alone().next()) {
        (Some((prefill, decode)), _) => Verdict::pull(prefill.row(), decode.row()),
        (None, Some(worker)) => Verdict::unified(worker.row()),
        (None, None) => Verdict::UseDefault,
    }
}

/// A label of the request.
pub fn label<'a>(facts: &'a Facts, name: &str) -> Option<&'a str> {
    let label = facts.request.labels.iter().find(|(other, _)| other == name);
    label.map(|(_, value)| value.as_str())
}

/// The least loaded pair, whose KV moves as it is told: pushed where that begins with `push`, pulled, or `late` for a decode
/// worker that is chosen once the prefill is done.
pub fn as_told(facts: &Facts, how: &str) -> Verdict {
    let load = |worker: Worker<'_>| (worker.running() + worker.waiting()) as f32;
    let Some((prefill, decode)) = pick::pair(facts, load, load) else { return Verdict::UseDefault };
    match how {
        how if how.starts_with("push") => Verdict::push(prefill.row(), decode.row()),
        "late" => Verdict::pull_late(prefill.row()),
        _ => Verdict::pull(prefill.row(), decode.row()),
    }
}

/// Does not return.
pub fn forever() -> ! {
    loop {
        black_box(());
    }
}

/// Takes memory until there is none, and touches all of it.
pub fn take_all_memory() -> ! {
    const CHUNK_BYTES: usize = 1 << 20;
    let mut taken = Vec::new();
    loop {
        taken.push(black_box(vec![1_u8; CHUNK_BYTES]));
    }
}

/// Calls itself as often as the stack allows.
pub fn deeper(depth: u32) -> u32 {
    if black_box(depth) == u32::MAX { depth } else { 1 + deeper(black_box(depth | 1)) }
}

/// A push whose taker is to be chosen after it: no host can do it, and the SDK offers no way to write it.
pub fn push_late(prefill: Row) -> Verdict {
    let pair = Disaggregated {
        prefill,
        decode: DecodeChoice::AfterPrefill,
        transfer: TransferMode::Push,
        kv_recompute_threshold_tokens: 0,
    };
    Verdict::Route(Route { placement: Placement::Disaggregated(pair), reason: None, hints: Vec::new() })
}

/// A guest whose description is what is written here; `export!` takes it from Cargo.toml.
#[macro_export]
macro_rules! describes_itself {
    ($($part:ident: $value:expr),*) => {
        use ::sluice_policy_sdk::bindings::exports::sluice::policy::hooks;
        use ::sluice_policy_sdk::{
            Description, Facts, Lease, Prefilled, Renewal, Retention, Row, TurnEnd, Verdict,
        };

        struct Guest;

        impl hooks::Guest for Guest {
            fn describe() -> Description {
                let plain = Description {
                    name: "guest".to_owned(),
                    version: "0".to_owned(),
                    about: String::new(),
                    settings_schema: "{}".to_owned(),
                };
                Description { $($part: $value,)* ..plain }
            }

            fn configure(_: String) -> Result<(), String> {
                Ok(())
            }

            fn route(facts: Facts) -> Verdict {
                $crate::first(&facts)
            }

            fn bind_decode(_: Facts, _: Prefilled) -> Option<Row> {
                None
            }

            fn retain(_: TurnEnd) -> Retention {
                Retention::UseDefault
            }

            fn heartbeat(_: Lease) -> Renewal {
                Renewal::UseDefault
            }
        }

        #[cfg(target_arch = "wasm32")]
        ::sluice_policy_sdk::bindings::export_world!(Guest with_types_in ::sluice_policy_sdk::bindings);
    };
}
