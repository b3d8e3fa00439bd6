//! The policy folder: what lies in it, and whether it may be trusted.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::{OFlags, StatVfs, StatVfsMountFlags};
use sha2::{Digest, Sha256};

use crate::component_file::{HEAD_BYTES, check_magic};
use crate::limits::{FILE_BYTES_MAX, NAME_BYTES_MAX, POLICIES_MAX, SETTINGS_BYTES_MAX};
use crate::lines::Lines;
use crate::load_error::{LoadError, OpenError, Refusal};
use crate::workload_file::BINDINGS;

/// Everybody may write.
const WORLD_WRITE: u32 = 0o002;

/// A policy's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Fit for labels and logs, also where no policy may be called so.
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    pub(crate) settings_file: PathBuf,
    pub(crate) modified_ms: Option<u64>,
}

/// Settings that no policy has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SettingsOnly {
    /// As [`Found::name`].
    pub(crate) name: String,
    pub(crate) file: PathBuf,
}

impl SettingsOnly {
    pub(crate) fn refusal(&self) -> LoadError {
        LoadError { file: self.file.clone(), reason: Refusal::SettingsOnly }
    }
}

/// What lies in a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) policies: Vec<Found>,
    pub(crate) settings_only: Vec<SettingsOnly>,
}

/// What a policy's files hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) wasm: Vec<u8>,
    pub(crate) settings: Option<String>,
    /// SHA-256 of the policy's file.
    pub(crate) digest: String,
    /// SHA-256 of its settings' file, if there is one.
    pub(crate) settings_digest: Option<String>,
    /// Of both: the same key means there is nothing to load again.
    pub(crate) key: String,
}

impl Contents {
    pub(crate) fn new(wasm: Vec<u8>, settings: Option<String>) -> Self {
        let digest = hex(&Sha256::digest(&wasm));
        let settings_digest = settings.as_ref().map(|text| hex(&Sha256::digest(text)));
        let key = match &settings_digest {
            Some(settings) => format!("{digest}+{settings}"),
            None => digest.clone(),
        };
        Self { wasm, settings, digest, settings_digest, key }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What changes when a file changes: name, inode, length, and the times of content and inode.
pub(crate) type Fingerprint = (PathBuf, u64, u64, (i64, i64), (i64, i64));

/// A cheap summary of the folder; a different one means it is worth reading the files.
pub(crate) fn fingerprint(folder: &Path) -> Option<Vec<Fingerprint>> {
    let of = |path: PathBuf| {
        let data = fs::metadata(&path).ok()?;
        let (changed, modified) = ((data.ctime(), data.ctime_nsec()), (data.mtime(), data.mtime_nsec()));
        Some((path, data.ino(), data.len(), modified, changed))
    };
    let mut prints: Vec<_> = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_policy_file(path) || path.extension().is_some_and(|extension| extension == TOML))
        .filter_map(of)
        .collect();
    prints.extend(of(folder.to_owned()));
    prints.sort();
    Some(prints)
}

/// What configurations call the host's own policy, which has no file.
pub(crate) const BUILTIN: &str = "builtin";

/// What settings' files end in.
const TOML: &str = "toml";

/// The files of a folder, in the order of their names. Fails if the folder is not there or not to be trusted.
pub(crate) fn scan(folder: &Path) -> Result<Files, OpenError> {
    let unreadable =
        |error: std::io::Error| OpenError::Folder { folder: folder.to_owned(), detail: error.to_string() };
    let data = fs::metadata(folder).map_err(unreadable)?;
    check_mode(folder, &data)?;
    let (mut policies, mut settings) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if let Some(name) = policy_name(&path) {
            let settings_file = path.with_extension("toml");
            let modified_ms = modified_ms(&path).max(modified_ms(&settings_file));
            policies.push(Found { name, file: path, settings_file, modified_ms });
        } else if is_file_with(&path, TOML) && stem(&path) != BINDINGS {
            settings.push(path);
        }
    }
    policies.sort_by(|a, b| a.name.cmp(&b.name));
    let settings_only = settings_only(settings, &policies);
    Ok(Files { policies, settings_only })
}

/// No more than there may be policies: a folder full of other things is not listed whole.
fn settings_only(mut settings: Vec<PathBuf>, policies: &[Found]) -> Vec<SettingsOnly> {
    let theirs: BTreeSet<_> = policies.iter().map(|found| &found.settings_file).collect();
    settings.retain(|file| !theirs.contains(file));
    settings.sort();
    settings.truncate(POLICIES_MAX);
    settings.into_iter().map(|file| SettingsOnly { name: shown_name(&stem(&file)), file }).collect()
}

/// Whether a host could start with this folder: it is there, can be read, and only whom the host trusts may write it.
pub fn check_folder(folder: &Path) -> Result<(), OpenError> {
    scan(folder).map(drop)
}

fn check_mode(folder: &Path, data: &Metadata) -> Result<(), OpenError> {
    if !data.is_dir() {
        return Err(OpenError::Folder { folder: folder.to_owned(), detail: "is not a folder".to_owned() });
    }
    let mode = data.mode() & 0o7777;
    if everybody_writes(mode, || rustix::fs::statvfs(folder)) {
        return Err(OpenError::WorldWritable { folder: folder.to_owned(), mode });
    }
    Ok(())
}

/// Whether anybody on the machine may write. The group may: who is in it is the operator's say. On what is mounted
/// to be read only the bits say nothing: Kubernetes mounts ConfigMaps so, with all of them set.
fn everybody_writes(mode: u32, mount: impl FnOnce() -> rustix::io::Result<StatVfs>) -> bool {
    let read_only = || mount().is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY));
    mode & WORLD_WRITE != 0 && !read_only()
}

/// Hidden files are half-written copies of editors and tools, or the folders behind swapped links.
fn is_file_with(path: &Path, extension: &str) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    !hidden && path.extension().is_some_and(|found| found == extension)
}

fn is_policy_file(path: &Path) -> bool {
    is_file_with(path, "wasm")
}

fn policy_name(path: &Path) -> Option<String> {
    is_policy_file(path).then(|| shown_name(&stem(path)))
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

/// The name itself, or a short one that is like it and that no policy can have: it must not pass for another's.
fn shown_name(name: &str) -> String {
    const UNFIT: char = '?';
    if is_name(name) {
        return name.to_owned();
    }
    let fit = |character: char| u8::try_from(character).is_ok_and(fits_name);
    let clean = |character| if fit(character) { character } else { UNFIT };
    let mut shown: String = name.chars().map(clean).take(NAME_BYTES_MAX - 1).collect();
    if !shown.contains(UNFIT) {
        shown.push(UNFIT);
    }
    shown
}

/// Refuses a file whose name no policy may have.
pub(crate) fn check_name(path: &Path) -> Result<(), Refusal> {
    match stem(path) {
        name if name == BINDINGS || name == BUILTIN => Err(Refusal::ReservedName),
        name if is_name(&name) => Ok(()),
        _ => Err(Refusal::BadName),
    }
}

fn modified_ms(path: &Path) -> Option<u64> {
    let modified = fs::metadata(path).ok()?.modified().ok()?;
    let since = modified.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

/// Reads a policy's files.
pub(crate) fn read(found: &Found) -> Result<Contents, LoadError> {
    let refused = |file: &Path| {
        let file = file.to_owned();
        move |reason| LoadError { file, reason }
    };
    check_name(&found.file).map_err(refused(&found.file))?;
    let wasm = read_policy(&found.file).map_err(refused(&found.file))?;
    let settings = read_settings(&found.settings_file).map_err(refused(&found.settings_file))?;
    Ok(Contents::new(wasm, settings))
}

pub(crate) fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits_name)
}

fn fits_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// Reads a policy file, if it is not too large. Of what is no WASM only the first bytes are read.
pub(crate) fn read_policy(path: &Path) -> Result<Vec<u8>, Refusal> {
    let begins_as_wasm = |head: &[u8]| match check_magic(head) {
        Err(refusal @ Refusal::NotWasm { .. }) => Err(refusal),
        // What ends too early is short, and still arriving: its digest tells the next piece from it.
        _ => Ok(()),
    };
    read_bounded(path, FILE_BYTES_MAX, |bytes| Refusal::TooLarge { bytes }, begins_as_wasm)
}

/// Settings of a policy file, as the host takes them: TOML text of NAME.toml beside NAME.wasm, or `None` when there is
/// no such file.
pub fn settings_beside(policy: &Path) -> Result<Option<String>, LoadError> {
    let file = policy.with_extension("toml");
    read_settings(&file).map_err(|reason| LoadError { file, reason })
}

pub(crate) fn read_settings(path: &Path) -> Result<Option<String>, Refusal> {
    // Only what is not there at all means "no settings". A link to nowhere, or a file that may not be looked at,
    // was meant to be some, and a policy must not run without them unnoticed.
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Ok(None);
    }
    let bytes =
        read_bounded(path, SETTINGS_BYTES_MAX, |bytes| Refusal::SettingsTooLarge { bytes }, |_| Ok(()))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = Lines::of(error.as_bytes()).line(error.utf8_error().valid_up_to());
        Refusal::SettingsSyntax { line, detail: "is not UTF-8 text".to_owned() }
    })?;
    Ok(Some(text))
}

/// `begins_well` is asked of the first [`HEAD_BYTES`], or of all there are, before the rest is read.
fn read_bounded(
    path: &Path,
    bytes_max: u64,
    too_large: impl Fn(u64) -> Refusal,
    begins_well: impl FnOnce(&[u8]) -> Result<(), Refusal>,
) -> Result<Vec<u8>, Refusal> {
    let unreadable = |error: std::io::Error| Refusal::Unreadable(error.to_string());
    // Asked before opening, since opening a device may do something; and again after it, since the name may lead
    // somewhere else by then.
    check_regular(&fs::metadata(path).map_err(unreadable)?)?;
    let (file, data) = open_regular(path)?;
    if data.len() > bytes_max {
        return Err(too_large(data.len()));
    }
    let mut bytes = Vec::new();
    (&file).take(HEAD_BYTES as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    begins_well(&bytes)?;
    // One byte more than allowed, for a file that grows while it is read.
    let left = bytes_max.saturating_add(1).saturating_sub(bytes.len() as u64);
    file.take(left).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > bytes_max { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

/// Opens a file that can be read to its end without waiting for anybody.
fn open_regular(path: &Path) -> Result<(File, Metadata), Refusal> {
    let unreadable = |error: std::io::Error| Refusal::Unreadable(error.to_string());
    // Non-blocking: opening a pipe would wait for somebody to write to it.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(unreadable)?;
    let data = file.metadata().map_err(unreadable)?;
    check_regular(&data)?;
    let mode = data.mode() & 0o7777;
    if everybody_writes(mode, || rustix::fs::fstatvfs(&file)) {
        return Err(Refusal::WorldWritable { mode });
    }
    Ok((file, data))
}

fn check_regular(data: &Metadata) -> Result<(), Refusal> {
    if data.is_file() { Ok(()) } else { Err(Refusal::Unreadable("it is not a regular file".to_owned())) }
}

#[cfg(test)]
mod tests;
