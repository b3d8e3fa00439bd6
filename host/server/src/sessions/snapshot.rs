//! Sessions as a file: one JSON value a line, so that it is written and read piece by piece.
//!
//! The first line says what it is, of which version, and when it was written; the last is the SHA-256 of all before it. Times
//! are ages: a clock that does not step begins anew with each process. Nothing of a file is believed before its checksum is right.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use sluice_core::history::Digest;
use sluice_core::history::scope::{Conversation, ConversationKey, Scope};
use sluice_core::kept::saved::SavedAt;
use sluice_core::session::{Gaps, Session};

use super::moment::Moment;
use super::store::Walk;
use super::{Sessions, holds::SavesHolds};

/// What this host writes, and all that it reads.
pub const VERSION: u32 = 1;

/// The largest file read, in bytes: room for the most sessions that can be configured.
pub const SNAPSHOT_BYTES_AT_MOST: u64 = 16 << 30;

/// The longest line read, in bytes: a hold's proof has a digest for each of its blocks.
const LINE_BYTES_AT_MOST: u64 = 16 << 20;

/// Sessions copied out of the store at a time.
const BATCH: usize = 1_024;

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The system says so.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// A folder, a pipe.
    #[error("it is no regular file")]
    NoFile,
    /// Over [`SNAPSHOT_BYTES_AT_MOST`].
    #[error("it has {0} bytes, more than the {SNAPSHOT_BYTES_AT_MOST} that are read")]
    TooLarge(u64),
    /// Without a byte.
    #[error("it is empty")]
    Empty,
    /// Its first line is not a header.
    #[error("it does not begin as a snapshot of sessions does")]
    NoSnapshot,
    /// Of a later or older host.
    #[error("it is of version {0}, and this host reads version {VERSION}")]
    Version(u32),
    /// The last line is missing.
    #[error("it ends before its checksum: it was cut off")]
    CutOff,
    /// The last line is not that of the others.
    #[error("its checksum is not that of its bytes: they were changed")]
    Checksum,
    /// A line cannot be understood.
    #[error("line {line} cannot be understood: {why}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    sluice_sessions: u32,
    at: SavedAt,
    when: Moment,
}

/// Of a later version the rest may be otherwise.
#[derive(Debug, Deserialize)]
struct AnyHeader {
    sluice_sessions: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    /// Sessions say which of these they are of, by its place.
    Scope(Arc<Scope>),
    Session(Saved),
    Line(Digest, Vec<Digest>),
    Workload(String, Gaps),
    Hold(Value),
}

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    scope: usize,
    conversation: Conversation,
    idle_ms: u64,
    /// Its end is [`Self::idle_ms`] ago.
    session: Session,
}

#[derive(Debug, Serialize, Deserialize)]
struct Footer {
    sha256: String,
}

/// A file as it was written.
#[derive(Debug)]
pub struct Written {
    /// How long it is.
    pub bytes: u64,
    /// Of all but its last line, in hexadecimal: no other file has it.
    pub sha256: String,
}

/// What was in a file.
#[derive(Debug)]
pub struct Contents {
    /// See [`Written::sha256`].
    pub sha256: String,
    /// Whether the host went on after it.
    pub at: SavedAt,
    /// When it was written.
    pub when: Moment,
    /// The longest idle first, each with its idle time in milliseconds.
    pub sessions: Vec<(ConversationKey, u64, Session)>,
    /// See [`super::SessionStore::lines`].
    pub lines: Vec<(Digest, Vec<Digest>)>,
    /// By name.
    pub workloads: Vec<(String, Gaps)>,
    /// See [`SavesHolds`].
    pub holds: Vec<Value>,
}

/// Writes all that is known.
pub fn write(
    sessions: &Sessions,
    holds: &dyn SavesHolds,
    (at, when, now_ms): (SavedAt, Moment, u64),
    out: impl Write,
) -> io::Result<Written> {
    let mut lines = Lines { out, hasher: Sha256::new(), bytes: 0 };
    lines.put(&Header { sluice_sessions: VERSION, at, when })?;
    for (name, gaps) in sessions.workloads() {
        lines.put(&Record::Workload(name, gaps))?;
    }
    let mut scopes = HashMap::new();
    let mut walk = Walk::oldest_first();
    loop {
        let batch = sessions.batch(&mut walk, BATCH);
        if batch.is_empty() {
            break;
        }
        for (ConversationKey { scope, conversation }, session) in batch {
            let next = scopes.len();
            let number = *scopes.entry(scope.clone()).or_insert(next);
            if number == next {
                lines.put(&Record::Scope(scope))?;
            }
            let idle_ms = now_ms.saturating_sub(session.ended_at_ms);
            let session = Session { ended_at_ms: 0, ..session };
            lines.put(&Record::Session(Saved { scope: number, conversation, idle_ms, session }))?;
        }
    }
    for (line, marks) in sessions.lines() {
        lines.put(&Record::Line(line, marks))?;
    }
    for hold in holds.save(at, now_ms) {
        lines.put(&Record::Hold(hold))?;
    }
    let sha256 = hex(lines.hasher.clone());
    lines.put(&Footer { sha256: sha256.clone() })?;
    lines.out.flush()?;
    Ok(Written { bytes: lines.bytes, sha256 })
}

struct Lines<W> {
    out: W,
    hasher: Sha256,
    bytes: u64,
}

impl<W: Write> Lines<W> {
    fn put(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.hasher.update(&line);
        self.bytes += line.len() as u64;
        self.out.write_all(&line)
    }
}

fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a file of so many bytes, twice: for its checksum, and for what is in it.
pub fn read(mut file: impl Read + Seek, bytes: u64) -> Result<Contents, Refused> {
    if bytes > SNAPSHOT_BYTES_AT_MOST {
        return Err(Refused::TooLarge(bytes));
    }
    let verified = verify(BufReader::new(&mut file))?;
    file.rewind()?;
    take(BufReader::new(&mut file), verified)
}

/// How many lines stand before the checksum, if it is right, and that.
fn verify(mut file: impl BufRead) -> Result<(usize, String), Refused> {
    let (mut line, mut hasher, mut number) = (Vec::new(), Sha256::new(), 0);
    let mut footer = None;
    while next(&mut file, &mut line)? {
        if number == 0 {
            let header: AnyHeader = serde_json::from_slice(&line).map_err(|_| Refused::NoSnapshot)?;
            if header.sluice_sessions != VERSION {
                return Err(Refused::Version(header.sluice_sessions));
            }
        }
        if footer.is_some() {
            // Nothing comes after it.
            return Err(Refused::Checksum);
        }
        footer = serde_json::from_slice::<Footer>(&line).ok();
        if footer.is_none() {
            hasher.update(&line);
            number += 1;
        }
    }
    match footer {
        None if number == 0 => Err(Refused::Empty),
        None => Err(Refused::CutOff),
        Some(footer) if footer.sha256 == hex(hasher) => Ok((number, footer.sha256)),
        Some(_) => Err(Refused::Checksum),
    }
}

/// The next line, whole. A longer one than any that is written is not read on.
fn next(file: &mut impl BufRead, line: &mut Vec<u8>) -> Result<bool, Refused> {
    line.clear();
    file.take(LINE_BYTES_AT_MOST).read_until(b'\n', line)?;
    match line.last() {
        None => Ok(false),
        Some(b'\n') => Ok(true),
        Some(_) => Err(Refused::CutOff),
    }
}

fn take(mut file: impl BufRead, (lines, sha256): (usize, String)) -> Result<Contents, Refused> {
    let mut line = Vec::new();
    next(&mut file, &mut line)?;
    let header: Header = understood(&line, 1)?;
    let mut contents = Contents {
        sha256,
        at: header.at,
        when: header.when,
        sessions: Vec::new(),
        lines: Vec::new(),
        workloads: Vec::new(),
        holds: Vec::new(),
    };
    let mut scopes: Vec<Arc<Scope>> = Vec::new();
    for number in 2..=lines {
        next(&mut file, &mut line)?;
        match understood(&line, number)? {
            Record::Scope(scope) => scopes.push(scope),
            Record::Session(Saved { scope, conversation, idle_ms, mut session }) => {
                let scope = scopes.get(scope).cloned();
                let scope = scope.ok_or_else(|| Refused::Line {
                    line: number,
                    why: "it is of a scope that is not there".to_owned(),
                })?;
                if !session.gaps.are_sound() {
                    session.gaps = Gaps::default();
                }
                contents.sessions.push((ConversationKey { scope, conversation }, idle_ms, session));
            }
            Record::Line(line, marks) => contents.lines.push((line, marks)),
            Record::Workload(name, gaps) if gaps.are_sound() => contents.workloads.push((name, gaps)),
            Record::Workload(..) => {}
            Record::Hold(hold) => contents.holds.push(hold),
        }
    }
    Ok(contents)
}

fn understood<T: for<'a> Deserialize<'a>>(text: &[u8], line: usize) -> Result<T, Refused> {
    serde_json::from_slice(text).map_err(|error| Refused::Line { line, why: error.to_string() })
}

/// Puts sessions back that were saved so long ago, less those that have expired since. How many.
pub fn restore(
    sessions: &Sessions,
    contents: &mut Contents,
    ttl_ms: u64,
    away_ms: u64,
    now_ms: u64,
) -> usize {
    let saved = std::mem::take(&mut contents.sessions);
    let live: Vec<_> = saved
        .into_iter()
        .filter_map(|(key, idle_ms, mut session)| {
            let idle_ms = idle_ms.saturating_add(away_ms);
            session.ended_at_ms = now_ms.saturating_sub(idle_ms);
            let scope = sessions.scope(Scope::clone(&key.scope));
            (idle_ms < ttl_ms).then_some((ConversationKey { scope, ..key }, session))
        })
        .collect();
    let derived: HashSet<Digest> = live
        .iter()
        .filter_map(|(key, _)| match &key.conversation {
            Conversation::Derived(line) => Some(*line),
            Conversation::Named(_) => None,
        })
        .collect();
    contents.lines.retain(|(line, _)| derived.contains(line));
    let count = live.len();
    sessions.restore(live, &contents.lines, std::mem::take(&mut contents.workloads));
    count
}
