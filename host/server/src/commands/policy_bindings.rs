//! `sluice policy bindings`: which workload each request belongs to, in the order in which that is asked.

use std::process::ExitCode;

use serde_json::Value;
use sluice_core::workload::DEFAULT_WORKLOAD;

use super::policy::{Listing, shown_state};
use super::policy_show::matched;
use super::{admin_client, say};
use crate::cli::PolicyBindings;
use crate::config::BUILTIN;
use crate::text_table::{TextTable, one_line};

/// Shows them.
pub fn show(args: &PolicyBindings) -> Result<ExitCode, String> {
    let listing: Value = admin_client::get(&args.host, "/admin/policies")?;
    if args.json {
        say(&listing["bindings"].to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let listing: Listing =
        serde_json::from_value(listing).map_err(|error| format!("cannot read the answer: {error}"))?;
    say(&sheet(&listing));
    Ok(ExitCode::SUCCESS)
}

fn sheet(listing: &Listing) -> String {
    let bindings = &listing.bindings;
    let mut table = TextTable::new(&["order", "workload", "match", "policy", "line", "state", "why"]);
    for (place, bound) in bindings.in_force.iter().enumerate() {
        let (state, why) = decides(listing, &bound.policy);
        let note = listing.note(&bound.workload);
        table.row([
            (place + 1).to_string(),
            bound.workload.clone(),
            matched(&bound.r#match),
            bound.policy.clone(),
            bindings.lines.get(place).map(usize::to_string).unwrap_or_default(),
            state,
            [note, Some(why.as_str())]
                .into_iter()
                .flatten()
                .filter(|why| !why.is_empty())
                .collect::<Vec<_>>()
                .join("; "),
        ]);
    }
    let (state, why) = decides(listing, &listing.default);
    let others = [DEFAULT_WORKLOAD, "all others", &listing.default, ""].map(str::to_owned);
    let [workload, matched, policy, line] = others;
    let last = (bindings.in_force.len() + 1).to_string();
    table.row([last, workload, matched, policy, line, state, why]);
    let mut out = format!("generation {}, {}\n{table}", listing.generation, bindings.file);
    if let Some(refusal) = &bindings.refusal {
        out.push_str(&format!("\nrefused, these stay in force: {}", one_line(refusal)));
    }
    out
}

/// The state of a policy that is bound, and why another decides if one does.
fn decides(listing: &Listing, policy: &str) -> (String, String) {
    match listing.policies.iter().find(|listed| listed.name == policy) {
        Some(listed) => (shown_state(listed), listing.why(listed)),
        None if policy == BUILTIN => ("built-in".to_owned(), String::new()),
        None => ("missing".to_owned(), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_are_told_in_the_order_in_which_they_are_tried() {
        let condition = |model: Option<&str>, tenant: Option<&str>| serde_json::json!({"model": model, "tenant": tenant, "header": null, "path_prefix": null});
        let listing: Listing = serde_json::from_value(serde_json::json!({
            "generation": 4, "default": "adaptive",
            "policies": [
                {"name": "adaptive", "state": "loaded"},
                {"name": "adaptve", "state": "missing", "file": "policies.d/adaptve.wasm"},
            ],
            "bindings": {
                "file": "policies.d/bindings.toml", "refusal": "policies.d/bindings.toml:3: no", "lines": [2, 9, 14],
                "in_force": [
                    {"workload": "zeta", "match": condition(Some("m"), None), "policy": "adaptive"},
                    {"workload": "ads", "match": condition(None, Some("ads")), "policy": "adaptve"},
                    {"workload": "gone", "match": condition(Some("n"), None), "policy": "builtin"},
                ],
                "notes": [{"workload": "gone", "note": "nothing matches: no pool serves model \"n\""}],
            },
        }))
        .expect("a listing");
        let expected = "\
generation 4, policies.d/bindings.toml
order  workload  match       policy    line  state     why
1      zeta      model m     adaptive  2     loaded
2      ads       tenant ads  adaptve   9     missing   there is no policies.d/adaptve.wasm: the built-in default decides; did you mean \"adaptive\"?
3      gone      model n     builtin   14    built-in  nothing matches: no pool serves model \"n\"
4      default   all others  adaptive        loaded
refused, these stay in force: policies.d/bindings.toml:3: no";
        assert_eq!(sheet(&listing), expected);
    }
}
