//! What a policy may say of itself: it ends up in headers, labels and log lines.

use sluice_core::verdict::Description;

use crate::load_error::Refusal;

/// Longest name or version that a policy states, bytes: they stand in a response header.
pub const STATED_BYTES_MAX: usize = 64;
/// Longest sentence about itself, bytes: one line of a table.
pub const ABOUT_BYTES_MAX: usize = 512;

/// Refuses what does not fit where it is shown.
pub(crate) fn check(description: &Description) -> Result<(), Refusal> {
    check_stated("name", &description.name)?;
    check_stated("version", &description.version)?;
    let about = &description.about;
    if about.len() > ABOUT_BYTES_MAX || about.chars().any(char::is_control) {
        let wanted = format!("one line of at most {ABOUT_BYTES_MAX} bytes");
        return Err(Refusal::Description { part: "about", bytes: about.len(), wanted });
    }
    Ok(())
}

/// A `;` would end the value within the header.
fn check_stated(part: &'static str, text: &str) -> Result<(), Refusal> {
    let fits = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b';';
    if text.len() <= STATED_BYTES_MAX && text.bytes().all(fits) {
        return Ok(());
    }
    let wanted = format!("at most {STATED_BYTES_MAX} bytes of printable ASCII without `;`");
    Err(Refusal::Description { part, bytes: text.len(), wanted })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, version: &str, about: &str) -> Option<&'static str> {
        let description = Description {
            name: name.to_owned(),
            version: version.to_owned(),
            about: about.to_owned(),
            settings_schema: String::new(),
        };
        match check(&description) {
            Ok(()) => None,
            Err(Refusal::Description { part, .. }) => Some(part),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn descriptions() {
        let (fits, long) = ("x".repeat(STATED_BYTES_MAX), "x".repeat(STATED_BYTES_MAX + 1));
        for (name, version, about, expected) in [
            ("", "", "", None),
            (fits.as_str(), "1.0.0-rc.1+5", "Shortest queue, caf\u{e9}; and more.", None),
            (long.as_str(), "1", "", Some("name")),
            ("a;b", "1", "", Some("name")),
            ("a", long.as_str(), "", Some("version")),
            ("a", "1\r\nx: y", "", Some("version")),
            ("a", "caf\u{e9}", "", Some("version")),
            ("a", "1; reason=x", "", Some("version")),
            ("a", "1", "two\nlines", Some("about")),
        ] {
            assert_eq!(refused(name, version, about), expected, "{name:?} {version:?} {about:?}");
        }
        assert_eq!(refused("a", "1", &"x".repeat(ABOUT_BYTES_MAX)), None);
        assert_eq!(refused("a", "1", &"x".repeat(ABOUT_BYTES_MAX + 1)), Some("about"));
    }
}
