//! `sluice policy new` and `sluice policy build`: a policy crate from nothing, and its `.wasm` file.

mod build;
mod name;
mod template;

use std::io;
use std::path::{Path, PathBuf};

pub use build::{BuildError, Built, build};

/// A new policy crate.
#[derive(Debug, PartialEq, Eq)]
pub struct Created {
    /// Its folder.
    pub dir: PathBuf,
    /// The files written, under `dir`.
    pub files: Vec<PathBuf>,
}

/// Why there is no new policy crate.
#[derive(Debug, thiserror::Error)]
pub enum NewPolicyError {
    /// The name is no policy name.
    #[error("`{name}` cannot name a policy: {problem}; {cure}")]
    Name {
        /// What was asked for.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
        /// What to do.
        cure: String,
    },
    /// Something of that name is there already.
    #[error("{} exists already; choose another name, or move it away first", dir.display())]
    Exists {
        /// The folder that would have been made.
        dir: PathBuf,
    },
    /// The disk refused.
    #[error("cannot write {}", path.display())]
    Write {
        /// What was being written.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Writes a policy crate `name` into a new folder of that name under `parent`.
///
/// The crate is complete in itself: it brings the SDK's sources with it, and needs nothing else but what a
/// package registry has.
pub fn create(parent: &Path, name: &str) -> Result<Created, NewPolicyError> {
    name::check(name)?;
    let dir = parent.join(name);
    std::fs::create_dir(&dir).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => NewPolicyError::Exists { dir: dir.clone() },
        _ => NewPolicyError::Write { path: dir.clone(), source },
    })?;
    let files = template::files(name)
        .into_iter()
        .map(|(relative, text)| {
            let path = dir.join(relative);
            match write(&path, &text) {
                Ok(()) => Ok(path),
                Err(source) => Err(NewPolicyError::Write { path, source }),
            }
        })
        .collect::<Result<_, _>>()?;
    Ok(Created { dir, files })
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_it_says() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let created = create(parent.path(), "my-policy").expect("a new crate");
        assert_eq!(created.dir, parent.path().join("my-policy"));
        for file in &created.files {
            assert!(file.starts_with(&created.dir) && file.is_file(), "{}", file.display());
        }
        assert!(created.files.contains(&created.dir.join("src/lib.rs")));
    }

    #[test]
    fn never_writes_over_anything() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(parent.path().join("taken"), "mine").expect("a file");
        let refused = create(parent.path(), "taken").expect_err("taken");
        assert!(matches!(&refused, NewPolicyError::Exists { .. }), "{refused}");
        assert!(refused.to_string().contains("choose another name"), "{refused}");
        assert_eq!(std::fs::read(parent.path().join("taken")).expect("still there"), b"mine");
    }

    #[test]
    fn says_where_it_could_not_write() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let refused = create(&parent.path().join("absent"), "lost").expect_err("no such parent");
        assert!(matches!(&refused, NewPolicyError::Write { path, .. } if path.ends_with("absent/lost")));
    }
}
