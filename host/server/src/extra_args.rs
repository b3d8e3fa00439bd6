//! The back door to an engine's parameters: vLLM hands what a client puts into `vllm_xargs` to the very place from which
//! its KV connector reads `kv_transfer_params`.

use crate::http::error::ApiError;
use crate::http::internal::ENGINE_INTERNAL;
use crate::http::members::Members;

/// The member.
const EXTRA_ARGS: &str = "vllm_xargs";

/// Refuses extra arguments that name what is between the host and its engines.
pub fn check(members: &Members<'_>) -> Result<(), ApiError> {
    let Some(value) = members.get(EXTRA_ARGS) else { return Ok(()) };
    // What is no object is the engine's to refuse; what is one and cannot be read here might be read there.
    if !value.get().starts_with('{') {
        return Ok(());
    }
    let arguments = Members::parse(value.get().as_bytes()).map_err(|error| {
        let message = format!("{EXTRA_ARGS} cannot be read: {error}");
        ApiError::bad_request(Some(EXTRA_ARGS), "invalid_value", message)
    })?;
    match ENGINE_INTERNAL.iter().find(|name| arguments.has(name)) {
        None => Ok(()),
        Some(name) => {
            let message = format!("{EXTRA_ARGS} must not hold {name:?}: only the host hands KV blocks on");
            Err(ApiError::bad_request(Some(EXTRA_ARGS), "forbidden_parameter", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::members::MEMBERS_AT_MOST;

    #[test]
    fn no_handle_comes_in_by_the_back_door() {
        let many: String = (0..MEMBERS_AT_MOST).map(|number| format!("\"a{number}\":1,")).collect();
        let many = format!(r#"{{{many}"kv_transfer_params":"x"}}"#);
        for (value, refused) in [
            ("null", false),
            ("{}", false),
            (r#"{"my_processor":1}"#, false),
            (r#"{"note":"kv_transfer_params"}"#, false),
            (r#"{"kv_transfer_params":"x"}"#, true),
            (r#"{"a":1,"kv_transfer_p\u0061rams":null}"#, true),
            (r#"{"ec_transfer_params":1}"#, true),
            (r#"{"a\q":1,"kv_transfer_params":"x"}"#, true),
            (many.as_str(), true),
            ("7", false),
        ] {
            let body = format!(r#"{{"vllm_xargs":{value}}}"#);
            let members = Members::parse(body.as_bytes()).expect("valid");
            assert_eq!(check(&members).is_err(), refused, "{value}");
        }
    }
}
