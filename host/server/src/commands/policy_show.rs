//! `sluice policy show` and `explain`: one policy in full, and why requests went where they did.

use std::fmt::Write;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::policy::{Bound, PutAside, Refusal, why_aside};
use super::{admin_client, say};
use crate::admin_policies;
use crate::cli::{PolicyExplain, PolicyShow};
use crate::decisions::Told;
use crate::text_table::{TextTable, one_line};

/// One policy, as the admin API tells it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Shown {
    name: String,
    state: String,
    is_default: bool,
    module: Option<String>,
    version: Option<String>,
    about: Option<String>,
    digest: Option<String>,
    settings_digest: Option<String>,
    changed: Option<String>,
    bytes: Option<u64>,
    generation_since: Option<u64>,
    file: String,
    refusal: Option<Refusal>,
    put_aside: Option<PutAside>,
    calls: u64,
    faults: std::collections::BTreeMap<String, u64>,
    instances: u32,
    settings: Vec<Setting>,
    bindings: Vec<Bound>,
    earlier: Vec<Earlier>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Setting {
    key: String,
    value: Option<Value>,
    is_written: bool,
    takes: String,
    about: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Earlier {
    version: String,
    digest: String,
    settings_digest: Option<String>,
    changed: String,
    since_generation: u64,
    until_generation: u64,
}

/// Shows one policy.
pub fn show(args: &PolicyShow) -> Result<ExitCode, String> {
    let name_fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.?".contains(&byte);
    if args.name.is_empty() || !args.name.bytes().all(name_fits) {
        return Err(format!("{:?} is no policy's name; `sluice policy list` names them", args.name));
    }
    let path = format!("{}{}", admin_policies::ONE, escaped(&args.name));
    let policy: Value = admin_client::get(&args.host, &path)?;
    if args.json {
        say(&policy.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let policy: Shown =
        serde_json::from_value(policy).map_err(|error| format!("cannot read the answer: {error}"))?;
    say(&sheet(&policy));
    Ok(ExitCode::SUCCESS)
}

/// Twelve digits tell files apart.
fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

fn sheet(policy: &Shown) -> String {
    let text = |text: &Option<String>| one_line(text.as_deref().unwrap_or("-"));
    let workloads: Vec<_> = policy.bindings.iter().map(|bound| bound.workload.as_str()).collect();
    let mut decides = workloads.join(", ");
    if policy.is_default {
        let others = if decides.is_empty() { "" } else { ", and " };
        decides.push_str(&format!("{others}all that no binding matches"));
    }
    let faults: Vec<_> = policy.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let or_none = |text: String| if text.is_empty() { "none".to_owned() } else { text };
    let mut table = TextTable::new(&["policy", &policy.name]);
    for (what, is) in [
        ("state", policy.state.clone()),
        ("put aside", policy.put_aside.as_ref().map_or("-".to_owned(), why_aside)),
        ("refused", policy.refusal.as_ref().map_or("-".to_owned(), |refusal| refusal.message.clone())),
        ("module", format!("{} {}", text(&policy.module), text(&policy.version))),
        ("about", text(&policy.about)),
        ("file", policy.file.clone()),
        ("digest", policy.digest.clone().unwrap_or_else(|| "-".to_owned())),
        ("size", policy.bytes.map_or("-".to_owned(), |bytes| format!("{} KB", bytes.div_ceil(1024)))),
        ("settings' digest", policy.settings_digest.clone().unwrap_or_else(|| "-".to_owned())),
        ("since", policy.generation_since.map_or("-".to_owned(), |since| format!("generation {since}"))),
        ("changed", text(&policy.changed)),
        ("decides for", or_none(decides)),
        ("calls", policy.calls.to_string()),
        ("faults", or_none(faults.join(", "))),
        ("instances", policy.instances.to_string()),
    ] {
        table.row([what.to_owned(), is]);
    }
    let mut out = table.to_string();
    if !policy.settings.is_empty() {
        let _ = write!(out, "\n\n{}", settings(policy));
    }
    if !policy.bindings.is_empty() {
        let mut table = TextTable::new(&["workload", "match"]);
        for bound in &policy.bindings {
            table.row([bound.workload.clone(), matched(&bound.r#match)]);
        }
        let _ = write!(out, "\n\n{table}");
    }
    if !policy.earlier.is_empty() {
        let mut table = TextTable::new(&["earlier version", "digest", "settings", "changed", "generations"]);
        for earlier in &policy.earlier {
            let until = earlier.until_generation.saturating_sub(1);
            let generations = format!("{} to {until}", earlier.since_generation);
            table.row([
                earlier.version.clone(),
                short(&earlier.digest).to_owned(),
                short(earlier.settings_digest.as_deref().unwrap_or("-")).to_owned(),
                earlier.changed.clone(),
                generations,
            ]);
        }
        let _ = write!(out, "\n\n{table}");
    }
    out
}

fn settings(policy: &Shown) -> TextTable<5> {
    let mut table = TextTable::new(&["setting", "value", "from", "takes", "about"]);
    for setting in &policy.settings {
        let from = match (setting.is_written, &setting.value) {
            (true, _) => "file",
            (false, Some(_)) => "default",
            (false, None) => "",
        };
        table.row([
            setting.key.clone(),
            setting.value.as_ref().map_or("-".to_owned(), Value::to_string),
            from.to_owned(),
            setting.takes.clone(),
            setting.about.clone(),
        ]);
    }
    table
}

/// The conditions that are set.
pub(super) fn matched(matches: &Value) -> String {
    let set = matches.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let each = set.map(|(key, value)| match (&value["name"], &value["value"]) {
        (Value::String(name), Value::String(value)) => format!("{key} {name}: {value}"),
        _ => format!("{key} {}", value.as_str().unwrap_or_default()),
    });
    each.collect::<Vec<_>>().join(", ")
}

#[derive(Debug, Deserialize, Serialize)]
struct Explained {
    decisions: Vec<Told>,
}

/// Explains the last decisions.
pub fn explain(args: &PolicyExplain) -> Result<ExitCode, String> {
    let mut path = format!("/admin/decisions?last={}", args.last);
    if let Some(request) = &args.request {
        let _ = write!(path, "&request={}", escaped(request));
    }
    let explained: Explained = admin_client::get(&args.host, &path)?;
    // The newest last, where a terminal shows it.
    let decisions = explained.decisions.iter().rev();
    if args.json {
        for told in decisions {
            say(&serde_json::to_string(told).map_err(|error| format!("cannot write it: {error}"))?);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if explained.decisions.is_empty() {
        let which = args.request.as_ref().map(|id| format!(" of request {id:?}")).unwrap_or_default();
        return Err(format!("no decision{which} is among the last that the host keeps"));
    }
    let headings = [
        "time",
        "request",
        "tenant",
        "model",
        "workload",
        "policy",
        "module",
        "generation",
        "decided by",
        "placement",
        "prompt",
        "cached",
        "workers",
        "reason",
    ];
    let mut table = TextTable::new(&headings);
    decisions.for_each(|told| table.row(row(told)));
    say(&table.to_string());
    Ok(ExitCode::SUCCESS)
}

fn row(told: &Told) -> [String; 14] {
    let request = told.client_request.as_ref().unwrap_or(&told.request);
    let again = if told.attempt > 0 { format!(" (attempt {})", told.attempt + 1) } else { String::new() };
    let fault = told.fault.as_ref().map(|kind| format!(" ({kind})")).unwrap_or_default();
    [
        utc(told.at_ms),
        format!("{request}{again}"),
        told.tenant.clone(),
        told.model.clone(),
        told.workload.clone(),
        told.policy.clone(),
        format!("{} {}", told.module, told.version).trim_end().to_owned(),
        told.generation.to_string(),
        format!("{}{fault}", told.source),
        placement(told),
        told.prompt_tokens.to_string(),
        told.cached_tokens.to_string(),
        told.rows.to_string(),
        told.reason.clone(),
    ]
}

fn placement(told: &Told) -> String {
    match (told.placement.as_str(), &told.prefill, &told.decode) {
        ("unified", Some(worker), _) => worker.clone(),
        (_, Some(prefill), decode) => {
            // Pull is what every pool of two roles can do: the other way is told.
            let pushed = if told.transfer.as_deref() == Some("push") { ", push" } else { "" };
            format!("{prefill} -> {}{pushed}", decode.as_deref().unwrap_or("not bound yet"))
        }
        (placement, None, _) => placement.to_owned(),
    }
}

/// A text within a path or a query.
pub(super) fn escaped(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

/// A moment as people and programs read it, to the millisecond.
fn utc(at_ms: u64) -> String {
    let (days, ms) = (at_ms / 86_400_000, at_ms % 86_400_000);
    // Counted from March of year 0, so that a leap day is a year's last day.
    let since = days + 719_468;
    let (era, day_of_era) = (since / 146_097, since % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_in_utc() {
        for (at_ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_704_067_199_000, "2023-12-31T23:59:59.000Z"),
            (1_796_007_447_123, "2026-11-30T02:57:27.123Z"),
        ] {
            assert_eq!(utc(at_ms), expected);
        }
    }

    #[test]
    fn ids_are_escaped() {
        assert_eq!(escaped("a-1_b.c~"), "a-1_b.c~");
        assert_eq!(escaped("a b&c/\u{e9}"), "a%20b%26c%2F%C3%A9");
    }

    #[test]
    fn a_policy_is_told_on_one_sheet() {
        let policy: Shown = serde_json::from_value(serde_json::json!({
            "name": "least-loaded", "state": "loaded", "is_default": true, "module": "least-loaded", "version": "0.1.0",
            "about": "Fewest requests.", "digest": "0123456789abcdef", "bytes": 2048, "generation_since": 3,
            "file": "policies.d/least-loaded.wasm", "calls": 7, "faults": {"trap": 2}, "instances": 2,
            "settings": [
                {"key": "waiting_weight", "value": 9, "is_written": true, "takes": "a whole number from 0 to 1000",
                 "about": "What one waiting request counts as."},
                {"key": "zone", "value": null, "is_written": false, "takes": "a text", "about": ""},
            ],
            "bindings": [{"workload": "batch", "policy": "least-loaded", "match": {"model": null, "tenant": "ads",
                          "header": {"name": "x-workload", "value": "batch"}, "path_prefix": null}}],
            "earlier": [{"version": "0.0.9", "digest": "fedcba9876543210", "since_generation": 1, "until_generation": 3}],
        }))
        .expect("a policy");
        let sheet = sheet(&policy);
        for part in [
            "policy            least-loaded\n",
            "decides for       batch, and all that no binding matches\n",
            "faults            trap 2\n",
            "waiting_weight  9      file  a whole number from 0 to 1000  What one waiting request counts as.",
            "batch     header x-workload: batch, tenant ads",
            "0.0.9            fedcba987654  -                  1 to 2",
        ] {
            assert!(sheet.contains(part), "{part:?} is not in\n{sheet}");
        }
    }
}
