//! A policy's settings: TOML for people, JSON for the policy.

use serde_json::{Map, Number, Value};

use crate::load_error::Refusal;
use crate::shown::shown;

/// What a policy without a settings file is configured with.
pub(crate) const NO_SETTINGS: &str = "{}";

/// The JSON text for a TOML text.
pub(crate) fn json_of(text: &str) -> Result<String, Refusal> {
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
        Refusal::SettingsSyntax { line, detail: shown(error.message()) }
    })?;
    object("", table).map(|value| value.to_string())
}

fn object(path: &str, table: toml::Table) -> Result<Value, Refusal> {
    let mut members = Map::new();
    for (key, value) in table {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        members.insert(key, json_value(&path, value)?);
    }
    Ok(Value::Object(members))
}

fn json_value(path: &str, value: toml::Value) -> Result<Value, Refusal> {
    Ok(match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => Value::from(number),
        toml::Value::Boolean(flag) => Value::Bool(flag),
        toml::Value::Datetime(date) => Value::String(date.to_string()),
        toml::Value::Float(number) => Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| Refusal::SettingsValue { key: shown(path), value: number.to_string() })?,
        toml::Value::Array(values) => values
            .into_iter()
            .enumerate()
            .map(|(index, value)| json_value(&format!("{path}[{index}]"), value))
            .collect::<Result<_, _>>()?,
        toml::Value::Table(table) => object(path, table)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_becomes_json() {
        for (toml, json) in [
            ("", "{}"),
            ("a = 1\nb = 'x'\nc = [1.5, true]", r#"{"a":1,"b":"x","c":[1.5,true]}"#),
            ("[limits]\nttl_ms = 480000", r#"{"limits":{"ttl_ms":480000}}"#),
            ("[[rule]]\nname = 'a'\n[[rule]]\nname = 'b'", r#"{"rule":[{"name":"a"},{"name":"b"}]}"#),
            ("since = 2026-01-02", r#"{"since":"2026-01-02"}"#),
        ] {
            let found: Value = serde_json::from_str(&json_of(toml).unwrap()).unwrap();
            assert_eq!(found, serde_json::from_str::<Value>(json).unwrap(), "{toml}");
        }
    }

    #[test]
    fn errors_name_the_place() {
        let Err(Refusal::SettingsSyntax { line, .. }) = json_of("a = 1\nb = \nc = 2") else {
            panic!("a missing value is a syntax error")
        };
        assert_eq!(line, 2);
        let Err(Refusal::SettingsValue { key, .. }) = json_of("[a]\nb = [1.0, inf]") else {
            panic!("JSON has no infinity")
        };
        assert_eq!(key, "a.b[1]");
    }
}
