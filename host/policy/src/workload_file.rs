//! `bindings.toml` in the policy folder: which workload a request belongs to, and which policy decides for it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use sluice_core::workload::{Binding, DEFAULT_WORKLOAD, HeaderMatch, Match, SECRET_HEADERS};
use thiserror::Error;
use toml::Spanned;

use crate::folder;
use crate::limits::NAME_BYTES_MAX;
use crate::lines::Lines;
use crate::load_error::Refusal;
use crate::shown::{shown, shown_path};

/// The file's name without `.toml`; no policy may be called so, since this would be its settings.
pub const BINDINGS: &str = "bindings";
/// Workloads that one file may bind: every request is held against them until one matches.
pub const WORKLOADS_MAX: usize = 64;
/// Longest text that a request is compared with, bytes: as long as the longest model name.
const MATCHED_BYTES_MAX: usize = 256;
/// Largest latency target, ms: an hour, which no request may take.
const TARGET_MS_MAX: i64 = 3_600_000;

/// Why `bindings.toml` is not in force.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}:{} {what}; {cure}", shown_path(file), line.map(|line| format!("{line}:")).unwrap_or_default())]
pub struct BindingsError {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1; `None` when it concerns the file as a whole.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub cure: String,
    /// Whether the same file may be taken at another moment.
    pub is_transient: bool,
}

/// The file where it lies.
pub(crate) fn file_in(folder: &Path) -> PathBuf {
    folder.join(BINDINGS).with_extension("toml")
}

/// Reads the bindings of a policy folder; none when there is no such file.
pub fn read_bindings(folder: &Path) -> Result<Vec<Binding>, BindingsError> {
    parse(folder, &text_in(folder)?)
}

fn text_in(folder: &Path) -> Result<String, BindingsError> {
    let file = file_in(folder);
    let text = folder::read_settings(&file).map_err(|refusal| BindingsError {
        line: None,
        what: refusal.to_string(),
        cure: "let this user read it, or take it away".to_owned(),
        is_transient: matches!(refusal, Refusal::Unreadable(_)),
        file,
    })?;
    Ok(text.unwrap_or_default())
}

/// The bindings in force, and why newer ones are not.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    in_force: Arc<[Binding]>,
    /// The line of each in the file.
    lines: Vec<usize>,
    /// What was last made of the file; `None` while it could not be read.
    seen: Option<String>,
    refused: Option<BindingsError>,
}

/// What one look at the file found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Looked {
    /// Other bindings are in force.
    pub(crate) changed: bool,
    /// It was refused, which is news.
    pub(crate) refused: Option<BindingsError>,
}

impl Bindings {
    pub(crate) fn in_force(&self) -> &Arc<[Binding]> {
        &self.in_force
    }

    /// The line of each in the file that they were taken from.
    pub(crate) fn lines(&self) -> &[usize] {
        &self.lines
    }

    pub(crate) fn refused(&self) -> Option<&BindingsError> {
        self.refused.as_ref()
    }

    /// Whether a refused file may be taken although it does not change.
    pub(crate) fn wants_retry(&self) -> bool {
        self.refused.as_ref().is_some_and(|refused| refused.is_transient)
    }

    /// Looks at the file. One that cannot be used leaves the bindings as they are.
    pub(crate) fn look(&mut self, folder: &Path) -> Looked {
        let text = match text_in(folder) {
            Ok(text) => text,
            Err(error) => return self.refuse(None, error),
        };
        if self.seen.as_ref() == Some(&text) {
            return Looked::default();
        }
        match parse(folder, &text) {
            Ok(bindings) => {
                let changed = *self.in_force != *bindings;
                let lines = lines(&text);
                *self = Self { in_force: bindings.into(), lines, seen: Some(text), refused: None };
                Looked { changed, refused: None }
            }
            Err(error) => self.refuse(Some(text), error),
        }
    }

    fn refuse(&mut self, seen: Option<String>, error: BindingsError) -> Looked {
        self.seen = seen;
        let news = self.refused.as_ref() != Some(&error);
        self.refused = Some(error.clone());
        Looked { changed: false, refused: news.then_some(error) }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFile {
    #[serde(default)]
    workload: Vec<Spanned<WrittenBinding>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenBinding {
    name: Spanned<String>,
    r#match: Spanned<WrittenMatch>,
    policy: Spanned<String>,
    ttft_target_ms: Option<Spanned<i64>>,
    tpot_target_ms: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ model, tenant, header, path_prefix }, any of them")]
struct WrittenMatch {
    model: Option<Spanned<String>>,
    tenant: Option<Spanned<String>>,
    header: Option<WrittenHeader>,
    path_prefix: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ name = \"...\", value = \"...\" }")]
struct WrittenHeader {
    name: Spanned<String>,
    value: Spanned<String>,
}

/// What is wrong at a place, and what to do about it.
type Wrong = (Range<usize>, String, String);

fn parse(folder: &Path, text: &str) -> Result<Vec<Binding>, BindingsError> {
    let refused = |at: Option<usize>, what: String, cure: String| {
        let line = |at: usize| Lines::of(text).line(at);
        let (what, cure) = (shown(&what), shown(&cure));
        BindingsError { file: file_in(folder), line: at.map(line), what, cure, is_transient: false }
    };
    let written: WrittenFile = toml::from_str(text).map_err(|error| {
        let form =
            "write [[workload]] tables with name, match = { model, tenant, header, path_prefix } and policy";
        let what = error.message().replace("i64", "a whole number");
        refused(error.span().map(|span| span.start), what, form.to_owned())
    })?;
    bindings(written).map_err(|(span, what, cure)| refused(Some(span.start), what, cure))
}

/// Where the workloads of a file that can be used begin.
fn lines(text: &str) -> Vec<usize> {
    let written = toml::from_str::<WrittenFile>(text).map(|file| file.workload).unwrap_or_default();
    let starts = written.iter().map(|workload| workload.span().start);
    starts.map(|at| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1).collect()
}

fn bindings(written: WrittenFile) -> Result<Vec<Binding>, Wrong> {
    if let Some(extra) = written.workload.get(WORKLOADS_MAX) {
        let what = format!("{} workloads are more than {WORKLOADS_MAX}", written.workload.len());
        return Err((extra.span(), what, "take out those not in use".to_owned()));
    }
    let mut names = BTreeSet::new();
    written
        .workload
        .into_iter()
        .map(|written| {
            let written = written.into_inner();
            let span = written.name.span();
            let binding = binding(written)?;
            if !names.insert(binding.workload.clone()) {
                let what = format!("the workload {:?} stands twice", binding.workload);
                return Err((span, what, "give each workload a name of its own".to_owned()));
            }
            Ok(binding)
        })
        .collect()
}

fn binding(written: WrittenBinding) -> Result<Binding, Wrong> {
    let workload = name("workload", written.name)?;
    Ok(Binding {
        matches: matches(&workload, written.r#match)?,
        workload,
        policy: name("policy", written.policy)?,
        ttft_target_ms: target("ttft_target_ms", written.ttft_target_ms)?,
        tpot_target_ms: target("tpot_target_ms", written.tpot_target_ms)?,
    })
}

fn name(whose: &str, written: Spanned<String>) -> Result<String, Wrong> {
    let span = written.span();
    let name = written.into_inner();
    if !folder::is_name(&name) || (whose == "policy" && name == BINDINGS) {
        let what = format!("{name:?} is no name for a {whose}");
        let cure = format!("use letters, digits, `-`, `_` and `.`, at most {NAME_BYTES_MAX} of them");
        return Err((span, what, cure));
    }
    if whose == "workload" && name == DEFAULT_WORKLOAD {
        let what = format!("{DEFAULT_WORKLOAD:?} is the workload of requests that nothing here matches");
        return Err((span, what, "give it another name".to_owned()));
    }
    Ok(name)
}

fn matches(workload: &str, written: Spanned<WrittenMatch>) -> Result<Match, Wrong> {
    let span = written.span();
    let WrittenMatch { model, tenant, header, path_prefix } = written.into_inner();
    let path_prefix = compared("path_prefix", path_prefix)?;
    if let Some(prefix) = path_prefix.as_ref().filter(|prefix| !prefix.starts_with('/')) {
        let what = format!("path_prefix {prefix:?} of workload {workload:?} is the beginning of no path");
        return Err((span, what, "write it like \"/v1/completions\"".to_owned()));
    }
    let matches = Match {
        model: compared("model", model)?,
        tenant: compared("tenant", tenant)?,
        header: header.map(header_match).transpose()?,
        path_prefix,
    };
    if matches.is_empty() {
        let what = format!("workload {workload:?} matches every request");
        let cure = "say what belongs to it: model, tenant, header or path_prefix; the policy of all others is \
                    `[policy] default` in sluice.toml";
        return Err((span, what, cure.to_owned()));
    }
    Ok(matches)
}

fn header_match(written: WrittenHeader) -> Result<HeaderMatch, Wrong> {
    let span = written.name.span();
    let name = written.name.into_inner().to_ascii_lowercase();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_token) {
        let cure = "write letters, digits and -, such as \"x-workload\"";
        return Err((span, format!("{name:?} is no header name"), cure.to_owned()));
    }
    if SECRET_HEADERS.contains(&name.as_str()) {
        let what = format!("the header {name:?} holds a secret, which does not belong in this file");
        return Err((span, what, "match on tenant instead".to_owned()));
    }
    let value = compared("value", Some(written.value))?.unwrap_or_default();
    Ok(HeaderMatch { name, value })
}

/// A text that a request is compared with.
fn compared(key: &str, written: Option<Spanned<String>>) -> Result<Option<String>, Wrong> {
    let Some(written) = written else { return Ok(None) };
    let span = written.span();
    let text = written.into_inner();
    if !(1..=MATCHED_BYTES_MAX).contains(&text.len()) {
        let what = format!("{key} has {} bytes", text.len());
        return Err((span, what, format!("write 1 to {MATCHED_BYTES_MAX} bytes, or leave the key out")));
    }
    Ok(Some(text))
}

fn target(key: &str, written: Option<Spanned<i64>>) -> Result<Option<u32>, Wrong> {
    let Some(written) = written else { return Ok(None) };
    let span = written.span();
    let ms = written.into_inner();
    match u32::try_from(ms) {
        Ok(fits) if (1..=TARGET_MS_MAX).contains(&ms) => Ok(Some(fits)),
        _ => Err((span, format!("{key} is {ms}"), format!("write 1 to {TARGET_MS_MAX} (ms)"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const GOOD: &str = r#"
[[workload]]
name = "batch"
match = { header = { name = "X-Workload", value = "batch" } }
policy = "least-loaded"
ttft_target_ms = 5_000

[[workload]]
name = "search"
policy = "adaptive"
[workload.match]
tenant = "search"
path_prefix = "/v1/chat"
"#;

    #[test]
    fn files_are_read() {
        let bindings = parse(Path::new("p"), GOOD).unwrap();
        let header = Some(HeaderMatch { name: "x-workload".to_owned(), value: "batch".to_owned() });
        assert_eq!(bindings[0].matches, Match { header, ..Match::default() });
        assert_eq!((bindings[0].policy.as_str(), bindings[0].ttft_target_ms), ("least-loaded", Some(5_000)));
        assert_eq!(bindings[1].matches.path_prefix.as_deref(), Some("/v1/chat"));
        assert_eq!(lines(GOOD), [2, 8]);
        assert_eq!(parse(Path::new("p"), "# none yet\n"), Ok(Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let one = |name: &str, matches: &str, policy: &str| {
            format!("[[workload]]\nname = \"{name}\"\nmatch = {{ {matches} }}\npolicy = \"{policy}\"\n")
        };
        let twice = format!("{}{}", one("a", "model = \"m\"", "p"), one("a", "model = \"n\"", "p"));
        let many: String =
            (0..=WORKLOADS_MAX).map(|at| one(&format!("w{at}"), "model = \"m\"", "p")).collect();
        for (text, line, told) in [
            ("[[workload]\n".to_owned(), 1, ""),
            (
                "[[workload]]\nname = \"a\"\nmatch = { model = \"m\" }\n".to_owned(),
                1,
                "missing field `policy`",
            ),
            (one("a", "modle = \"m\"", "p"), 3, "unknown field `modle`"),
            ("[[worklaod]]\n".to_owned(), 1, "unknown field `worklaod`"),
            (one("a", "model = 5", "p"), 3, "expected a string"),
            (one("a", "", "p"), 3, "matches every request"),
            (one("a b", "model = \"m\"", "p"), 2, "is no name for a workload"),
            (
                one("default", "model = \"m\"", "p"),
                2,
                "is the workload of requests that nothing here matches",
            ),
            (one("a", "model = \"m\"", "p/q"), 4, "is no name for a policy"),
            (one("a", "model = \"m\"", "bindings"), 4, "is no name for a policy"),
            (one("a", "path_prefix = \"v1\"", "p"), 3, "is the beginning of no path"),
            (one("a", "tenant = \"\"", "p"), 3, "tenant has 0 bytes"),
            (one("a", "header = { name = \"a b\", value = \"c\" }", "p"), 3, "no header name"),
            (one("a", "header = { name = \"Authorization\", value = \"c\" }", "p"), 3, "holds a secret"),
            (one("a", "header = { name = \"x-a\" }", "p"), 3, "missing field `value`"),
            (format!("{}tpot_target_ms = 0\n", one("a", "model = \"m\"", "p")), 5, "tpot_target_ms is 0"),
            (twice, 6, "stands twice"),
            (many, 4 * WORKLOADS_MAX + 1, "are more than 64"),
        ] {
            let error = parse(Path::new("p"), &text).unwrap_err();
            assert!(error.line == Some(line) && error.what.contains(told), "{text}\n{error}");
            assert!(error.to_string().starts_with(&format!("p/bindings.toml:{line}: ")), "{error}");
        }
    }

    /// A bad file leaves the last good bindings, is told once, and is forgotten when a good one comes.
    #[test]
    fn the_last_good_bindings_stay() {
        let folder = tempfile::tempdir().unwrap();
        let write = |text: &str| fs::write(file_in(folder.path()), text).unwrap();
        let mut bound = Bindings::default();
        assert_eq!(bound.look(folder.path()), Looked::default(), "no file binds nothing");
        write(GOOD);
        assert_eq!(bound.look(folder.path()), Looked { changed: true, refused: None });
        write("[[workload]]\n");
        let looked = bound.look(folder.path());
        assert!(!looked.changed && looked.refused.is_some());
        assert_eq!((bound.look(folder.path()), bound.in_force().len()), (Looked::default(), 2));
        write(GOOD);
        assert_eq!((bound.look(folder.path()), bound.refused()), (Looked::default(), None), "as it was");
        fs::remove_file(file_in(folder.path())).unwrap();
        assert_eq!(bound.look(folder.path()), Looked { changed: true, refused: None });
        fs::create_dir(file_in(folder.path())).unwrap();
        assert!(bound.look(folder.path()).refused.is_some() && bound.wants_retry());
        assert!(bound.look(folder.path()).refused.is_none(), "told once");
    }
}
