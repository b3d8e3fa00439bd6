//! Reading a Prometheus text exposition.

/// One look at a process' metrics.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    series: Vec<Series>,
}

#[derive(Debug, Clone)]
struct Series {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Metrics {
    /// Reads an exposition; the error is the first line that is none of it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let series =
            lines.map(|line| series(line).ok_or_else(|| line.to_owned())).collect::<Result<_, _>>()?;
        Ok(Self { series })
    }

    /// The sum over all series of a name that have these labels; 0 when there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.series
            .iter()
            .filter(|series| series.matches(name, labels))
            .fold(0.0, |sum, series| sum + series.value)
    }

    /// Whether there is such a series.
    pub fn has(&self, name: &str) -> bool {
        self.series.iter().any(|series| series.matches(name, &[]))
    }
}

impl Series {
    fn matches(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        let has = |(key, value): &(&str, &str)| self.labels.iter().any(|(k, v)| k == key && v == value);
        self.name == name && labels.iter().all(has)
    }
}

fn series(line: &str) -> Option<Series> {
    let (name, mut rest) = line.split_at(line.find(['{', ' '])?);
    let mut labels = Vec::new();
    if let Some(mut inner) = rest.strip_prefix('{') {
        while !inner.starts_with('}') {
            let (key, after) = inner.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((key.to_owned(), value));
            inner = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &inner[1..];
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Series { name: name.to_owned(), labels, value })
}

/// A label's value up to its closing quote, and what follows that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_found_by_name_and_labels() {
        let text = "# HELP a what\na{x=\"1\",y=\"b,} c\"} 2\na{x=\"2\"} 3.5\nb 1e3\nh_bucket{le=\"+Inf\"} 4\n# EOF\n";
        let metrics = Metrics::parse(text).expect("an exposition");
        for (name, labels, expected) in [
            ("a", &[][..], 5.5),
            ("a", &[("x", "1")], 2.0),
            ("a", &[("y", "b,} c")], 2.0),
            ("b", &[], 1_000.0),
            ("c", &[], 0.0),
        ] {
            assert_eq!(metrics.sum(name, labels), expected, "{name} {labels:?}");
        }
        assert!(metrics.has("h_bucket") && !metrics.has("c"));
    }

    #[test]
    fn the_line_that_is_no_series_is_told() {
        for line in ["a", "a{x=1} 2", "a{x=\"1} 2", "a{} two"] {
            assert_eq!(Metrics::parse(&format!("b 1\n{line}\n")).map(|_| ()), Err(line.to_owned()));
        }
    }
}
