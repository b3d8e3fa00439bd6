//! What a person most likely meant to write.

/// Twice the longest key.
const MAX_WORD_BYTES: usize = 40;
/// Fewer letters start too many words.
const MIN_START_BYTES: usize = 3;

/// The word nearest to `written`, when it is near enough to be meant: a third of its letters may differ.
/// Long words are left alone, which bounds the work.
pub(crate) fn nearest<'w>(written: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    if written.len() > MAX_WORD_BYTES {
        return None;
    }
    let near = |word| if is_cut_short(written, word) { 0 } else { distance(written, word) };
    let (differ, word) = words.into_iter().map(|word| (near(word), word)).min()?;
    (differ <= word.chars().count().div_ceil(3)).then_some(word)
}

/// Whether one word is the other without its end, as `ttl` is `ttl_ms`.
fn is_cut_short(written: &str, word: &str) -> bool {
    written.len().min(word.len()) >= MIN_START_BYTES
        && (word.starts_with(written) || written.starts_with(word))
}

/// What to write instead of a word that is none of the choices.
pub(crate) fn choice<'w, I: Iterator<Item = &'w str>>(written: &str, choices: impl Fn() -> I) -> String {
    let list = listed(choices());
    match nearest(written, choices()) {
        Some(near) => format!("did you mean {near:?}? The choices are: {list}"),
        None => format!("write one of: {list}"),
    }
}

/// How many letters must be put in, taken out or changed to get from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, from_char) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, to_char) in to.iter().enumerate() {
            let change = diagonal + usize::from(from_char != *to_char);
            diagonal = row[column + 1];
            row[column + 1] = change.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

/// Words as a person would list them: `unified, pull`.
pub(crate) fn listed<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    words.into_iter().collect::<Vec<_>>().join(", ")
}
