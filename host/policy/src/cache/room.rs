//! Which entries of the cache go, so that it stays within its bounds. Pure: it is told what lies there and the time.

/// Most entries: four versions of every policy that a folder may hold.
pub(super) const ENTRIES_MAX: usize = 4 * crate::limits::POLICIES_MAX;
/// Bytes of all entries. Compiled Rust policies have some 100 KiB each; runtimes of other languages tens of MiB.
pub(super) const BYTES_MAX: u64 = 512 * 1024 * 1024;
/// What other versions of the host compiled goes when nobody used it for so long: a version that is rolled back
/// within a day still finds its own, and two that share a folder do not clear each other's. So does what a host
/// that crashed left half-written.
pub(super) const OTHERS_KEPT_S: i64 = 24 * 60 * 60;

/// What lies in the cache's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lying {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Last use, seconds since the Unix epoch.
    pub(super) used_s: i64,
    /// Compiled by this host's version with its settings.
    pub(super) ours: bool,
}

/// Names of those that go: first what nobody can use any more, then the longest unused.
pub(super) fn to_remove(mut lying: Vec<Lying>, now_s: i64) -> Vec<String> {
    let outdated = |entry: &Lying| !entry.ours && now_s.saturating_sub(entry.used_s) >= OTHERS_KEPT_S;
    // The newest first.
    lying.sort_by(|a, b| b.used_s.cmp(&a.used_s).then_with(|| a.name.cmp(&b.name)));
    let (mut entries, mut bytes) = (0, 0_u64);
    let mut goes = |entry: &Lying| {
        if outdated(entry) {
            return true;
        }
        entries += 1;
        bytes = bytes.saturating_add(entry.bytes);
        entries > ENTRIES_MAX || bytes > BYTES_MAX
    };
    lying.retain(|entry| goes(entry));
    lying.into_iter().map(|entry| entry.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: i64 = 1_000_000;

    fn entry(number: i64, bytes: u64, ours: bool) -> Lying {
        Lying { name: format!("{number:03}"), bytes, used_s: NOW_S - number, ours }
    }

    #[test]
    fn within_bounds_nothing_goes() {
        let entries = (0..ENTRIES_MAX as i64).map(|number| entry(number, 1, number % 2 == 0)).collect();
        assert_eq!(to_remove(entries, NOW_S), [""; 0]);
    }

    #[test]
    fn the_longest_unused_go_first() {
        let over = 3;
        let entries: Vec<_> =
            (0..(ENTRIES_MAX + over) as i64).rev().map(|number| entry(number, 1, true)).collect();
        assert_eq!(to_remove(entries, NOW_S), ["256", "257", "258"]);
        let large = (0..4).map(|number| entry(number, BYTES_MAX / 2, true)).collect();
        assert_eq!(to_remove(large, NOW_S), ["002", "003"]);
        let too_large = vec![entry(0, BYTES_MAX + 1, true)];
        assert_eq!(to_remove(too_large, NOW_S), ["000"]);
    }

    #[test]
    fn what_other_versions_left_goes_after_a_day() {
        let entries = || {
            vec![
                entry(OTHERS_KEPT_S, 1, false),
                entry(OTHERS_KEPT_S - 1, 2, false),
                entry(OTHERS_KEPT_S + 1, 3, true),
            ]
        };
        assert_eq!(to_remove(entries(), NOW_S), [OTHERS_KEPT_S.to_string()]);
        // A clock that was set back makes nothing old.
        assert_eq!(to_remove(entries(), 0), [""; 0]);
    }
}
