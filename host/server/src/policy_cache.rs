//! Where compiled policies are kept.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::config::PolicyCache;

/// Below the folder that the environment names: that one's mode is not ours to choose, and the cache must be private.
const WITHIN: &str = "components";

/// The folder: as configured, or else the cache folder that the service manager gave (`CACHE_DIRECTORY`), or else the
/// user's. Not beside the policies: those who drop policies may write there, and compiled code must come from nobody but
/// this host. `None` where there is none.
pub fn folder(wanted: &PolicyCache, environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let usual = || {
        // Paths that are not absolute say nothing, as the XDG rules have it.
        let absolute = |name| environment(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let services = environment("CACHE_DIRECTORY").as_deref().and_then(first_of_list);
        services
            .or_else(|| Some(absolute("XDG_CACHE_HOME")?.join("sluice")))
            .or_else(|| Some(absolute("HOME")?.join(".cache/sluice")))
            .map(|folder| folder.join(WITHIN))
    };
    match wanted {
        PolicyCache::Off => None,
        PolicyCache::In(folder) => Some(folder.clone()),
        PolicyCache::Usual => usual(),
    }
}

/// A service may have several, with colons between them.
fn first_of_list(list: &std::ffi::OsStr) -> Option<PathBuf> {
    let first = Path::new(list.to_str()?.split(':').next()?);
    first.is_absolute().then(|| first.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(wanted: &PolicyCache, environment: &[(&str, &str)]) -> Option<String> {
        let value = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        folder(wanted, value).map(|path| path.display().to_string())
    }

    #[test]
    fn the_first_that_is_named_is_taken() {
        let home = ("HOME", "/home/s");
        let user = ("XDG_CACHE_HOME", "/cache");
        for (environment, expected) in [
            (&[][..], None),
            (&[home], Some("/home/s/.cache/sluice/components")),
            (&[home, user], Some("/cache/sluice/components")),
            (&[home, ("XDG_CACHE_HOME", "relative")], Some("/home/s/.cache/sluice/components")),
            (&[home, user, ("CACHE_DIRECTORY", "/var/cache/s:/x")], Some("/var/cache/s/components")),
            (&[home, ("CACHE_DIRECTORY", "")], Some("/home/s/.cache/sluice/components")),
        ] {
            assert_eq!(chosen(&PolicyCache::Usual, environment).as_deref(), expected, "{environment:?}");
        }
        assert_eq!(chosen(&PolicyCache::Off, &[home]), None);
        assert_eq!(chosen(&PolicyCache::In("/mine".into()), &[home]).as_deref(), Some("/mine"));
    }
}
