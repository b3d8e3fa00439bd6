//! A policy's own JSON Schema, as far as settings need it, and the check of settings against it.
//!
//! Known are `type`, `enum`, `const`, `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `minLength`,
//! `maxLength`, `items`, `minItems`, `maxItems`, `properties`, `required`, `additionalProperties`, and the annotations
//! in [`ANNOTATIONS`]. A schema that asks for more is refused: a condition that nobody checks would look like one that
//! holds.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::shown::shown;

/// How deep a schema may go. Settings are read by people.
const DEPTH_MAX: usize = 8;

/// Keywords that ask for nothing.
const ANNOTATIONS: [&str; 9] =
    ["$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "format"];

/// What a value may be.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Schema {
    about: String,
    default: Option<Value>,
    /// None: any.
    types: Vec<Type>,
    one_of: Option<Vec<Value>>,
    range: Range,
    chars: Count,
    items: Option<Box<Schema>>,
    items_count: Count,
    properties: BTreeMap<String, Schema>,
    required: Vec<String>,
    others: Others,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

/// Bounds of a number.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Range {
    min: Option<f64>,
    max: Option<f64>,
    above: Option<f64>,
    below: Option<f64>,
}

/// Bounds of a length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    min: Option<u64>,
    max: Option<u64>,
}

/// Keys that are not among the properties.
#[derive(Debug, Clone, Default, PartialEq)]
enum Others {
    #[default]
    Any,
    None,
    Each(Box<Schema>),
}

/// A value that its schema does not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Misfit {
    /// Where: `a.b[1]`; empty for the settings as a whole.
    pub(crate) key: String,
    /// What is wrong with it.
    pub(crate) what: String,
    /// What would be right.
    pub(crate) takes: String,
}

/// One setting, for people.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct SettingStatus {
    /// Its key, with those of the tables it is in.
    pub key: String,
    /// What is in force, the default included; `None` when there is neither.
    pub value: Option<Value>,
    /// Whether it stands in the settings file.
    pub is_written: bool,
    /// What it may be.
    pub takes: String,
    /// What it is for, in the policy's words.
    pub about: String,
}

impl Schema {
    /// Reads a schema; `None` when the policy states none. The error says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, String> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        let value: Value = serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}"))?;
        let schema = Self::read("", &value, DEPTH_MAX)?;
        match schema.types.as_slice() {
            [] | [Type::Object] => Ok(Some(schema)),
            _ => Err("settings are a table, so its type must be \"object\"".to_owned()),
        }
    }

    fn read(at: &str, value: &Value, depth: usize) -> Result<Self, String> {
        let place = |what: String| if at.is_empty() { what } else { format!("at `{}` {what}", shown(at)) };
        let fault = |keyword: &str, wanted: &str| place(format!("`{keyword}` must be {wanted}"));
        let Value::Object(members) = value else {
            return Err(place("a schema must be an object".to_owned()));
        };
        if depth == 0 {
            return Err(place(format!("it goes deeper than {DEPTH_MAX} levels")));
        }
        let mut schema = Self::default();
        for (keyword, value) in members {
            match keyword.as_str() {
                "type" => {
                    schema.types =
                        types(value).ok_or_else(|| fault(keyword, "a JSON type or a list of them"))?
                }
                "enum" => {
                    schema.one_of = Some(value.as_array().cloned().ok_or_else(|| fault(keyword, "a list"))?)
                }
                "const" => schema.one_of = Some(vec![value.clone()]),
                "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                    let bound = Some(value.as_f64().ok_or_else(|| fault(keyword, "a number"))?);
                    match keyword.as_str() {
                        "minimum" => schema.range.min = bound,
                        "maximum" => schema.range.max = bound,
                        "exclusiveMinimum" => schema.range.above = bound,
                        _ => schema.range.below = bound,
                    }
                }
                "minLength" | "maxLength" | "minItems" | "maxItems" => {
                    let bound = Some(value.as_u64().ok_or_else(|| fault(keyword, "a whole number"))?);
                    match keyword.as_str() {
                        "minLength" => schema.chars.min = bound,
                        "maxLength" => schema.chars.max = bound,
                        "minItems" => schema.items_count.min = bound,
                        _ => schema.items_count.max = bound,
                    }
                }
                "items" => schema.items = Some(Box::new(Self::read(&format!("{at}[]"), value, depth - 1)?)),
                "properties" => schema.properties = properties(at, value, depth)?,
                "required" => {
                    schema.required = texts(value).ok_or_else(|| fault(keyword, "a list of texts"))?
                }
                "additionalProperties" => schema.others = others(at, value, depth)?,
                "description" => schema.about = shown(value.as_str().unwrap_or_default()),
                "default" => schema.default = Some(value.clone()),
                known if ANNOTATIONS.contains(&known) => {}
                other => {
                    return Err(place(format!("it uses `{}`, which this host does not check", shown(other))));
                }
            }
        }
        // Schema writers note an option that is left out as `null`; TOML has no such value.
        schema.default = schema.default.filter(|default| !default.is_null());
        if let Some(default) = &schema.default
            && let Err(misfit) = schema.check(at, default)
        {
            return Err(place(format!(
                "the default {} is not taken: it takes {}",
                shown(&default.to_string()),
                misfit.takes
            )));
        }
        Ok(schema)
    }

    /// Whether settings are taken. Tells the first key that is not.
    pub(crate) fn check_settings(&self, settings: &Value) -> Result<(), Misfit> {
        self.check("", settings)
    }

    fn check(&self, key: &str, value: &Value) -> Result<(), Misfit> {
        let misfit = || {
            let what = format!("is {}", shown(&value.to_string()));
            Err(Misfit { key: key.to_owned(), what, takes: self.takes() })
        };
        let is_type = self.types.is_empty() || self.types.iter().any(|wanted| wanted.is_of(value));
        let is_listed = self.one_of.as_ref().is_none_or(|values| values.iter().any(|one| same(one, value)));
        if !is_type || !is_listed {
            return misfit();
        }
        match value {
            Value::Number(number) if !self.range.has(number.as_f64().unwrap_or(f64::NAN)) => misfit(),
            Value::String(text) if !self.chars.has(text.chars().count()) => misfit(),
            Value::Array(items) => {
                if !self.items_count.has(items.len()) {
                    return misfit();
                }
                let Some(schema) = &self.items else { return Ok(()) };
                items
                    .iter()
                    .enumerate()
                    .try_for_each(|(at, item)| schema.check(&format!("{key}[{at}]"), item))
            }
            Value::Object(members) => self.check_members(key, members),
            _ => Ok(()),
        }
    }

    fn check_members(&self, key: &str, members: &Map<String, Value>) -> Result<(), Misfit> {
        for (name, value) in members {
            let path = joined(key, name);
            match (self.properties.get(name), &self.others) {
                (Some(schema), _) => schema.check(&path, value)?,
                (None, Others::Each(schema)) => schema.check(&path, value)?,
                (None, Others::Any) => {}
                (None, Others::None) => {
                    let known: Vec<_> = self.properties.keys().map(|name| format!("`{name}`")).collect();
                    let takes = if known.is_empty() { "no settings".to_owned() } else { known.join(", ") };
                    return Err(Misfit { key: path, what: "is no setting of this policy".to_owned(), takes });
                }
            }
        }
        match self.required.iter().find(|name| !members.contains_key(*name)) {
            Some(missing) => {
                let takes = self.properties.get(missing).map_or_else(|| "a value".to_owned(), Self::takes);
                Err(Misfit { key: joined(key, missing), what: "is missing".to_owned(), takes })
            }
            None => Ok(()),
        }
    }

    /// What it takes, in words.
    fn takes(&self) -> String {
        if let Some(values) = &self.one_of {
            let values: Vec<_> = values.iter().map(|value| shown(&value.to_string())).collect();
            return format!("one of {}", values.join(", "));
        }
        let types: Vec<_> = self.types.iter().map(|one| one.words()).collect();
        let mut words = if types.is_empty() { "any value".to_owned() } else { types.join(" or ") };
        let Range { min, max, above, below } = self.range;
        for (word, bound) in [("from", min), ("above", above), ("to", max), ("below", below)] {
            words.extend(bound.map(|bound| format!(" {word} {bound}")));
        }
        for (count, what) in [(self.chars, "characters"), (self.items_count, "items")] {
            match count {
                Count { min: None, max: None } => {}
                Count { min: Some(min), max: Some(max) } => {
                    words.push_str(&format!(" of {min} to {max} {what}"))
                }
                Count { min: Some(min), max: None } => words.push_str(&format!(" of at least {min} {what}")),
                Count { min: None, max: Some(max) } => words.push_str(&format!(" of at most {max} {what}")),
            }
        }
        words
    }

    /// All settings with what is in force, tables gone through, in the order of their keys.
    pub(crate) fn status(&self, settings: &Value) -> Vec<SettingStatus> {
        let mut rows = Vec::new();
        self.rows("", Some(settings), self.default.as_ref(), &mut rows);
        rows
    }

    fn rows(
        &self,
        key: &str,
        written: Option<&Value>,
        default: Option<&Value>,
        rows: &mut Vec<SettingStatus>,
    ) {
        if self.properties.is_empty() && !key.is_empty() {
            rows.push(SettingStatus {
                key: key.to_owned(),
                value: written.or(default).cloned(),
                is_written: written.is_some(),
                takes: self.takes(),
                about: self.about.clone(),
            });
        }
        for (name, schema) in &self.properties {
            let member = |of: Option<&'_ Value>| of.and_then(|of| of.get(name)).cloned();
            let default = schema.default.clone().or_else(|| member(default));
            schema.rows(&joined(key, name), member(written).as_ref(), default.as_ref(), rows);
        }
        // Those that no property names.
        for (name, value) in written.and_then(Value::as_object).into_iter().flatten() {
            if !self.properties.contains_key(name) && (key.is_empty() || !self.properties.is_empty()) {
                rows.push(SettingStatus { key: joined(key, name), ..unstated(value) });
            }
        }
    }
}

/// A setting of which no schema says anything.
pub(crate) fn unstated(value: &Value) -> SettingStatus {
    let (key, takes, about) = Default::default();
    SettingStatus { key, value: Some(value.clone()), is_written: true, takes, about }
}

fn properties(at: &str, value: &Value, depth: usize) -> Result<BTreeMap<String, Schema>, String> {
    let members = value.as_object().ok_or_else(|| "`properties` must be an object".to_owned())?;
    let one = |(name, value): (&String, &Value)| {
        Ok((name.clone(), Schema::read(&joined(at, name), value, depth - 1)?))
    };
    members.iter().map(one).collect()
}

fn others(at: &str, value: &Value, depth: usize) -> Result<Others, String> {
    Ok(match value {
        Value::Bool(true) => Others::Any,
        Value::Bool(false) => Others::None,
        schema => Others::Each(Box::new(Schema::read(&joined(at, "*"), schema, depth - 1)?)),
    })
}

fn types(value: &Value) -> Option<Vec<Type>> {
    let named = |value: &Value| Type::named(value.as_str()?);
    match value {
        // There is no null in TOML, so that a type besides others says nothing.
        Value::Array(types) => types.iter().filter(|one| *one != "null").map(named).collect(),
        one => Some(vec![named(one)?]),
    }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

fn joined(key: &str, name: &str) -> String {
    if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") }
}

/// Whether two values are the same to JSON, which has one kind of number.
fn same(one: &Value, other: &Value) -> bool {
    one == other || (one.is_number() && one.as_f64() == other.as_f64())
}

impl Type {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "boolean" => Self::Boolean,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "string" => Self::String,
            "array" => Self::Array,
            "object" => Self::Object,
            _ => return None,
        })
    }

    fn words(self) -> &'static str {
        match self {
            Self::Boolean => "true or false",
            Self::Integer => "a whole number",
            Self::Number => "a number",
            Self::String => "a text",
            Self::Array => "a list",
            Self::Object => "a table",
        }
    }

    fn is_of(self, value: &Value) -> bool {
        match self {
            Self::Boolean => value.is_boolean(),
            // Policies read whole numbers from text without a fraction, so that 1.0 is none to them.
            Self::Integer => value.is_i64() || value.is_u64(),
            Self::Number => value.is_number(),
            Self::String => value.is_string(),
            Self::Array => value.is_array(),
            Self::Object => value.is_object(),
        }
    }
}

impl Range {
    fn has(self, number: f64) -> bool {
        self.min.is_none_or(|min| number >= min)
            && self.max.is_none_or(|max| number <= max)
            && self.above.is_none_or(|above| number > above)
            && self.below.is_none_or(|below| number < below)
    }
}

impl Count {
    fn has(self, count: usize) -> bool {
        let count = count as u64;
        self.min.is_none_or(|min| count >= min) && self.max.is_none_or(|max| count <= max)
    }
}

#[cfg(test)]
mod tests;
