//! What may name a policy: it names a folder, a package, a file, and a key in configuration and metrics.

use super::NewPolicyError;

/// Longer names would break tables and labels; file systems allow 255 bytes.
const MAX_NAME_BYTES: usize = 64;

/// Words that Rust keeps for itself, and crates that every policy already has.
const TAKEN: &str = "abstract alloc as async await become box break const continue core crate do dyn else enum \
    extern false final fn for gen if impl in let loop macro match mod move mut override priv proc-macro pub ref \
    return self sluice-policy-sdk static std struct super test trait true try type typeof union unsafe unsized \
    use virtual where while yield";

/// Accepts `kebab-case`: lower-case letters, digits and single hyphens, starting with a letter.
pub(super) fn check(name: &str) -> Result<(), NewPolicyError> {
    let Some(problem) = problem(name) else { return Ok(()) };
    let proposal = proposal(name);
    let cure = match self::problem(&proposal) {
        None => format!("try `{proposal}`"),
        Some(_) => "take a name such as `my-policy`".to_owned(),
    };
    Err(NewPolicyError::Name { name: name.to_owned(), problem, cure })
}

fn problem(name: &str) -> Option<&'static str> {
    let allowed = |character: char| matches!(character, 'a'..='z' | '0'..='9' | '-');
    if name.is_empty() {
        Some("it is empty")
    } else if name.len() > MAX_NAME_BYTES {
        Some("it is longer than 64 bytes")
    } else if !name.chars().all(allowed) {
        Some("it may hold only lower-case letters, digits and hyphens")
    } else if !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        Some("it must start with a letter")
    } else if name.ends_with('-') || name.contains("--") {
        Some("hyphens stand singly, between letters or digits")
    } else if name == "bindings" || name == "builtin" {
        Some("the host needs that name: for bindings.toml, or for its own policy")
    } else if TAKEN.split_whitespace().any(|taken| taken == name) {
        Some("Rust needs that word for itself")
    } else {
        None
    }
}

/// The nearest name that is well-formed, or nearly so.
fn proposal(name: &str) -> String {
    let mut proposal = String::new();
    let mut after_lower = false;
    for character in name.chars() {
        if character.is_ascii_uppercase() && after_lower {
            proposal.push('-');
        }
        after_lower = character.is_ascii_lowercase() || character.is_ascii_digit();
        match character.to_ascii_lowercase() {
            plain @ ('a'..='z' | '0'..='9') => proposal.push(plain),
            _ if proposal.ends_with('-') => {}
            _ => proposal.push('-'),
        }
    }
    let proposal = proposal.trim_matches('-').to_owned();
    if TAKEN.split_whitespace().any(|taken| taken == proposal) { proposal + "-policy" } else { proposal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_kebab_case() {
        for name in ["a", "round-robin", "v2", "least-loaded-2", &"x".repeat(64)] {
            assert!(check(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn refuses_with_a_cure() {
        let cases = [
            ("", "it is empty", "`my-policy`"),
            ("My Policy", "only lower-case", "try `my-policy`"),
            ("MyPolicy2Go", "only lower-case", "try `my-policy2-go`"),
            ("my_policy", "only lower-case", "try `my-policy`"),
            ("../up", "only lower-case", "try `up`"),
            ("2fast", "start with a letter", "`my-policy`"),
            ("-a", "start with a letter", "try `a`"),
            ("a--b", "hyphens stand singly", "try `a-b`"),
            ("a-", "hyphens stand singly", "try `a`"),
            ("type", "Rust needs that word", "try `type-policy`"),
            ("sluice-policy-sdk", "Rust needs that word", "try `sluice-policy-sdk-policy`"),
            (&"x".repeat(65), "longer than 64", "`my-policy`"),
        ];
        for (name, problem, cure) in cases {
            let message = check(name).expect_err(name).to_string();
            assert!(message.contains(problem) && message.contains(cure), "{message}");
        }
    }
}
