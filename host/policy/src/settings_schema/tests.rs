//! What schemas may say, and what settings are told.

use serde_json::{Value, json};

use super::Schema;

fn schema(text: &Value) -> Schema {
    Schema::parse(&text.to_string()).unwrap().unwrap()
}

fn example() -> Schema {
    schema(&json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["mode"],
        "properties": {
            "mode": {"enum": ["fast", "fair"], "description": "How."},
            "weight": {"type": "integer", "minimum": 0, "maximum": 1000, "default": 4},
            "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "on": {"type": "boolean", "default": true},
            "tag": {"type": "string", "minLength": 1, "maxLength": 3},
            "zones": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 2},
            "limits": {"type": "object", "properties": {"ttl_ms": {"type": "integer", "default": 5}}},
            "by_model": {"type": "object", "additionalProperties": {"type": "number"}},
        },
    }))
}

/// As schema writers note what may be left out.
#[test]
fn a_default_of_null_is_none() {
    let schema = schema(&json!({"properties": {"tag": {"type": ["string", "null"], "default": null}}}));
    assert_eq!(schema.check_settings(&json!({})), Ok(()));
    assert!(schema.check_settings(&json!({"tag": 5})).is_err());
}

#[test]
fn settings_are_held_against_their_schema() {
    for (more, expected) in [
        (json!({}), None),
        (json!({"weight": 0, "share": 1, "on": false, "tag": "\u{e9}\u{e9}\u{e9}", "zones": [1, 2]}), None),
        (json!({"limits": {"ttl_ms": 1, "more": 2}, "by_model": {"m": 0.5}}), None),
        (json!({"mode": "slow"}), Some(("mode", "is \"slow\"", "one of \"fast\", \"fair\""))),
        (json!({"weight": -1}), Some(("weight", "is -1", "a whole number from 0 to 1000"))),
        (json!({"weight": 1001}), Some(("weight", "is 1001", "a whole number from 0 to 1000"))),
        (json!({"weight": 1.5}), Some(("weight", "is 1.5", "a whole number from 0 to 1000"))),
        (json!({"weight": 1.0}), Some(("weight", "is 1.0", "a whole number from 0 to 1000"))),
        (json!({"weight": "4"}), Some(("weight", "is \"4\"", "a whole number from 0 to 1000"))),
        (json!({"share": 0}), Some(("share", "is 0", "a number above 0 to 1"))),
        (json!({"on": 1}), Some(("on", "is 1", "true or false"))),
        (json!({"tag": ""}), Some(("tag", "is \"\"", "a text of 1 to 3 characters"))),
        (json!({"tag": "four"}), Some(("tag", "is \"four\"", "a text of 1 to 3 characters"))),
        (json!({"zones": [1, -1]}), Some(("zones[1]", "is -1", "a whole number from 0"))),
        (json!({"zones": [1, 2, 3]}), Some(("zones", "is [1,2,3]", "a list of at most 2 items"))),
        (json!({"limits": {"ttl_ms": "x"}}), Some(("limits.ttl_ms", "is \"x\"", "a whole number"))),
        (json!({"limits": 5}), Some(("limits", "is 5", "a table"))),
        (json!({"by_model": {"m": "x"}}), Some(("by_model.m", "is \"x\"", "a number"))),
        (json!({"wieght": 4}), Some(("wieght", "is no setting of this policy", "`by_model`, `limits`"))),
    ] {
        let mut settings = json!({"mode": "fast"});
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let misfit = example().check_settings(&settings).err();
        match (expected, &misfit) {
            (None, None) => {}
            (Some((key, what, takes)), Some(found)) => {
                assert_eq!((found.key.as_str(), found.what.as_str()), (key, what));
                assert!(found.takes.starts_with(takes), "{found:?}");
            }
            _ => panic!("{settings}: {misfit:?}"),
        }
    }
    let missing = example().check_settings(&json!({})).unwrap_err();
    assert_eq!((missing.key.as_str(), missing.what.as_str()), ("mode", "is missing"));
}

#[test]
fn what_is_not_checked_is_refused() {
    let deep = (0..20).fold(json!({}), |inner, _| json!({"properties": {"a": inner}}));
    for (text, told) in [
        ("{".to_owned(), "it is no JSON"),
        ("[]".to_owned(), "must be an object"),
        (json!({"type": "string"}).to_string(), "must be \"object\""),
        (json!({"type": "text"}).to_string(), "`type` must be a JSON type"),
        (json!({"properties": {"a": {"pattern": "x"}}}).to_string(), "at `a` it uses `pattern`"),
        (json!({"$ref": "#/a"}).to_string(), "it uses `$ref`"),
        (json!({"properties": {"a": {"minimum": "1"}}}).to_string(), "at `a` `minimum` must be a number"),
        (
            json!({"properties": {"a": {"type": "integer", "default": "x"}}}).to_string(),
            "the default \"x\" is not taken",
        ),
        (deep.to_string(), "goes deeper than 8"),
    ] {
        let error = Schema::parse(&text).unwrap_err();
        assert!(error.contains(told), "{text}: {error}");
    }
    assert_eq!(Schema::parse(" "), Ok(None), "a policy may state none");
}

#[test]
fn what_is_in_force_is_told_with_defaults() {
    let settings = json!({"mode": "fair", "weight": 9, "by_model": {"m": 1.5}});
    let rows: Vec<_> = example()
        .status(&settings)
        .into_iter()
        .map(|row| (row.key, row.value.unwrap_or(Value::Null), row.is_written))
        .collect();
    let row = |key: &str, value: Value, is_written| (key.to_owned(), value, is_written);
    assert_eq!(
        rows,
        [
            row("by_model", json!({"m": 1.5}), true),
            row("limits.ttl_ms", json!(5), false),
            row("mode", json!("fair"), true),
            row("on", json!(true), false),
            row("share", Value::Null, false),
            row("tag", Value::Null, false),
            row("weight", json!(9), true),
            row("zones", Value::Null, false),
        ]
    );
}
