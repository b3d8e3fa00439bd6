//! Reads one TOML table key by key; what nobody asked for is unknown.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::errors::Problems;
use crate::spelling;

/// What a kind of table is called and which keys it takes.
pub(super) struct Shape {
    /// As it stands in the file: `[server]`, `[[pool]]`.
    pub(super) header: &'static str,
    /// In the order in which messages list them.
    pub(super) keys: &'static [&'static str],
}

/// A value as written, with its place. `None`: left out, or of a wrong type and already a problem.
pub(super) type Field<T> = Option<Spanned<T>>;

/// A table whose keys are being read. Each read takes its key out.
pub(super) struct Table<'t> {
    shape: &'static Shape,
    span: Range<usize>,
    entries: DeTable<'t>,
}

impl<'t> Table<'t> {
    pub(super) fn new(shape: &'static Shape, table: Spanned<DeTable<'t>>) -> Self {
        Self { shape, span: table.span(), entries: table.into_inner() }
    }

    /// The table's header.
    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// A key's text, if it is there.
    pub(super) fn text(&mut self, key: &str, problems: &mut Problems<'_>) -> Field<String> {
        self.read(key, "a string", "put it in double quotes", problems, |value| text(value).ok())
    }

    /// A key's text; it is a problem when it is not there. `example` shows a value as it would be written.
    pub(super) fn required_text(
        &mut self,
        key: &str,
        example: &str,
        problems: &mut Problems<'_>,
    ) -> Field<String> {
        if !self.has(key) {
            let what = format!("this {} lacks the key {key:?}", self.shape.header);
            problems.at(self.span(), what, format!("add {key} = {example:?}"));
        }
        self.text(key, problems)
    }

    /// A key's whole number, if it is there. One that no integer type holds becomes the
    /// largest or smallest that one does, which is out of all bounds.
    pub(super) fn number(&mut self, key: &str, problems: &mut Problems<'_>) -> Field<i128> {
        let cure = "write digits, such as 1000";
        self.read(key, "a whole number", cure, problems, |value| whole_number(value).ok())
    }

    /// A key's number, whole or not, if it is there.
    pub(super) fn fraction(&mut self, key: &str, problems: &mut Problems<'_>) -> Field<f64> {
        self.read(key, "a number", "write it like 0.1", problems, |value| match value {
            DeValue::Float(number) => number.as_str().parse().ok(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok(),
            _ => None,
        })
    }

    /// A key's yes or no, if it is there.
    pub(super) fn boolean(&mut self, key: &str, problems: &mut Problems<'_>) -> Field<bool> {
        self.read(
            key,
            "true or false",
            "write true or false, without quotes",
            problems,
            |value| match value {
                DeValue::Boolean(boolean) => Some(boolean),
                _ => None,
            },
        )
    }

    /// A key's list of texts; none when it is not there.
    pub(super) fn texts(&mut self, key: &str, problems: &mut Problems<'_>) -> Vec<Spanned<String>> {
        let cure = "write a list of strings, such as [\"one\", \"two\"]";
        self.list(key, ("a string", cure), problems, text)
    }

    /// A key's list of whole numbers; none when it is not there.
    pub(super) fn numbers(&mut self, key: &str, problems: &mut Problems<'_>) -> Vec<Spanned<i128>> {
        let cure = "write a list of whole numbers, such as [1000, 1001]";
        self.list(key, ("a whole number", cure), problems, whole_number)
    }

    fn list<T>(
        &mut self,
        key: &str,
        (wanted, cure): (&str, &str),
        problems: &mut Problems<'_>,
        take: impl Fn(DeValue<'t>) -> Result<T, DeValue<'t>>,
    ) -> Vec<Spanned<T>> {
        let list = self.read(key, "a list", cure, problems, |value| match value {
            DeValue::Array(list) => Some(list),
            _ => None,
        });
        let mut items = Vec::new();
        for item in list.into_iter().flat_map(Spanned::into_inner) {
            let span = item.span();
            match take(item.into_inner()) {
                Ok(taken) => items.push(Spanned::new(span, taken)),
                Err(other) => problems.at(span, wrong_type(&format!("each of {key}"), wanted, &other), cure),
            }
        }
        items
    }

    /// Whether a key is there that was not read yet.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// The table under a key; one without entries when it is not there.
    pub(super) fn table(
        &mut self,
        key: &str,
        shape: &'static Shape,
        problems: &mut Problems<'_>,
    ) -> Table<'t> {
        let cure = format!("write {} on a line of its own, once, and its keys below it", shape.header);
        let table = self.read(key, "one table", &cure, problems, |value| match value {
            DeValue::Table(table) => Some(table),
            _ => None,
        });
        Table::new(shape, table.unwrap_or_else(|| Spanned::new(0..0, DeTable::new())))
    }

    /// The tables under a key, of which there must be at least one; `missing` is the problem when none is.
    pub(super) fn required_tables(
        &mut self,
        key: &str,
        shape: &'static Shape,
        problems: &mut Problems<'_>,
        missing: impl FnOnce(&mut Problems<'_>),
    ) -> Vec<Table<'t>> {
        if self
            .entries
            .get(key)
            .is_none_or(|value| value.get_ref().as_array().is_some_and(|list| list.is_empty()))
        {
            self.entries.remove(key);
            missing(problems);
            return Vec::new();
        }
        self.tables(key, shape, problems)
    }

    /// The tables under a key; none when it is not there.
    pub(super) fn tables(
        &mut self,
        key: &str,
        shape: &'static Shape,
        problems: &mut Problems<'_>,
    ) -> Vec<Table<'t>> {
        let cure = format!("write {} on a line of its own for each, and its keys below it", shape.header);
        let list = self.read(key, "a list of tables", &cure, problems, |value| match value {
            DeValue::Array(list) => Some(list),
            _ => None,
        });
        let mut tables = Vec::new();
        for item in list.into_iter().flat_map(Spanned::into_inner) {
            let span = item.span();
            match item.into_inner() {
                DeValue::Table(table) => tables.push(Table::new(shape, Spanned::new(span, table))),
                other => problems.at(span, wrong_type(&format!("each {key}"), "a table", &other), &cure),
            }
        }
        tables
    }

    /// Says of every key that nobody asked for what was most likely meant. `shapes` are all kinds of table.
    pub(super) fn finish(self, shapes: &[&Shape], problems: &mut Problems<'_>) {
        for key in self.entries.keys() {
            let name = key.get_ref().as_ref();
            let home = shapes.iter().find(|shape| shape.keys.contains(&name));
            let cure = match (home, spelling::nearest(name, self.shape.keys.iter().copied())) {
                (Some(home), _) => format!(
                    "it belongs to {0}: put it below {0}, before the next line in brackets",
                    home.header
                ),
                (None, Some(near)) => format!("did you mean {near:?}?"),
                (None, None) => format!(
                    "take it out; {} takes {}",
                    self.shape.header,
                    spelling::listed(self.shape.keys.iter().copied())
                ),
            };
            problems.at(key.span(), format!("unknown key {name:?} in {}", self.shape.header), cure);
        }
    }

    /// Takes a key's value out, of the type that `take` accepts.
    fn read<T>(
        &mut self,
        key: &str,
        wanted: &str,
        cure: &str,
        problems: &mut Problems<'_>,
        take: impl FnOnce(DeValue<'t>) -> Option<T>,
    ) -> Field<T> {
        let value = self.entries.remove(key)?;
        let span = value.span();
        let value = value.into_inner();
        let what = wrong_type(key, wanted, &value);
        match take(value) {
            Some(taken) => Some(Spanned::new(span, taken)),
            None => {
                problems.at(span, what, cure);
                None
            }
        }
    }
}

fn text(value: DeValue<'_>) -> Result<String, DeValue<'_>> {
    match value {
        DeValue::String(text) => Ok(text.into_owned()),
        other => Err(other),
    }
}

fn whole_number(value: DeValue<'_>) -> Result<i128, DeValue<'_>> {
    match value {
        DeValue::Integer(number) => {
            let text = number.as_str();
            let beyond = if text.starts_with('-') { i128::MIN } else { i128::MAX };
            Ok(i128::from_str_radix(text, number.radix()).unwrap_or(beyond))
        }
        other => Err(other),
    }
}

fn wrong_type(key: &str, wanted: &str, value: &DeValue<'_>) -> String {
    let found = match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    format!("{key} wants {wanted}, and this is {found}")
}
