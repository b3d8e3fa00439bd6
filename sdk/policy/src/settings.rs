//! Settings, declared once: [`settings!`](crate::settings!) makes the struct, its defaults, the checks and the
//! JSON Schema from one list, so that they cannot disagree.

use std::ops::RangeInclusive;

use crate::json;

/// Declares the settings of a policy.
///
/// Types are `bool`, `u32`, `f64` and `String`; numbers may have a range. Each key has a default, and its
/// documentation becomes its description in the schema.
///
/// ```
/// sluice_policy_sdk::settings! {
///     /// What this policy can be told.
///     pub struct Settings {
///         /// How long KV blocks stay with the decode worker after a turn, in milliseconds.
///         retain_ttl_ms: u32 = 480_000, 0..=3_600_000;
///         /// Choose the decode worker after the prefill.
///         late_binding: bool = false;
///     }
/// }
///
/// let settings = Settings::parse(r#"{"late_binding": true}"#).expect("valid settings");
/// assert_eq!((settings.retain_ttl_ms, settings.late_binding), (480_000, true));
/// let refused = Settings::parse(r#"{"retain_ttl_ms": -1}"#).expect_err("out of range");
/// assert_eq!(refused, "setting `retain_ttl_ms` is -1; it takes a whole number from 0 to 3600000");
/// ```
#[macro_export]
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $type:ty = $default:expr $(, $range:expr)?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name {
            $($(#[doc = $doc])+ pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl $name {
            /// Reads a JSON object. An error names the key and says what it takes.
            pub fn parse(json: &str) -> Result<Self, String> {
                let given = $crate::settings::Given::parse(json, &[$(stringify!($key)),*])?;
                let _ = &given;
                Ok(Self {
                    $($key: given.read(stringify!($key), $default, $crate::settings!(@range $($range)?))?,)*
                })
            }

            /// JSON Schema of the settings.
            pub fn schema() -> String {
                $crate::settings::schema(&[$($crate::settings::property::<$type>(
                    stringify!($key), concat!($($doc),+), &$default, $crate::settings!(@range $($range)?),
                )),*])
            }
        }
    };
    (@range) => { None };
    (@range $range:expr) => { Some($range) };
}

crate::settings! {
    /// For policies that have no settings: any key is refused.
    pub struct NoSettings {}
}

/// A type that a setting can have.
pub trait Setting: Sized + PartialOrd {
    /// Its name in JSON Schema.
    const TYPE: &'static str;
    /// Its name in messages.
    const NAME: &'static str;

    /// The value, if the raw JSON value is of this type.
    fn from_json(raw: &str) -> Option<Self>;

    /// The value as raw JSON.
    fn to_json(&self) -> String;
}

impl Setting for bool {
    const TYPE: &'static str = "boolean";
    const NAME: &'static str = "true or false";

    fn from_json(raw: &str) -> Option<Self> {
        raw.parse().ok()
    }

    fn to_json(&self) -> String {
        (if *self { "true" } else { "false" }).to_owned()
    }
}

impl Setting for u32 {
    const TYPE: &'static str = "integer";
    const NAME: &'static str = "a whole number";

    fn from_json(raw: &str) -> Option<Self> {
        raw.parse().ok()
    }

    fn to_json(&self) -> String {
        self.to_string()
    }
}

impl Setting for f64 {
    const TYPE: &'static str = "number";
    const NAME: &'static str = "a number";

    fn from_json(raw: &str) -> Option<Self> {
        // `null` and texts are no numbers to Rust either; what is out of range would read as infinite.
        raw.parse().ok().filter(|number: &f64| number.is_finite())
    }

    fn to_json(&self) -> String {
        self.to_string()
    }
}

impl Setting for String {
    const TYPE: &'static str = "string";
    const NAME: &'static str = "a text";

    fn from_json(raw: &str) -> Option<Self> {
        json::unquote(raw)
    }

    fn to_json(&self) -> String {
        json::quote(self)
    }
}

/// The settings a user wrote, with no unknown key among them.
#[derive(Debug)]
pub struct Given<'a>(Vec<(String, &'a str)>);

impl<'a> Given<'a> {
    /// Reads a JSON object that has none but these keys. Nothing at all counts as an empty object.
    pub fn parse(text: &'a str, keys: &[&str]) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let given = json::object(text).map_err(|fault| format!("settings: {fault}"))?;
        for (at, (key, _)) in given.iter().enumerate() {
            if keys.is_empty() {
                return Err(format!("no setting `{key}`: this policy has no settings"));
            }
            if !keys.contains(&key.as_str()) {
                return Err(format!("no setting `{key}`: there are `{}`", keys.join("`, `")));
            }
            if given[..at].iter().any(|(earlier, _)| earlier == key) {
                return Err(format!("setting `{key}` is given twice; leave one"));
            }
        }
        Ok(Self(given))
    }

    /// The value of a key, or its default where the user gave none.
    pub fn read<T: Setting>(
        &self,
        key: &str,
        default: T,
        range: Option<RangeInclusive<T>>,
    ) -> Result<T, String> {
        let Some((_, raw)) = self.0.iter().find(|(given, _)| given == key) else { return Ok(default) };
        let value = T::from_json(raw);
        match (value, range) {
            (Some(value), None) => Ok(value),
            (Some(value), Some(range)) if range.contains(&value) => Ok(value),
            (_, None) => Err(format!("setting `{key}` is {raw}; it takes {}", T::NAME)),
            (_, Some(range)) => {
                let (from, to) = (range.start().to_json(), range.end().to_json());
                Err(format!("setting `{key}` is {raw}; it takes {} from {from} to {to}", T::NAME))
            }
        }
    }
}

/// The schema of one setting, with its key.
pub fn property<T: Setting>(key: &str, doc: &str, default: &T, range: Option<RangeInclusive<T>>) -> String {
    let range = range.map_or_else(String::new, |range| {
        let (from, to) = (range.start().to_json(), range.end().to_json());
        format!(r#","minimum":{from},"maximum":{to}"#)
    });
    let (key, doc, kind) = (json::quote(key), json::quote(doc.trim()), T::TYPE);
    let default = default.to_json();
    format!(r#"{key}:{{"description":{doc},"type":"{kind}","default":{default}{range}}}"#)
}

/// The schema of an object that has these properties and no others.
pub fn schema(properties: &[String]) -> String {
    let properties = properties.join(",");
    format!(r#"{{"type":"object","additionalProperties":false,"properties":{{{properties}}}}}"#)
}

#[cfg(test)]
mod tests {
    use super::NoSettings;

    crate::settings! {
        /// One of each type.
        struct Each {
            /// Whole.
            whole: u32 = 5, 1..=10;
            /// Real.
            real: f64 = 0.5, 0.0..=1.0;
            /// Flag.
            flag: bool = true;
            /// Text, on
            /// two lines.
            text: String = "none".to_owned();
        }
    }

    #[test]
    fn accepts_what_is_right() {
        let all = r#"{"whole": 10, "real": 1, "flag": false, "text": "x"}"#;
        let expected = Each { whole: 10, real: 1.0, flag: false, text: "x".to_owned() };
        assert_eq!(Each::parse(all), Ok(expected));
        for nothing in ["{}", "", " \n"] {
            assert_eq!(Each::parse(nothing), Ok(Each::default()), "{nothing:?}");
        }
    }

    #[test]
    fn refuses_by_name() {
        let cases = [
            (r#"{"whole": 11}"#, "setting `whole` is 11; it takes a whole number from 1 to 10"),
            (r#"{"whole": 1.5}"#, "setting `whole` is 1.5; it takes a whole number from 1 to 10"),
            (r#"{"real": "much"}"#, "setting `real` is \"much\"; it takes a number from 0 to 1"),
            (r#"{"flag": 1}"#, "setting `flag` is 1; it takes true or false"),
            (r#"{"text": null}"#, "setting `text` is null; it takes a text"),
            (r#"{"hole": 1}"#, "no setting `hole`: there are `whole`, `real`, `flag`, `text`"),
            (r#"{"whole": -1}"#, "setting `whole` is -1; it takes a whole number from 1 to 10"),
            (r#"{"real": 1e999}"#, "setting `real` is 1e999; it takes a number from 0 to 1"),
            (r#"{"flag": true, "flag": true}"#, "setting `flag` is given twice; leave one"),
            ("[]", "settings: they must be a JSON object such as {}, and are []"),
            ("{", "settings: they are not JSON: expected `\"` at byte 1"),
        ];
        for (json, expected) in cases {
            assert_eq!(Each::parse(json).expect_err(json), expected);
        }
        assert_eq!(
            NoSettings::parse(r#"{"a": 1}"#),
            Err("no setting `a`: this policy has no settings".to_owned())
        );
    }

    #[test]
    fn schema_says_the_same() {
        let expected = concat!(
            r#"{"type":"object","additionalProperties":false,"properties":{"#,
            r#""whole":{"description":"Whole.","type":"integer","default":5,"minimum":1,"maximum":10},"#,
            r#""real":{"description":"Real.","type":"number","default":0.5,"minimum":0,"maximum":1},"#,
            r#""flag":{"description":"Flag.","type":"boolean","default":true},"#,
            r#""text":{"description":"Text, on two lines.","type":"string","default":"none"}}}"#,
        );
        assert_eq!(Each::schema(), expected);
        assert_eq!(NoSettings::schema(), r#"{"type":"object","additionalProperties":false,"properties":{}}"#);
    }
}
