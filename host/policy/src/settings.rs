//! A policy's settings: TOML for people, JSON for the policy.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::lines::Lines;
use crate::load_error::Refusal;
use crate::settings_schema::Schema;
use crate::shown::shown;

/// Settings as JSON, with the place in the file of each key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    value: Value,
    /// Line of each key, from 1, by its path: `a.b[1]`.
    lines: BTreeMap<String, usize>,
}

impl Settings {
    /// What a policy without a settings file is configured with.
    pub(crate) fn none() -> Self {
        Self { value: Value::Object(Map::new()), lines: BTreeMap::new() }
    }

    /// Reads a TOML text.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let lines = Lines::of(text);
        let table = DeTable::parse(text).map_err(|error| {
            let line = lines.line(error.span().map_or(0, |span| span.start));
            Refusal::SettingsSyntax { line, detail: shown(error.message()) }
        })?;
        let mut reader = Reader { text: &lines, lines: BTreeMap::new() };
        let value = reader.object("", table.into_inner())?;
        Ok(Self { value, lines: reader.lines })
    }

    /// For the policy.
    pub(crate) fn json(&self) -> String {
        self.value.to_string()
    }

    /// As plain data.
    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    /// Refuses what the policy's schema does not take.
    pub(crate) fn check(&self, schema: &Schema) -> Result<(), Refusal> {
        schema.check_settings(&self.value).map_err(|misfit| Refusal::SettingsMisfit {
            line: self.line_of(&misfit.key),
            key: shown(&misfit.key),
            what: misfit.what,
            takes: misfit.takes,
        })
    }

    /// The line of a key, or of what it is missing in.
    fn line_of(&self, key: &str) -> Option<usize> {
        let mut key = key;
        loop {
            if let Some(line) = self.lines.get(key) {
                return Some(*line);
            }
            key = &key[..key.rfind(['.', '['])?];
        }
    }
}

struct Reader<'t> {
    text: &'t Lines,
    lines: BTreeMap<String, usize>,
}

impl Reader<'_> {
    fn object(&mut self, path: &str, table: DeTable<'_>) -> Result<Value, Refusal> {
        let mut members = Map::new();
        for (key, value) in table {
            let span = key.span();
            let key = key.into_inner().into_owned();
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let value = self.value(&path, span, value)?;
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }

    fn value(&mut self, path: &str, at: Range<usize>, value: Spanned<DeValue<'_>>) -> Result<Value, Refusal> {
        self.lines.insert(path.to_owned(), self.text.line(at.start));
        let unfit = |value: &str| Refusal::SettingsValue { key: shown(path), value: shown(value) };
        Ok(match value.into_inner() {
            DeValue::String(text) => Value::String(text.into_owned()),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map(Value::from)
                .map_err(|_| unfit(number.as_str()))?,
            DeValue::Boolean(flag) => Value::Bool(flag),
            DeValue::Datetime(date) => Value::String(date.to_string()),
            DeValue::Float(number) => number
                .as_str()
                .parse()
                .ok()
                .and_then(Number::from_f64)
                .map(Value::Number)
                .ok_or_else(|| unfit(number.as_str()))?,
            DeValue::Array(values) => {
                let each = values.into_iter().enumerate();
                let each =
                    each.map(|(index, value)| self.value(&format!("{path}[{index}]"), value.span(), value));
                Value::Array(each.collect::<Result<_, _>>()?)
            }
            DeValue::Table(table) => self.object(path, table)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_becomes_json() {
        for (toml, json) in [
            ("", "{}"),
            ("a = 1\nb = 'x'\nc = [1.5, true]", r#"{"a":1,"b":"x","c":[1.5,true]}"#),
            ("a = 0xff\nb = 1_000\nc = -1e3", r#"{"a":255,"b":1000,"c":-1000.0}"#),
            ("[limits]\nttl_ms = 480000", r#"{"limits":{"ttl_ms":480000}}"#),
            ("[[rule]]\nname = 'a'\n[[rule]]\nname = 'b'", r#"{"rule":[{"name":"a"},{"name":"b"}]}"#),
            ("since = 2026-01-02", r#"{"since":"2026-01-02"}"#),
        ] {
            let found = Settings::parse(toml).unwrap();
            assert_eq!(found.value, serde_json::from_str::<Value>(json).unwrap(), "{toml}");
        }
    }

    #[test]
    fn errors_name_the_place() {
        let Err(Refusal::SettingsSyntax { line, .. }) = Settings::parse("a = 1\nb = \nc = 2") else {
            panic!("a missing value is a syntax error")
        };
        assert_eq!(line, 2);
        for (text, expected) in
            [("[a]\nb = [1.0, inf]", "a.b[1]"), ("a = 99999999999999999999", "a"), ("a = nan", "a")]
        {
            let Err(Refusal::SettingsValue { key, .. }) = Settings::parse(text) else {
                panic!("JSON has no word for it: {text}")
            };
            assert_eq!(key, expected);
        }
    }

    #[test]
    fn the_longest_file_is_read_at_once() {
        // Looking for each line from the start would take minutes.
        let lines = crate::limits::SETTINGS_BYTES_MAX as usize / 4;
        let settings = Settings::parse(&format!("x = [\n{}1]", "1,\n".repeat(lines))).unwrap();
        assert_eq!(settings.line_of(&format!("x[{lines}]")), Some(lines + 2));
    }

    #[test]
    fn a_misfit_is_told_with_its_line() {
        let schema = r#"{"additionalProperties": false, "properties": {
            "a": {"type": "integer", "maximum": 5},
            "t": {"required": ["b"], "properties": {"b": {"type": "array", "items": {"type": "integer"}}}}}}"#;
        let schema = Schema::parse(schema).unwrap().unwrap();
        for (text, expected) in [
            ("# first\na = 6", "line 2: `a` is 6; it takes a whole number to 5"),
            ("b = 1", "line 1: `b` is no setting of this policy; it takes `a`, `t`"),
            ("\n[t]\nb = [\n1,\n'x']", "line 5: `t.b[1]` is \"x\"; it takes a whole number"),
            ("a = 1\n[t]\nc = 1", "line 2: `t.b` is missing; it takes a list"),
        ] {
            let refusal = Settings::parse(text).unwrap().check(&schema).unwrap_err();
            assert_eq!(refusal.to_string(), expected);
        }
        assert!(Settings::none().check(&schema).is_ok());
    }
}
