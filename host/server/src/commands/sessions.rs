//! `sluice sessions`: the conversations that a running host remembers.

use std::fmt::Write;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::Value;

use super::policy_show::escaped;
use super::{admin_client, complain, say};
use crate::admin_sessions::{ALL, ONE};
use crate::cli::{Sessions, SessionsDrop, SessionsList, SessionsShow, WhichSessions};
use crate::text_table::{TextTable, one_line};

#[derive(Debug, Deserialize)]
struct Listing {
    sessions: usize,
    max_sessions: usize,
    bytes: usize,
    max_bytes: usize,
    kept_turns: usize,
    held_tokens: u64,
    lookups: Lookups,
    snapshot: Option<Snapshot>,
    listed: Vec<Session>,
    all_listed: bool,
}

#[derive(Debug, Deserialize)]
struct Lookups {
    hit: u64,
    miss: u64,
}

#[derive(Debug, Deserialize)]
struct Snapshot {
    file: String,
    written_ms_ago: Option<u64>,
    bytes: Option<u64>,
    failed: Option<String>,
    refused: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Session {
    id: String,
    derived: bool,
    tenant: String,
    model: String,
    endpoint: String,
    turns: u32,
    holder: Option<String>,
    last_prefill: Option<String>,
    prompt_tokens: u32,
    output_tokens: u32,
    idle_ms: u64,
    expires_in_ms: u64,
    gaps: Gaps,
    held: Option<Held>,
}

#[derive(Debug, Deserialize)]
struct Gaps {
    count: u32,
    last_ms: u32,
    mean_ms: f64,
    spread_ms: f64,
}

#[derive(Debug, Deserialize)]
struct Held {
    by: Option<String>,
    tokens: u32,
    expires_in_ms: u64,
}

#[derive(Debug, Deserialize)]
struct Found {
    listed: Vec<Session>,
}

#[derive(Debug, Deserialize)]
struct Dropped {
    dropped: usize,
    all_dropped: bool,
}

/// Runs one of them.
pub fn run(command: Sessions) -> ExitCode {
    let done = match command {
        Sessions::List(args) => list(&args),
        Sessions::Show(args) => show(&args),
        Sessions::Drop(args) => forget(&args),
    };
    match done {
        Ok(text) => {
            say(&text);
            ExitCode::SUCCESS
        }
        Err(message) => {
            complain(&message);
            ExitCode::FAILURE
        }
    }
}

fn list(args: &SessionsList) -> Result<String, String> {
    let mut path = ALL.to_owned();
    let _ = write!(path, "?limit={}", args.limit);
    path.push_str(&which(&args.which, '&'));
    let listing: Value = admin_client::get(&args.host, &path)?;
    if args.json {
        return Ok(listing.to_string());
    }
    serde_json::from_value(listing).map(|listing| sheet(&listing)).map_err(unreadable)
}

fn show(args: &SessionsShow) -> Result<String, String> {
    let path = format!("{ONE}{}{}", escaped(&args.id), which(&args.tenant(), '?'));
    let found: Value = admin_client::get(&args.host, &path)?;
    if args.json {
        return Ok(found.to_string());
    }
    let found: Found = serde_json::from_value(found).map_err(unreadable)?;
    let each: Vec<_> = found.listed.iter().map(in_full).collect();
    Ok(each.join("\n\n"))
}

fn forget(args: &SessionsDrop) -> Result<String, String> {
    let path = match &args.id {
        Some(id) => format!("{ONE}{}{}", escaped(id), which(&args.which, '?')),
        None => format!("{ALL}{}", which(&args.which, '?')),
    };
    let Dropped { dropped, all_dropped } = admin_client::delete(&args.host, &path)?;
    let more = if all_dropped { "" } else { "; there may be more: ask again" };
    Ok(format!("{dropped} dropped{more}"))
}

fn unreadable(error: serde_json::Error) -> String {
    format!("cannot read the answer: {error}")
}

/// As a query that begins with this character.
fn which(which: &WhichSessions, first: char) -> String {
    let (mut query, mut next) = (String::new(), first);
    for (name, value) in [("holder", &which.holder), ("tenant", &which.tenant)] {
        if let Some(value) = value {
            let _ = write!(query, "{next}{name}={}", escaped(value));
            next = '&';
        }
    }
    query
}

fn sheet(listing: &Listing) -> String {
    let Listing { sessions, max_sessions, bytes, max_bytes, kept_turns, held_tokens, lookups, .. } = listing;
    let mut out = format!(
        "{sessions} of {max_sessions} sessions, {} of {}; {kept_turns} kept turns hold {held_tokens} tokens; {} of {} \
         look-ups found one",
        mib(*bytes as u64),
        mib(*max_bytes as u64),
        lookups.hit,
        lookups.hit + lookups.miss,
    );
    if let Some(snapshot) = &listing.snapshot {
        let _ = write!(out, "\n{}", saved(snapshot));
    }
    let mut table = TextTable::new(&[
        "session",
        "tenant",
        "model",
        "turns",
        "holder",
        "tokens",
        "held",
        "idle",
        "expires in",
        "mean gap",
    ]);
    for session in &listing.listed {
        table.row([
            name(session),
            session.tenant.clone(),
            session.model.clone(),
            session.turns.to_string(),
            session.holder.clone().unwrap_or_else(|| "-".to_owned()),
            (u64::from(session.prompt_tokens) + u64::from(session.output_tokens)).to_string(),
            session.held.as_ref().map_or("-".to_owned(), |held| held.tokens.to_string()),
            seconds(session.idle_ms),
            seconds(session.expires_in_ms),
            if session.gaps.count == 0 { "-".to_owned() } else { seconds(session.gaps.mean_ms as u64) },
        ]);
    }
    let _ = write!(out, "\n{table}");
    if !listing.all_listed {
        out.push_str("\nthere may be more: --limit lists more, --holder and --tenant look for some");
    }
    out
}

/// Names of lines are digests; so are some that clients give.
fn name(session: &Session) -> String {
    let Session { id, derived, .. } = session;
    if *derived { format!("{id} (derived)") } else { id.clone() }
}

fn saved(snapshot: &Snapshot) -> String {
    let mut out = format!("saved to {}: ", one_line(&snapshot.file));
    let _ = match (snapshot.written_ms_ago, snapshot.bytes) {
        (Some(ago), Some(bytes)) => write!(out, "{} ago, {bytes} bytes", seconds(ago)),
        _ => write!(out, "not yet"),
    };
    if let Some(failed) = &snapshot.failed {
        let _ = write!(out, "; not since: {}", one_line(failed));
    }
    if let Some(refused) = &snapshot.refused {
        let _ = write!(out, "; the one at the start was refused: {}", one_line(refused));
    }
    out
}

fn in_full(session: &Session) -> String {
    let unnamed = || "-".to_owned();
    let gaps = &session.gaps;
    let gaps = match gaps.count {
        0 => unnamed(),
        count => format!(
            "{count}: mean {}, spread {}, last {}",
            seconds(gaps.mean_ms as u64),
            seconds(gaps.spread_ms as u64),
            seconds(gaps.last_ms.into())
        ),
    };
    let held = session.held.as_ref().map_or_else(unnamed, |held| {
        let by = held.by.clone().unwrap_or_else(unnamed);
        format!("{} tokens by {by} for {} more", held.tokens, seconds(held.expires_in_ms))
    });
    let mut table = TextTable::new(&["session", &name(session)]);
    for (what, told) in [
        ("tenant", session.tenant.clone()),
        ("model", session.model.clone()),
        ("endpoint", session.endpoint.clone()),
        ("turns", session.turns.to_string()),
        ("decoded last by", session.holder.clone().unwrap_or_else(unnamed)),
        ("prefilled last by", session.last_prefill.clone().unwrap_or_else(unnamed)),
        (
            "last turn",
            format!("{} prompt and {} output tokens", session.prompt_tokens, session.output_tokens),
        ),
        ("idle", seconds(session.idle_ms)),
        ("expires in", seconds(session.expires_in_ms)),
        ("gaps", gaps),
        ("held", held),
    ] {
        table.row([what.to_owned(), told]);
    }
    table.to_string()
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Value {
        serde_json::json!({
            "id": "c-1", "derived": false, "tenant": "search", "model": "m", "endpoint": "/v1/completions", "turns": 3,
            "holder": "main/decode-0", "last_prefill": null, "prompt_tokens": 900, "output_tokens": 100,
            "idle_ms": 1_250, "expires_in_ms": 60_000, "held": {"by": "main/decode-0", "tokens": 999, "expires_in_ms": 5_000},
            "gaps": {"count": 2, "last_ms": 900, "mean_ms": 1_500.0, "spread_ms": 120.0},
        })
    }

    #[test]
    fn sessions_line_up() {
        let derived = {
            let mut session = session();
            session["derived"] = true.into();
            session["id"] = "00ff".into();
            session["held"] = Value::Null;
            session["gaps"]["count"] = 0.into();
            session
        };
        let listing = serde_json::json!({
            "sessions": 2, "max_sessions": 100, "bytes": 1 << 20, "max_bytes": 4 << 20, "kept_turns": 1, "held_tokens": 999,
            "lookups": {"hit": 4, "miss": 2}, "all_listed": false, "listed": [session(), derived],
            "snapshot": {"file": "/s", "written_ms_ago": 500, "bytes": 77, "failed": "disk full", "refused": null},
        });
        assert_eq!(
            sheet(&serde_json::from_value(listing).expect("a listing")),
            "2 of 100 sessions, 1.0 MiB of 4.0 MiB; 1 kept turns hold 999 tokens; 4 of 6 look-ups found one\n\
             saved to /s: 0.5 s ago, 77 bytes; not since: disk full\n\
             session         tenant  model  turns  holder         tokens  held  idle   expires in  mean gap\n\
             c-1             search  m      3      main/decode-0  1000    999   1.2 s  60.0 s      1.5 s\n\
             00ff (derived)  search  m      3      main/decode-0  1000    -     1.2 s  60.0 s      -\n\
             there may be more: --limit lists more, --holder and --tenant look for some"
        );
    }

    #[test]
    fn one_is_told_in_full() {
        let text = in_full(&serde_json::from_value(session()).expect("a session"));
        for part in
            ["c-1", "2: mean 1.5 s, spread 0.1 s, last 0.9 s", "999 tokens by main/decode-0 for 5.0 s more"]
        {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn queries_are_escaped() {
        let some = |holder: Option<&str>, tenant: Option<&str>| WhichSessions {
            holder: holder.map(str::to_owned),
            tenant: tenant.map(str::to_owned),
        };
        assert_eq!(which(&some(None, None), '?'), "");
        assert_eq!(which(&some(Some("main/d"), Some("a&b")), '?'), "?holder=main%2Fd&tenant=a%26b");
    }
}
