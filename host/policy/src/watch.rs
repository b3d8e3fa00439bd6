//! Follows the policy folder and reloads it when it changes, on one thread of its own.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

use crate::clock;
use crate::folder;
use crate::host::PolicyHost;
use crate::load_error::OpenError;

/// A change counts as finished when nothing happened for this long: copies arrive in pieces.
const QUIET: Duration = Duration::from_millis(20);
/// It is looked at after this long even if it goes on: a folder that never rests must not go unread.
const SETTLE_MAX: Duration = Duration::from_millis(100);
/// How often the folder is compared with what it was: events get lost on overflow, on network file systems, and
/// when what a link leads to changes elsewhere.
pub(crate) const POLL: Duration = Duration::from_secs(1);

/// Something in the folder changed.
struct Changed;

/// Reloads the folder when it changes. Dropping it tells the thread to stop, and does not wait: a reload under way may
/// be compiling for seconds, or reading from a file system that hangs, and a host that stops must not hang with it.
pub struct Watcher {
    stop: Arc<AtomicBool>,
    signals: SyncSender<Changed>,
}

impl Watcher {
    pub(crate) fn start(host: Arc<PolicyHost>, folder: &Path, poll: Duration) -> Result<Self, OpenError> {
        let failed = |detail: String| OpenError::Watch { folder: folder.to_owned(), detail };
        // As events will name it.
        let absolute = std::path::absolute(folder).map_err(|error| failed(error.to_string()))?;
        // Room for one: a change that is already waiting to be looked at stands for all that come before.
        let (signals, received) = sync_channel(1);
        let gone = Arc::new(AtomicBool::new(false));
        let told = (signals.clone(), Arc::clone(&gone), absolute.clone());
        let events = notify::recommended_watcher(move |event: notify::Result<Event>| {
            let (signals, gone, folder) = &told;
            if event.as_ref().map_or(true, |event| is_gone(event, folder)) {
                gone.store(true, Ordering::Relaxed);
            }
            if event.map_or(true, |event| changes_content(event.kind)) {
                // Full: see above. Closed: nobody is left to tell.
                let _ = signals.try_send(Changed);
            }
        })
        .map_err(|error| failed(error.to_string()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let mut follower =
            Follower { host, folder: absolute, poll, events, watched_inode: None, gone, stop: stopped };
        follower.watch_folder().map_err(|error| failed(error.to_string()))?;
        // Not joined: see above.
        std::thread::Builder::new()
            .name("policy-watcher".to_owned())
            .spawn(move || follower.run(&received))
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { stop, signals })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread. Full: it wakes anyway. Closed: it has ended.
        let _ = self.signals.try_send(Changed);
    }
}

/// Reading files, as a reload does, is an event too; only writing is of interest.
fn changes_content(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

/// Whether the folder itself was removed or moved away: events come no more, or for a folder elsewhere.
fn is_gone(event: &Event, folder: &Path) -> bool {
    let itself = matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
    itself && event.paths.iter().any(|path| path == folder)
}

struct Follower {
    host: Arc<PolicyHost>,
    folder: PathBuf,
    poll: Duration,
    events: RecommendedWatcher,
    watched_inode: Option<u64>,
    /// Told by events: see [`is_gone`].
    gone: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Follower {
    fn run(mut self, signals: &Receiver<Changed>) {
        // Nothing is known yet: what changed between the first load and now is caught by the first look.
        let mut seen = None;
        loop {
            let signal = signals.recv_timeout(if seen.is_none() { Duration::ZERO } else { self.poll });
            if signal.is_ok() {
                settle(signals);
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            match signal {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(Changed) => {}
                Err(RecvTimeoutError::Timeout) if seen.is_some() => {
                    let changed = seen != Some(folder::fingerprint(&self.folder));
                    if !changed {
                        if self.host.wants_retry() {
                            self.host.retry();
                        }
                        continue;
                    }
                    // Perhaps no event came because the watch is on a folder that is no more; a new one costs little.
                    self.gone.store(true, Ordering::Relaxed);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            // Taken before reading, so that a change during the reading shows at the next comparison.
            seen = Some(folder::fingerprint(&self.folder));
            // The folder may be gone for a moment; then the comparison finds it when it is back.
            let _ = self.watch_folder();
            self.host.reload();
        }
    }

    /// Events come for the folder that was there when the watch began; a new one in its place needs a new watch. Its
    /// inode's number may be the old one's.
    fn watch_folder(&mut self) -> notify::Result<()> {
        let gone = self.gone.swap(false, Ordering::Relaxed);
        let watched = self.watched_inode.take().filter(|_| !gone);
        let inode = inode(&self.folder)?;
        if watched != Some(inode) {
            // It fails if there was none, or if the old folder is gone and the watch with it.
            let _ = self.events.unwatch(&self.folder);
            self.events.watch(&self.folder, RecursiveMode::NonRecursive)?;
        }
        self.watched_inode = Some(inode);
        Ok(())
    }
}

fn inode(folder: &Path) -> notify::Result<u64> {
    Ok(std::fs::metadata(folder).map_err(notify::Error::io)?.ino())
}

/// Waits until the folder is quiet, or has been busy for long enough.
fn settle(signals: &Receiver<Changed>) {
    let end = clock::monotonic() + SETTLE_MAX;
    loop {
        let left = end.saturating_sub(clock::monotonic());
        if signals.recv_timeout(QUIET.min(left)).is_err() || left.is_zero() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Only reached when the event never comes.
    const DEADLINE: Duration = Duration::from_secs(60);

    #[test]
    fn the_folders_own_end_is_told_apart_from_its_files() {
        type End = fn(&Path);
        let ends: [End; 2] = [
            |folder| fs::remove_dir_all(folder).unwrap(),
            |folder| fs::rename(folder, folder.with_extension("away")).unwrap(),
        ];
        for end in ends {
            let parent = tempfile::tempdir().unwrap();
            let folder = parent.path().join("policies");
            fs::create_dir(&folder).unwrap();
            let (sender, events) = std::sync::mpsc::channel();
            let mut watcher = notify::recommended_watcher(sender).unwrap();
            watcher.watch(&folder, RecursiveMode::NonRecursive).unwrap();
            let file = folder.join("main.wasm");
            fs::write(&file, b"text").unwrap();
            fs::rename(&file, folder.join("other.wasm")).unwrap();
            fs::remove_file(folder.join("other.wasm")).unwrap();
            fs::write(folder.join("last.wasm"), b"text").unwrap();
            let next = || events.recv_timeout(DEADLINE).expect("an event").unwrap();
            // Until the last file's end, which is an event of the folder as it was.
            loop {
                let event = next();
                assert!(!is_gone(&event, &folder), "{event:?}");
                let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
                if event.kind == written && event.paths == [folder.join("last.wasm")] {
                    break;
                }
            }
            end(&folder);
            while !is_gone(&next(), &folder) {}
        }
    }
}
