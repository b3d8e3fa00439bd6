//! The files of a new policy crate. They are this project's own sources where it has them, so that what a user
//! gets is what is tested here.

const MANIFEST: &str = include_str!("template/Cargo.toml.template");
const README: &str = include_str!("template/README.md.template");
const SDK_MANIFEST: &str = include_str!("template/sdk-Cargo.toml.template");
const HELLO: &str = include_str!("../../../../../examples/hello-policy/src/lib.rs");
const TOOLCHAIN: &str = include_str!("../../../../../rust-toolchain.toml");
const WORKSPACE_MANIFEST: &str = include_str!("../../../../../Cargo.toml");

macro_rules! sdk_sources {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../../../../../sdk/policy/", $path)))),*]
    };
}

/// The SDK is not on a registry: the new crate brings it along.
const SDK: &[(&str, &str)] = &sdk_sources![
    "src/bindings.rs",
    "src/export.rs",
    "src/json.rs",
    "src/lib.rs",
    "src/pick.rs",
    "src/pick/by_chance.rs",
    "src/pick/mix.rs",
    "src/pick/pairs.rs",
    "src/policy.rs",
    "src/settings.rs",
    "src/testing.rs",
    "src/testing/check.rs",
    "src/testing/even.rs",
    "src/testing/random.rs",
    "src/testing/trial.rs",
    "src/verdict.rs",
    "src/workers.rs",
    "wit/policy.wit",
];

/// Path in the crate, and text, of each file.
pub(super) fn files(name: &str) -> Vec<(String, String)> {
    let own = [
        ("Cargo.toml", MANIFEST.replace("{name}", name)),
        ("README.md", README.replace("{name}", name)),
        (".gitignore", "/target\n/*.wasm\n".to_owned()),
        ("rust-toolchain.toml", TOOLCHAIN.to_owned()),
        ("src/lib.rs", HELLO.replace("Hello", &type_name(name))),
        ("sluice-policy-sdk/Cargo.toml", sdk_manifest()),
    ];
    let own = own.map(|(path, text)| (path.to_owned(), text));
    let sdk = SDK.iter().map(|(path, text)| (format!("sluice-policy-sdk/{path}"), (*text).to_owned()));
    own.into_iter().chain(sdk).collect()
}

/// The SDK's manifest without the workspace it inherits from.
fn sdk_manifest() -> String {
    let wit_bindgen =
        WORKSPACE_MANIFEST.lines().find(|line| line.starts_with("wit-bindgen =")).unwrap_or_default();
    SDK_MANIFEST.replace("{version}", env!("CARGO_PKG_VERSION")).replace("{wit_bindgen}", wit_bindgen)
}

/// `my-policy` as a type: `MyPolicy`.
fn type_name(name: &str) -> String {
    name.split('-')
        .flat_map(|word| {
            let mut letters = word.chars();
            letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn type_names() {
        for (name, expected) in [("a", "A"), ("my-policy", "MyPolicy"), ("v2-x", "V2X")] {
            assert_eq!(type_name(name), expected);
        }
    }

    #[test]
    fn nothing_is_left_to_fill_in() {
        for (path, text) in files("my-policy") {
            for blank in ["{name}", "{version}", "{wit_bindgen}", "workspace = true"] {
                assert!(!text.contains(blank), "{blank} in {path}");
            }
        }
        let files = files("my-policy");
        let text = |wanted: &str| &files.iter().find(|(path, _)| path == wanted).expect(wanted).1;
        assert!(text("src/lib.rs").contains("export!(MyPolicy);"));
        assert!(text("Cargo.toml").contains("name = \"my-policy\""));
        assert!(text("sluice-policy-sdk/Cargo.toml").contains("\nwit-bindgen = "));
        assert!(text("rust-toolchain.toml").contains("wasm32-unknown-unknown"));
    }

    fn files_under(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("the SDK's sources");
        let paths = entries.map(|entry| entry.expect("a readable entry").path());
        paths.flat_map(|path| if path.is_dir() { files_under(&path) } else { vec![path] }).collect()
    }

    /// A source file added to the SDK must be brought along too, and so must a new dependency.
    #[test]
    fn the_whole_sdk_comes_along() {
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/policy");
        let files = ["src", "wit"].map(|folder| files_under(&sdk.join(folder))).concat();
        let relative = |path: &PathBuf| path.strip_prefix(&sdk).expect("under the SDK").display().to_string();
        let there: BTreeSet<String> = files.iter().map(relative).collect();
        let brought: BTreeSet<String> = SDK.iter().map(|(path, _)| (*path).to_owned()).collect();
        assert_eq!(brought, there);

        let manifest = std::fs::read_to_string(sdk.join("Cargo.toml")).expect("the SDK's manifest");
        let (_, after) = manifest.split_once("[dependencies]\n").expect("dependencies");
        let dependencies: Vec<_> = after.lines().take_while(|line| !line.is_empty()).collect();
        assert_eq!(dependencies, ["wit-bindgen.workspace = true"]);
    }
}
