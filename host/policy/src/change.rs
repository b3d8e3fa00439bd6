//! What a version changed: its code, its settings or both.

use serde::Serialize;

/// What a version is made of: the digests of its file and of its settings, if it has some.
pub(crate) type Source<'a> = (&'a str, Option<&'a str>);

/// What a version changed against the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// There was none before it.
    First,
    /// Its file.
    Code,
    /// Its settings alone.
    Settings,
    /// Its file and its settings.
    CodeAndSettings,
}

impl Change {
    /// Against the version that was in force before, if there was one.
    pub(crate) fn between(before: Option<Source<'_>>, now: Source<'_>) -> Self {
        let Some(before) = before else { return Self::First };
        match (before.0 != now.0, before.1 != now.1) {
            (true, true) => Self::CodeAndSettings,
            (false, true) => Self::Settings,
            // The same again is not loaded.
            (_, false) => Self::Code,
        }
    }

    /// The word for logs and lists.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Code => "code",
            Self::Settings => "settings",
            Self::CodeAndSettings => "code-and-settings",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_settings_are_told_apart() {
        for (before, now, change) in [
            (None, ("a", None), Change::First),
            (Some(("a", None)), ("b", None), Change::Code),
            (Some(("a", Some("1"))), ("b", Some("1")), Change::Code),
            (Some(("a", None)), ("a", Some("1")), Change::Settings),
            (Some(("a", Some("1"))), ("a", None), Change::Settings),
            (Some(("a", Some("1"))), ("b", Some("2")), Change::CodeAndSettings),
        ] {
            assert_eq!(Change::between(before, now), change, "{before:?} {now:?}");
            assert_eq!(serde_json::to_value(change).unwrap(), change.name());
        }
    }
}
