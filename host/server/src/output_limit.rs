//! How many tokens a client wants at most.

use crate::http::error::ApiError;
use crate::http::members::Members;
use crate::request::wrong_type;

/// A client's limit of output tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLimit {
    /// The member that says so.
    pub member: &'static str,
    /// 0 only where a prompt is scored and nothing generated.
    pub tokens: u32,
}

/// Whether nothing at all may be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zero {
    /// No.
    Refused,
    /// Yes: the prompt's echo is the answer.
    Taken,
}

impl OutputLimit {
    /// The first of these members that is there.
    pub fn read(members: &Members<'_>, names: &[&'static str], zero: Zero) -> Result<Option<Self>, ApiError> {
        let Some((member, value)) = names.iter().find_map(|name| Some((*name, members.get(name)?))) else {
            return Ok(None);
        };
        let text = value.get();
        let digits = text.strip_prefix('-').unwrap_or(text);
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong_type(member, "a whole number"));
        }
        let least = u32::from(zero == Zero::Refused);
        match text.parse::<u32>() {
            Ok(tokens) if tokens >= least => Ok(Some(Self { member, tokens })),
            _ => Err(out_of_range(member, least, u32::MAX)),
        }
    }

    /// Whether an answer this long could be within a model's context, if that is known.
    pub fn check(self, max_model_len: Option<u32>) -> Result<(), ApiError> {
        match max_model_len {
            Some(most) if self.tokens > most => Err(out_of_range(self.member, 1, most)),
            _ => Ok(()),
        }
    }
}

fn out_of_range(member: &str, least: u32, most: u32) -> ApiError {
    let message = format!("{member} must be from {least} to {most} tokens");
    ApiError::bad_request(Some(member), "invalid_value", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str, zero: Zero) -> Result<Option<u32>, &'static str> {
        let body = format!(r#"{{"max_tokens":{value}}}"#);
        let members = Members::parse(body.as_bytes()).expect("valid");
        let limit = OutputLimit::read(&members, &["max_completion_tokens", "max_tokens"], zero);
        limit.map(|limit| limit.map(|limit| limit.tokens)).map_err(|error| {
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("max_tokens")));
            error.code
        })
    }

    #[test]
    fn absurd_limits_are_refused() {
        for (value, expected) in [
            ("1", Ok(Some(1))),
            ("4294967295", Ok(Some(u32::MAX))),
            ("null", Ok(None)),
            ("0", Err("invalid_value")),
            ("-1", Err("invalid_value")),
            ("4294967296", Err("invalid_value")),
            ("99999999999999999999999999999999999999999", Err("invalid_value")),
            ("1.5", Err("invalid_type")),
            ("1e3", Err("invalid_type")),
            ("\"7\"", Err("invalid_type")),
            ("true", Err("invalid_type")),
            ("[]", Err("invalid_type")),
        ] {
            assert_eq!(read(value, Zero::Refused), expected, "{value}");
        }
        assert_eq!((read("0", Zero::Taken), read("-1", Zero::Taken)), (Ok(Some(0)), Err("invalid_value")));
    }

    #[test]
    fn the_first_member_counts() {
        let members = Members::parse(br#"{"max_tokens":9,"max_completion_tokens":5}"#).expect("valid");
        let limit = OutputLimit::read(&members, &["max_completion_tokens", "max_tokens"], Zero::Refused);
        assert_eq!(limit, Ok(Some(OutputLimit { member: "max_completion_tokens", tokens: 5 })));
    }

    #[test]
    fn a_model_bounds_its_answers() {
        let limit = OutputLimit { member: "max_tokens", tokens: 4_097 };
        assert!(limit.check(None).is_ok() && limit.check(Some(4_097)).is_ok());
        assert_eq!(limit.check(Some(4_096)).map_err(|error| error.code), Err("invalid_value"));
    }
}
