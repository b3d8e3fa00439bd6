//! Characters that somebody else's text must not bring into a log line, a table or a message of ours.

/// Whether a character acts instead of showing: it ends a line, is a command to a terminal, or turns the reading
/// direction of what follows, so that the text reads as another.
pub fn is_unfit(character: char) -> bool {
    // Unicode's property Bidi_Control.
    let turns = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    let separates = matches!(character, '\u{2028}' | '\u{2029}');
    character.is_control() || turns || separates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_is_told_from_what_shows() {
        let unfit = "\n\r\t\0\u{1b}\u{7f}\u{85}\u{9b}\u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}\u{2028}\u{2029}";
        for character in unfit.chars() {
            assert!(is_unfit(character), "{character:?}");
        }
        for character in
            " aZ~\u{a0}\u{e9}\u{5d0}\u{627}\u{4e2d}\u{200d}\u{202f}\u{2065}\u{fffd}\u{1f600}".chars()
        {
            assert!(!is_unfit(character), "{character:?}");
        }
    }
}
