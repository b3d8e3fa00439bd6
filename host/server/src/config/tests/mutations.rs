//! Whatever is done to a configuration, it is accepted or refused with a message that fits the file.

use std::path::Path;

use proptest::prelude::*;

use crate::config::{ConfigError, Problem, WorkerUrl, parse};

const GOOD: &str = include_str!("../../../../../examples/configs/vllm-pull.toml");

/// One change to a text; positions are taken modulo its length.
#[derive(Debug, Clone)]
enum Change {
    Delete { at: usize, chars: usize },
    Insert { at: usize, text: String },
    RepeatLine { line: usize, after: usize },
    DropLine { line: usize },
    Value { line: usize, value: String },
}

fn change() -> impl Strategy<Value = Change> {
    let piece = prop_oneof![
        "\\PC{1,4}",
        "[\\[\\]{}\"'=.,#\\n\\r\\t0-9a-z_-]{1,6}",
        Just("\u{0}".to_owned()),
        Just("://u:p@".to_owned()),
    ];
    let value =
        prop_oneof!["-?[0-9]{1,22}", "\"\\PC{0,9}\"", Just("[[]]".to_owned()), Just("{ a = 1 }".to_owned())];
    prop_oneof![
        (any::<usize>(), 1..40_usize).prop_map(|(at, chars)| Change::Delete { at, chars }),
        (any::<usize>(), piece).prop_map(|(at, text)| Change::Insert { at, text }),
        (any::<usize>(), any::<usize>()).prop_map(|(line, after)| Change::RepeatLine { line, after }),
        any::<usize>().prop_map(|line| Change::DropLine { line }),
        (any::<usize>(), value).prop_map(|(line, value)| Change::Value { line, value }),
    ]
}

/// Lines that say something, so that changes do not go to waste in comments.
fn telling_lines() -> String {
    GOOD.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .fold(String::new(), |text, line| text + line + "\n")
}

fn changed(text: &str, change: &Change) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let position = |at: usize| at % (chars.len() + 1);
    let line_count = lines.len();
    match change {
        Change::Delete { at, chars: count } => {
            let from = position(*at);
            let to = (from + count).min(chars.len());
            return chars[..from].iter().chain(&chars[to..]).collect();
        }
        Change::Insert { at, text } => {
            let (before, after) = chars.split_at(position(*at));
            return before.iter().copied().chain(text.chars()).chain(after.iter().copied()).collect();
        }
        _ if line_count == 0 => return text.to_owned(),
        Change::RepeatLine { line, after } => {
            let copy = lines[line % line_count].clone();
            lines.insert(after % line_count, copy);
        }
        Change::DropLine { line } => {
            lines.remove(line % line_count);
        }
        Change::Value { line, value } => {
            let line = &mut lines[line % line_count];
            if let Some((key, _)) = line.split_once('=') {
                *line = format!("{key}= {value}");
            }
        }
    }
    lines.join("\n")
}

fn fits(problem: &Problem, text: &str) -> bool {
    let place = problem.place.as_ref();
    !problem.what.is_empty()
        && !problem.cure.is_empty()
        && place.is_none_or(|place| {
            (1..=text.matches('\n').count() + 1).contains(&place.line)
                && place.width_chars >= 1
                && place.indent_chars <= place.shown.chars().count()
                && !place.shown.chars().any(char::is_control)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_changed_configuration_is_accepted_or_refused_in_place(changes in prop::collection::vec(change(), 1..5)) {
        let text = changes.iter().fold(telling_lines(), |text, change| changed(&text, change));
        match parse(Path::new("sluice.toml"), &text) {
            Ok(config) => prop_assert!(!config.pools.is_empty()),
            Err(ConfigError::Invalid { problems, .. }) => {
                prop_assert!(!problems.is_empty());
                for problem in &problems {
                    prop_assert!(fits(problem, &text), "{problem:?}");
                }
            }
            Err(ConfigError::Syntax { problem, .. }) => prop_assert!(fits(&problem, &text), "{problem:?}"),
            Err(fault) => prop_assert!(false, "parse does no IO: {fault}"),
        }
    }

    #[test]
    fn an_accepted_address_keeps_its_meaning(text in "(http://)?[\\[\\]a-c:./@0-9_-]{0,12}") {
        if let Ok(url) = WorkerUrl::parse(&text) {
            prop_assert_eq!(WorkerUrl::parse(&url.to_string()), Ok(url));
        }
    }
}
