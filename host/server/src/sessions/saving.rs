//! The snapshot's file: who may have it, when it is written, and what is done about one that cannot be used.
//!
//! It is written beside, forced to disk and renamed over the old one, so there is always a whole one. A lock keeps a second host
//! off. A hold may be used once: so what a file says of holds is gone from it before anybody is told of them. And an older file may be put
//! back by hand: so the lock's own file names the last one that was written at a host's end, until it is read. Both may be put back
//! together: so the name says when it was written, which must be when the system last saw its file changed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sluice_core::kept::saved::SavedAt;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};

use super::holds::{NoHolds, SavesHolds};
use super::moment::{Away, Moment};
use super::snapshot::{self, Contents, Refused};
use super::{Sessions, Snapshot};
use crate::app::App;
use crate::clock::{Clock, millis};

/// Who may read it: it names tenants and their conversations.
const MODE: u32 = 0o600;

/// The longest name read from the lock's file: a SHA-256 in hexadecimal, and a time.
const NAME_BYTES_AT_MOST: u64 = 128;

/// Between the time in a name and that of its file, in milliseconds: the way to the file system, whose clock may tick coarsely. No
/// host starts, uses what is kept and ends in less, to be put back.
const NAMED_WITHIN_MS: u64 = 500;

/// Why this host may not have the file.
#[derive(Debug, thiserror::Error)]
pub enum NotOurs {
    /// Another host has it.
    #[error("{} belongs to another host that runs", .0.display())]
    Taken(PathBuf),
    /// The system says so.
    #[error("{file} cannot be used: {error}", file = .0.display(), error = .1)]
    Unusable(PathBuf, io::Error),
}

impl NotOurs {
    /// What to do.
    pub fn cure(&self) -> &'static str {
        match self {
            Self::Taken(_) => "give each host a snapshot_file of its own, or stop the other one",
            Self::Unusable(..) => "name a file in a folder that this user may write to",
        }
    }
}

/// The file, this host's alone while it lives.
#[derive(Debug)]
pub struct SnapshotFile {
    path: PathBuf,
    /// Names the snapshot whose holds nobody has used since, by its checksum; or nothing.
    lock: File,
}

/// Sessions with the file that they are saved to.
#[derive(Clone)]
pub struct Place {
    /// The file.
    pub file: Arc<SnapshotFile>,
    /// Who knows what engines hold.
    pub holds: Arc<dyn SavesHolds>,
}

impl SnapshotFile {
    /// Takes the file for this host.
    pub fn take(path: &Path) -> Result<Self, NotOurs> {
        let lock = beside(path, "lock");
        let unusable = |error| NotOurs::Unusable(lock.clone(), error);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(MODE).open(&lock);
        let file = file.map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), lock: file }),
            Err(TryLockError::WouldBlock) => Err(NotOurs::Taken(path.to_owned())),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    /// What is in it; `None`: there is none yet. One that cannot be used is put aside.
    fn read(&self) -> Result<Option<Contents>, Refused> {
        // To open some kinds of files is to wait for their other side.
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Ok(status) if !status.is_file() => return Err(Refused::NoFile),
            _ => {}
        }
        let file = File::open(&self.path)?;
        let bytes = file.metadata()?.len();
        snapshot::read(file, bytes).map(Some)
    }

    /// Whether this is the file that a host has written at its end, and that nobody has read since. Only once for each.
    fn is_unused(&self, contents: &Contents) -> io::Result<bool> {
        let (mut lock, mut named) = (&self.lock, String::new());
        // Nobody can set it.
        let status = lock.metadata()?;
        let changed_ms = status.ctime().saturating_mul(1_000).saturating_add(status.ctime_nsec() / 1_000_000);
        lock.rewind()?;
        lock.take(NAME_BYTES_AT_MOST).read_to_string(&mut named)?;
        self.names("")?;
        let Some((sha256, at_ms)) = named.split_once(' ') else { return Ok(false) };
        let is_own = at_ms.parse::<i64>().is_ok_and(|at_ms| at_ms.abs_diff(changed_ms) <= NAMED_WITHIN_MS);
        Ok(contents.at == SavedAt::End && is_own && sha256 == contents.sha256)
    }

    /// From now on the lock's file has this in it.
    fn names(&self, name: &str) -> io::Result<()> {
        let mut lock = &self.lock;
        lock.set_len(0)?;
        lock.rewind()?;
        lock.write_all(name.as_bytes())?;
        lock.sync_all()
    }

    /// Where one that cannot be used is kept for people to look at.
    fn put_aside(&self) -> io::Result<PathBuf> {
        let aside = beside(&self.path, "refused");
        fs::rename(&self.path, &aside)?;
        Ok(aside)
    }

    /// Writes it anew; how many bytes it has.
    fn write(
        &self,
        sessions: &Sessions,
        holds: &dyn SavesHolds,
        at: SavedAt,
        clock: &dyn Clock,
    ) -> io::Result<u64> {
        let new = beside(&self.path, "new");
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(&new)?;
        let when = (at, Moment::now(clock.wall_ms()), millis(clock.elapsed()));
        let written = snapshot::write(sessions, holds, when, BufWriter::new(&file))?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        // The rename itself, too, has to be on disk.
        File::open(self.path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new(".")))?
            .sync_all()?;
        if at == SavedAt::End {
            self.names(&format!("{} {}", written.sha256, clock.wall_ms()))?;
        }
        Ok(written.bytes)
    }
}

/// NAME.ending
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Brings back what the file holds, before the first request. A file that cannot be used is told of, and this host starts
/// empty.
pub fn restore(app: &App, place: &Place) {
    let sessions = &app.sessions;
    let mut contents = match place.file.read() {
        Ok(Some(contents)) => contents,
        Ok(None) => return save(app, place, SavedAt::Running),
        Err(why) => return refuse(app, place, &why),
    };
    if contents.at == SavedAt::End && !place.file.is_unused(&contents).unwrap_or(false) {
        tracing::warn!(
            "{} was used before, or its .lock file is not its own: what engines held then is not used, since it may be others' by now",
            place.file.path.display()
        );
        contents.at = SavedAt::Running;
    }
    let now_ms = millis(app.clock.elapsed());
    let away = Moment::now(app.clock.wall_ms()).since(&contents.when);
    let ttl_ms = app.config.sessions.ttl_ms;
    let count = snapshot::restore(sessions, &mut contents, ttl_ms, away.ms(), now_ms);
    sessions.counted().snapshot(Snapshot::Restored);
    tracing::info!(
        sessions = count,
        away_ms = away.ms(),
        "sessions are back from {}",
        place.file.path.display()
    );
    // From here on the file says nothing of holds: they are told of once.
    let without_holds = Place { holds: Arc::new(NoHolds), ..place.clone() };
    let written = try_save(app, &without_holds, SavedAt::Running);
    match (written, away) {
        (_, _) if contents.holds.is_empty() => {}
        (true, Away::Exactly(away_ms)) => place.holds.restore(contents.at, contents.holds, away_ms, now_ms),
        (false, _) => {
            tracing::error!("what engines hold is not used: the file that says so could not be written anew")
        }
        (true, Away::About(_)) => {
            tracing::warn!("what engines hold is not used: the machine was started anew since it was saved")
        }
    }
}

fn refuse(app: &App, place: &Place, why: &Refused) {
    let file = place.file.path.display();
    app.sessions.counted().snapshot(Snapshot::Refused);
    let aside = match place.file.put_aside() {
        Ok(aside) => format!("it is kept as {}", aside.display()),
        Err(error) => format!("it could not be put aside: {error}"),
    };
    tracing::error!("sessions start empty: {file} is not used: {why}; {aside}");
    app.sessions.note(|notes| notes.refused = Some(format!("{why}; {aside}")));
    save(app, place, SavedAt::Running);
}

fn save(app: &App, place: &Place, at: SavedAt) {
    try_save(app, place, at);
}

/// Writes it; whether that went well. What went wrong is told once, until it goes well again.
fn try_save(app: &App, place: &Place, at: SavedAt) -> bool {
    const WARNING: &str = "sessions snapshot";
    let (sessions, clock) = (&app.sessions, &*app.clock);
    match place.file.write(sessions, &*place.holds, at, clock) {
        Ok(bytes) => {
            sessions.counted().snapshot(Snapshot::Written);
            sessions.counted().snapshot_bytes(bytes);
            app.telemetry.forget(WARNING);
            let at_ms = millis(clock.elapsed());
            sessions.note(|notes| (notes.written, notes.failed) = (Some((at_ms, bytes)), None));
            true
        }
        Err(error) => {
            sessions.counted().snapshot(Snapshot::Failed);
            let file = place.file.path.display();
            app.telemetry.warn_once(WARNING, || format!("sessions cannot be saved to {file}: {error}"));
            sessions.note(|notes| notes.failed = Some(error.to_string()));
            false
        }
    }
}

/// Saves at intervals, until told that the end has come.
pub struct Saver {
    end: oneshot::Sender<()>,
    task: JoinSet<()>,
}

impl Saver {
    /// From now on.
    pub fn start(app: &Arc<App>, place: Place) -> Self {
        let (end, mut ended) = oneshot::channel();
        let app = app.clone();
        let interval = Duration::from_millis(app.config.sessions.snapshot_interval_ms);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let at = tokio::select! {
                    () = tokio::time::sleep(interval) => SavedAt::Running,
                    _ = &mut ended => SavedAt::End,
                };
                let (app, place) = (app.clone(), place.clone());
                if let Err(error) = spawn_blocking(move || save(&app, &place, at)).await {
                    tracing::error!("sessions were not saved: {error}");
                }
                if at == SavedAt::End {
                    return;
                }
            }
        });
        Self { end, task }
    }

    /// Saves a last time, when nothing is taken any more.
    pub async fn finish(mut self) {
        let _ = self.end.send(());
        while self.task.join_next().await.is_some() {}
    }
}
