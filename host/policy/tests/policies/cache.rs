//! Compiled policies come back at the next start, unless anybody else could have put them there.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_core::verdict::Verdict;
use sluice_policy::{CacheStatus, CacheUse, CodeFrom, HostConfig, Limits, Observer, PolicyHost};

use crate::guest::{self, Log};

/// A folder of policies with `main` in it, and a cache beside it.
struct Starts {
    folder: tempfile::TempDir,
    limits: Limits,
}

/// What one start of a host came to.
struct Started {
    host: Arc<PolicyHost>,
    log: Vec<String>,
}

impl Starts {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("policies")).unwrap();
        let starts = Self { folder, limits: guest::limits() };
        starts.put("main", &guest::text(0));
        starts
    }

    /// With a cache that holds `main`.
    fn with_one_entry() -> (Self, PathBuf) {
        let starts = Self::new();
        starts.start();
        let entry = starts.only_entry();
        (starts, entry)
    }

    fn put(&self, name: &str, wasm: &[u8]) {
        fs::write(self.folder.path().join(format!("policies/{name}.wasm")), wasm).unwrap();
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache/components")
    }

    fn entries(&self) -> Vec<PathBuf> {
        let mut entries: Vec<_> =
            fs::read_dir(self.cache()).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries
    }

    fn only_entry(&self) -> PathBuf {
        let entries = self.entries();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries[0].clone()
    }

    /// Starts a host; whatever became of the cache, its policies answer.
    fn start(&self) -> Started {
        let log = Arc::new(Log::default());
        let config = HostConfig {
            folder: self.folder.path().join("policies"),
            default: "main".to_owned(),
            limits: self.limits.clone(),
            cache_folder: Some(self.cache()),
            compiler: None,
        };
        let host = PolicyHost::open(config, Arc::clone(&log) as Arc<dyn Observer>).unwrap();
        let generation = host.generation();
        let answer = generation.default_policy().expect("main is loaded").route(&guest::facts(0));
        assert_eq!(answer, Ok(Verdict::UseDefault));
        Started { host, log: log.take() }
    }
}

impl Started {
    fn code(&self) -> CodeFrom {
        self.host.generation().default_policy().unwrap().code()
    }

    fn status(&self) -> CacheStatus {
        self.host.cache_status().unwrap()
    }

    /// Hits, misses, refused, failed.
    fn counts(&self) -> [u64; 4] {
        let status = self.status();
        [status.hits, status.misses, status.refused, status.failed]
    }

    fn uses(&self) -> Vec<&str> {
        self.log.iter().filter_map(|line| line.strip_prefix("cache ")).collect()
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_was_compiled_once_is_not_compiled_again() {
    let starts = Starts::new();
    let first = starts.start();
    assert_eq!((first.code(), first.uses()), (CodeFrom::Compiled, vec!["miss"]));
    let entry = starts.only_entry();
    assert_eq!((mode(&starts.cache()), mode(&entry)), (0o700, 0o600));
    let second = starts.start();
    assert_eq!((second.code(), second.uses()), (CodeFrom::Cached, vec!["hit"]));
    assert_eq!(second.host.status()[0].code, Some(CodeFrom::Cached));
    assert_eq!(second.status().last_trouble, None);
    assert_eq!(starts.only_entry(), entry);
}

/// A host that runs uses it as well: for a version that comes back, and for the same file with other settings.
#[test]
fn a_known_version_that_comes_back_is_not_compiled_again() {
    let starts = Starts::new();
    let started = starts.start();
    for (tag, counts) in [(1, [0, 2, 0, 0]), (0, [1, 2, 0, 0]), (1, [2, 2, 0, 0])] {
        starts.put("main", &guest::text(tag));
        assert!(started.host.reload().swapped);
        assert_eq!(started.counts(), counts);
    }
    fs::write(starts.folder.path().join("policies/main.toml"), "a = 1").unwrap();
    assert!(started.host.reload().swapped);
    assert_eq!(started.counts(), [3, 2, 0, 0]);
}

#[test]
fn what_lies_in_a_cached_policys_way_is_refused_and_mended() {
    type Spoil = fn(&Path);
    let spoils: [(&str, Spoil); 9] = [
        ("a flipped bit", |entry| {
            let mut bytes = fs::read(entry).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(entry, bytes).unwrap();
        }),
        ("cut short", |entry| {
            let bytes = fs::read(entry).unwrap();
            fs::write(entry, &bytes[..bytes.len() - 1]).unwrap();
        }),
        ("empty", |entry| fs::write(entry, b"").unwrap()),
        ("text", |entry| fs::write(entry, b"text").unwrap()),
        ("written by others", |entry| set_mode(entry, 0o622)),
        ("a link to a good one", |entry| {
            let elsewhere = entry.with_extension("elsewhere");
            fs::rename(entry, &elsewhere).unwrap();
            symlink(elsewhere, entry).unwrap();
        }),
        ("a link to nowhere", |entry| {
            fs::remove_file(entry).unwrap();
            symlink("nowhere", entry).unwrap();
        }),
        ("a pipe", |entry| {
            fs::remove_file(entry).unwrap();
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            rustix::fs::mknodat(rustix::fs::CWD, entry, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        }),
        ("too large", |entry| {
            fs::File::options().write(true).open(entry).unwrap().set_len(129 * 1024 * 1024).unwrap();
        }),
    ];
    for (what, spoil) in spoils {
        let (starts, entry) = Starts::with_one_entry();
        spoil(&entry);
        let refusing = starts.start();
        assert_eq!((refusing.code(), refusing.counts()), (CodeFrom::Compiled, [0, 0, 1, 0]), "{what}");
        let trouble = refusing.status().last_trouble.expect(what);
        assert!(trouble.contains(entry.to_str().unwrap()), "{what}: {trouble}");
        let mended = starts.start();
        assert_eq!((mended.code(), mended.counts()), (CodeFrom::Cached, [1, 0, 0, 0]), "{what}");
    }
}

/// Its header would be right for the other name only.
#[test]
fn an_entry_under_anothers_name_is_refused() {
    let (starts, entry) = Starts::with_one_entry();
    starts.put("main", &guest::text(1));
    starts.start();
    let other = starts.entries().into_iter().find(|path| *path != entry).expect("a second entry");
    fs::copy(&entry, &other).unwrap();
    let started = starts.start();
    assert_eq!((started.code(), started.counts()), (CodeFrom::Compiled, [0, 0, 1, 0]));
}

#[test]
fn a_folder_in_an_entrys_place_costs_the_cache_and_nothing_else() {
    let (starts, entry) = Starts::with_one_entry();
    fs::remove_file(&entry).unwrap();
    fs::create_dir(&entry).unwrap();
    // Refused when it is read, and cannot be written over.
    assert_eq!(starts.start().counts(), [0, 0, 1, 1]);
}

#[test]
fn a_cache_folder_that_others_may_use_is_refused() {
    for open_mode in [0o755, 0o710, 0o770, 0o707] {
        let (starts, _) = Starts::with_one_entry();
        set_mode(&starts.cache(), open_mode);
        let started = starts.start();
        assert_eq!(started.code(), CodeFrom::Compiled, "{open_mode:o}");
        assert_eq!(started.counts(), [0, 0, 2, 0], "{open_mode:o}: neither read nor written");
        let trouble = started.status().last_trouble.expect("is told");
        assert!(
            trouble.contains(&format!("mode {open_mode:o}")) && trouble.contains("chmod 700"),
            "{trouble}"
        );
    }
}

#[test]
fn a_cache_folder_that_is_none_costs_the_cache_and_nothing_else() {
    type Spoil = fn(&Path);
    let spoils: [(&str, &str, Spoil); 4] = [
        ("a link", "is a link; name the folder that it leads to in `policy.cache_dir`", |cache| {
            fs::create_dir_all(cache.with_extension("real")).unwrap();
            set_mode(&cache.with_extension("real"), 0o700);
            symlink(cache.with_extension("real"), cache).unwrap();
        }),
        ("a link to nowhere", "is a link", |cache| symlink(cache.with_extension("real"), cache).unwrap()),
        ("a file", "is not a folder", |cache| fs::write(cache, b"text").unwrap()),
        ("below a file", "is not a folder", |cache| {
            fs::remove_dir(cache.parent().unwrap()).unwrap();
            fs::write(cache.parent().unwrap(), b"text").unwrap();
        }),
    ];
    for (what, told, spoil) in spoils {
        let starts = Starts::new();
        fs::create_dir(starts.cache().parent().unwrap()).unwrap();
        spoil(&starts.cache());
        let started = starts.start();
        assert_eq!((started.code(), started.counts()), (CodeFrom::Compiled, [0, 0, 2, 0]), "{what}");
        let trouble = started.status().last_trouble.expect(what);
        assert!(trouble.contains(told), "{what}: {trouble}");
    }
}

/// Another user's folder or file, even one with the right bits. Only root can make them; who tests as another user
/// gives its own files to nobody, so it tries a folder that is root's.
#[test]
fn what_belongs_to_another_user_is_refused() {
    const NOBODY: u32 = 65_534;
    let (starts, entry) = Starts::with_one_entry();
    let own = rustix::process::geteuid();
    if !own.is_root() {
        let foreign = HostConfig {
            folder: starts.folder.path().join("policies"),
            default: "main".to_owned(),
            limits: guest::limits(),
            cache_folder: Some(PathBuf::from("/")),
            compiler: None,
        };
        let host = PolicyHost::open(foreign, Arc::new(())).unwrap();
        let trouble = host.cache_status().unwrap().last_trouble.expect("is told");
        assert!(trouble.contains("belongs to user 0"), "{trouble}");
        return;
    }
    let give = |path: &Path, user| std::os::unix::fs::chown(path, Some(user), None).unwrap();
    give(&entry, NOBODY);
    assert_eq!(starts.start().counts(), [0, 0, 1, 0]);
    assert_eq!(starts.start().counts(), [1, 0, 0, 0], "replaced by our own");
    give(&starts.cache(), NOBODY);
    let started = starts.start();
    assert_eq!(started.counts(), [0, 0, 2, 0]);
    assert!(started.status().last_trouble.expect("is told").contains("belongs to user 65534"));
}

#[test]
fn other_settings_of_the_engine_do_not_share() {
    let (mut starts, _) = Starts::with_one_entry();
    starts.limits.memory_bytes *= 2;
    assert_eq!(starts.start().counts(), [0, 1, 0, 0]);
    assert_eq!(starts.entries().len(), 2);
    starts.limits.memory_bytes /= 2;
    starts.limits.cpu_budget_ms += 1;
    assert_eq!(starts.start().counts(), [1, 0, 0, 0], "compiled code does not depend on that");
}

/// The bound on memory at the start is checked before compiling, so a cached policy must not pass below it.
#[test]
fn a_cached_policy_passes_no_check_that_it_would_fail_now() {
    let (mut starts, _) = Starts::with_one_entry();
    // The guest's two pages are 128 KiB.
    starts.limits.memory_bytes = 64 * 1024;
    let config = HostConfig {
        folder: starts.folder.path().join("policies"),
        default: "main".to_owned(),
        limits: starts.limits.clone(),
        cache_folder: Some(starts.cache()),
        compiler: None,
    };
    let host = PolicyHost::open(config, Arc::new(())).unwrap();
    let refusal = host.status()[0].refusal.clone().expect("is refused");
    assert_eq!(refusal.kind, "memory-too-large");
}

#[test]
fn what_is_refused_is_not_kept() {
    let starts = Starts::new();
    starts.put("broken", b"no wasm");
    let traps = guest::Text { route: "unreachable", ..guest::Text::default() };
    starts.put("traps", &guest::build(&traps, "0.1.0"));
    let started = starts.start();
    assert_eq!(started.host.generation().names().collect::<Vec<_>>(), ["main"]);
    starts.only_entry();
}

#[test]
fn it_stays_within_its_bounds_and_leaves_alone_what_is_not_its_own() {
    let (starts, entry) = Starts::with_one_entry();
    let lie = |name: &str, age_s: u64| {
        let path = starts.cache().join(name);
        fs::write(&path, b"text").unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        let entry_used = fs::metadata(&entry).unwrap().modified().unwrap();
        file.set_modified(entry_used - std::time::Duration::from_secs(age_s)).unwrap();
        path
    };
    let day = 24 * 60 * 60;
    let notes = lie("notes.txt", 30 * day);
    let outdated = lie("0000-0000.cwasm", 2 * day);
    let half_written = lie(".new-1-1", 2 * day);
    let others: Vec<_> = (1..=300_u64).map(|age_s| lie(&format!("others-{age_s:03}.cwasm"), age_s)).collect();
    // Written only when something is new.
    starts.start();
    assert!(outdated.exists());
    starts.put("second", &guest::text(1));
    assert_eq!(starts.start().counts(), [1, 1, 0, 0]);
    assert!(notes.exists() && !outdated.exists() && !half_written.exists());
    assert_eq!(starts.entries().len(), 256 + 1, "the bound, and the notes");
    // The two in use and the 254 youngest of the others.
    let kept: Vec<_> = others.iter().map(|path| path.exists()).collect();
    assert_eq!(kept, [vec![true; 254], vec![false; 46]].concat());
    assert_eq!(starts.start().counts(), [2, 0, 0, 0]);
}

#[test]
fn a_removed_cache_is_made_again() {
    let starts = Starts::new();
    let started = starts.start();
    fs::remove_dir_all(starts.cache()).unwrap();
    starts.put("main", &guest::text(1));
    assert!(started.host.reload().swapped);
    starts.only_entry();
    assert_eq!(started.counts(), [0, 2, 0, 0]);
}

#[test]
fn names_for_counting_are_in_their_places() {
    let why = || "why".to_owned();
    let all =
        [CacheUse::Hit, CacheUse::Miss, CacheUse::Refused { why: why() }, CacheUse::Failed { why: why() }];
    assert_eq!(all.map(|used| used.name()), sluice_policy::CACHE_USES);
}
