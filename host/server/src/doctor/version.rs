//! Which engines this host was tested with.

use serde::Serialize;

/// What is known of a vLLM version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// 0.32: the whole test suite runs against it.
    Tested,
    /// 0.33: what it does on the wire was read in its source.
    Read,
    /// 0.21 to 0.31: has all that the host uses, and was not run.
    Older,
    /// Below 0.21, which lacks some of it.
    TooOld,
    /// Newer than any that is known, or no version that can be read.
    Unknown,
}

impl Standing {
    /// Of a version as `/version` tells it: `0.32.0`, `0.33.0rc1`, `0.32.1.dev5+g1234`.
    pub fn of(version: &str) -> Self {
        let mut parts = version.trim().trim_start_matches('v').split('.').map(str::parse::<u32>);
        match (parts.next(), parts.next()) {
            (Some(Ok(0)), Some(Ok(32))) => Self::Tested,
            (Some(Ok(0)), Some(Ok(33))) => Self::Read,
            (Some(Ok(0)), Some(Ok(21..=31))) => Self::Older,
            (Some(Ok(0)), Some(Ok(0..=20))) => Self::TooOld,
            _ => Self::Unknown,
        }
    }

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tested => "tested",
            Self::Read => "read, not run",
            Self::Older => "older, not run",
            Self::TooOld => "too old",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart() {
        for (version, expected) in [
            ("0.32.0", Standing::Tested),
            ("0.32.1.dev5+g1234", Standing::Tested),
            ("0.33.0rc1", Standing::Read),
            ("0.31.2", Standing::Older),
            ("0.21.0", Standing::Older),
            ("0.9.1", Standing::TooOld),
            ("0.34.0", Standing::Unknown),
            ("1.0.0", Standing::Unknown),
            ("dev", Standing::Unknown),
            ("", Standing::Unknown),
        ] {
            assert_eq!(Standing::of(version), expected, "{version}");
        }
    }
}
