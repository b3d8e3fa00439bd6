//! A policy's `.wasm` file, by cargo.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

const TARGET: &str = "wasm32-unknown-unknown";

/// Small, fast files, whatever the crate's own profiles say: no debug figures, no unwinding.
const PROFILE: [&str; 6] = [
    "profile.release.codegen-units=1",
    "profile.release.debug=false",
    "profile.release.lto=\"fat\"",
    "profile.release.opt-level=3",
    "profile.release.panic=\"abort\"",
    "profile.release.strip=true",
];

/// Vector instructions, as the shipped policies are built with: every host runs them, with the same answers everywhere.
const TARGET_FLAGS: &str = r#"target.wasm32-unknown-unknown.rustflags=["-C","target-feature=+simd128"]"#;

/// A policy's file.
#[derive(Debug, PartialEq, Eq)]
pub struct Built {
    /// The file, beside the crate's Cargo.toml.
    pub wasm: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// Why there is no policy file.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The folder is no crate.
    #[error("there is no Cargo.toml in {}; name a policy's folder, or make one: sluice policy new NAME", dir.display())]
    NoCrate {
        /// The folder.
        dir: PathBuf,
    },
    /// A program is not installed.
    #[error("cannot run {program}; install Rust (rustup) and see that it is on the PATH")]
    NoProgram {
        /// Its name.
        program: &'static str,
        /// Why it does not run.
        source: io::Error,
    },
    /// Rust cannot compile to WASM yet.
    #[error("Rust's wasm target is not installed; run: rustup target add {TARGET}")]
    NoTarget,
    /// The crate makes no file that could be a policy.
    #[error("{} makes no wasm file; add to it: [lib] crate-type = [\"cdylib\", \"rlib\"]", manifest.display())]
    NoCdylib {
        /// The crate's manifest.
        manifest: PathBuf,
    },
    /// Cargo refused the crate.
    #[error("cargo could not {task} {}{}", dir.display(), detail(output))]
    Cargo {
        /// What it was asked.
        task: &'static str,
        /// The crate.
        dir: PathBuf,
        /// What it said; empty where the person has seen it already.
        output: String,
    },
    /// The file was built but could not be put in its place.
    #[error("cannot copy {} to {}", from.display(), to.display())]
    Copy {
        /// Cargo's artefact.
        from: PathBuf,
        /// Where it was to go.
        to: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Compiles the policy crate in `dir` and puts its file, named as the crate is, beside its Cargo.toml.
///
/// Cargo's progress and the compiler's messages go to standard error.
pub fn build(dir: &Path) -> Result<Built, BuildError> {
    let no_crate = || BuildError::NoCrate { dir: dir.to_owned() };
    let dir = &dir.canonicalize().map_err(|_| no_crate())?;
    let manifest = dir.join("Cargo.toml");
    if !manifest.is_file() {
        return Err(no_crate());
    }
    check_target(dir)?;
    let name = cdylib_name(&metadata(dir)?, &manifest)?;
    let from = compile(dir, &manifest)?;
    let to = dir.join(format!("{name}.wasm"));
    match std::fs::copy(&from, &to) {
        Ok(bytes) => Ok(Built { wasm: to, bytes }),
        Err(source) => Err(BuildError::Copy { from, to, source }),
    }
}

/// Asked in the crate's folder, because a rust-toolchain.toml there chooses the compiler.
fn check_target(dir: &Path) -> Result<(), BuildError> {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", TARGET])
        .current_dir(dir)
        .output()
        .map_err(|source| BuildError::NoProgram { program: "rustc", source })?;
    let folder = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && Path::new(folder.trim()).is_dir() {
        Ok(())
    } else {
        Err(BuildError::NoTarget)
    }
}

fn metadata(dir: &Path) -> Result<Value, BuildError> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(dir)
        .output()
        .map_err(|source| BuildError::NoProgram { program: "cargo", source })?;
    serde_json::from_slice(&output.stdout).map_err(|_| BuildError::Cargo {
        task: "read",
        dir: dir.to_owned(),
        output: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

fn compile(dir: &Path, manifest: &Path) -> Result<PathBuf, BuildError> {
    let mut cargo = Command::new("cargo");
    cargo.args([
        "build",
        "--release",
        "--lib",
        "--target",
        TARGET,
        "--message-format=json-render-diagnostics",
    ]);
    for setting in PROFILE.into_iter().chain([TARGET_FLAGS]) {
        cargo.args(["--config", setting]);
    }
    let output = cargo
        .current_dir(dir)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| BuildError::NoProgram { program: "cargo", source })?;
    if !output.status.success() {
        return Err(BuildError::Cargo { task: "build", dir: dir.to_owned(), output: String::new() });
    }
    artefact(&String::from_utf8_lossy(&output.stdout), manifest)
        .ok_or_else(|| BuildError::NoCdylib { manifest: manifest.to_owned() })
}

/// The crate's name in cargo's metadata, given that it makes a cdylib.
fn cdylib_name(metadata: &Value, manifest: &Path) -> Result<String, BuildError> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    list(&metadata["packages"])
        .iter()
        .filter(|package| is_at(package, manifest))
        .filter(|package| list(&package["targets"]).iter().any(is_cdylib))
        .find_map(|package| package["name"].as_str().map(str::to_owned))
        .ok_or_else(|| BuildError::NoCdylib { manifest: manifest.to_owned() })
}

/// The crate's wasm file in cargo's messages, one JSON object a line.
fn artefact(messages: &str, manifest: &Path) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .filter(|message| is_at(message, manifest) && is_cdylib(&message["target"]))
        .find_map(|message| {
            let files = message["filenames"].as_array()?.iter().filter_map(Value::as_str);
            files.map(PathBuf::from).find(|file| file.extension().is_some_and(|end| end == "wasm"))
        })
}

fn is_at(described: &Value, manifest: &Path) -> bool {
    described["manifest_path"].as_str().is_some_and(|path| Path::new(path) == manifest)
}

fn is_cdylib(target: &Value) -> bool {
    target["crate_types"].as_array().is_some_and(|types| types.iter().any(|kind| kind == "cdylib"))
}

fn detail(output: &str) -> String {
    if output.is_empty() {
        "; its messages above say why".to_owned()
    } else {
        format!(":\n{}", output.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "/p/Cargo.toml";

    #[test]
    fn finds_the_artefact_among_messages() {
        let messages = [
            r#"{"reason":"compiler-artifact","manifest_path":"/q/Cargo.toml","target":{"crate_types":["cdylib"]},"filenames":["/q.wasm"]}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/p/Cargo.toml","target":{"crate_types":["bin"]},"filenames":["/b.wasm"]}"#,
            "not JSON",
            r#"{"reason":"compiler-artifact","manifest_path":"/p/Cargo.toml","target":{"crate_types":["cdylib","rlib"]},"filenames":["/p.rlib","/p.wasm"]}"#,
            r#"{"reason":"build-finished","success":true}"#,
        ];
        let manifest = Path::new(MANIFEST);
        assert_eq!(artefact(&messages.join("\n"), manifest), Some(PathBuf::from("/p.wasm")));
        assert_eq!(artefact(messages[1], manifest), None);
    }

    #[test]
    fn a_policy_must_be_a_cdylib() {
        let metadata = |crate_type: &str| {
            serde_json::json!({"packages": [
                {"name": "other", "manifest_path": "/q/Cargo.toml", "targets": [{"crate_types": ["cdylib"]}]},
                {"name": "my-policy", "manifest_path": MANIFEST, "targets": [{"crate_types": [crate_type]}]},
            ]})
        };
        let manifest = Path::new(MANIFEST);
        assert_eq!(cdylib_name(&metadata("cdylib"), manifest).expect("a cdylib"), "my-policy");
        let refused = cdylib_name(&metadata("lib"), manifest).expect_err("no cdylib");
        assert!(refused.to_string().contains("crate-type = [\"cdylib\""), "{refused}");
    }

    #[test]
    fn a_folder_without_a_crate_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for folder in [dir.path().to_owned(), dir.path().join("absent")] {
            let refused = build(&folder).expect_err("no crate");
            assert!(refused.to_string().contains("sluice policy new NAME"), "{refused}");
        }
    }

    #[test]
    fn messages_say_what_to_do() {
        assert!(BuildError::NoTarget.to_string().contains("rustup target add wasm32-unknown-unknown"));
        let shown = BuildError::Cargo { task: "build", dir: "/p".into(), output: String::new() };
        assert_eq!(shown.to_string(), "cargo could not build /p; its messages above say why");
        let told = BuildError::Cargo { task: "read", dir: "/p".into(), output: "bad key\n".to_owned() };
        assert_eq!(told.to_string(), "cargo could not read /p:\nbad key");
    }
}
