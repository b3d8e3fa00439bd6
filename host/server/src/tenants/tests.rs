use std::time::Duration;

use bytes::Bytes;
use hyper::header::{AUTHORIZATION, HeaderMap};
use prometheus_client::registry::Registry;

use super::*;
use crate::config::Tenant;
use crate::request::Endpoint;

struct Still;

impl Clock for Still {
    fn wall_ms(&self) -> u64 {
        0
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

fn tenant(name: &str) -> Tenant {
    Tenant {
        name: name.to_owned(),
        keys: vec![KeyDigest::of(format!("sk-{name}").as_bytes())],
        weight: 1,
        max_in_flight: None,
        tokens_per_minute: None,
        priority_min: None,
        priority_max: None,
    }
}

fn config(names: &[&str]) -> config::Tenants {
    config::Tenants {
        header: None,
        anonymous: None,
        cache_salt: true,
        salt_secret_file: None,
        tenants: names.iter().map(|name| tenant(name)).collect(),
    }
}

fn tenants(config: &config::Tenants) -> Arc<Tenants> {
    let metrics = AdmissionMetrics::register(&mut Registry::default(), &Tenants::names(config));
    let clock: Arc<dyn Clock> = Arc::new(Still);
    Arc::new(Tenants::new(config, &Secrets::default(), &clock, Arc::new(metrics)))
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, value.parse().expect("a value"));
    }
    headers
}

/// Name, account, or the error's status and code.
fn who(tenants: &Tenants, pairs: &[(&'static str, &str)]) -> Result<(String, usize), (u16, &'static str)> {
    let caller = tenants.identify(&headers(pairs));
    caller
        .map(|caller| (caller.name.to_string(), caller.account))
        .map_err(|error| (error.status.as_u16(), error.code))
}

fn is(name: &str, account: usize) -> Result<(String, usize), (u16, &'static str)> {
    Ok((name.to_owned(), account))
}

const UNKNOWN: Result<(String, usize), (u16, &str)> = Err((401, "invalid_api_key"));

#[test]
fn keys_say_who_asks() {
    let config = config(&["search", "batch"]);
    let strict = tenants(&config);
    let open = tenants(&config::Tenants { anonymous: Some("batch".to_owned()), ..config });
    for (pairs, expected, expected_if_open) in [
        (&[("authorization", "Bearer sk-search")][..], is("search", 0), is("search", 0)),
        (&[("authorization", "Bearer sk-batch")], is("batch", 1), is("batch", 1)),
        (&[("authorization", "Bearer sk-other")], UNKNOWN, UNKNOWN),
        (&[("authorization", "sk-search")], UNKNOWN, UNKNOWN),
        (&[("x-tenant", "search")], UNKNOWN, is("batch", 1)),
        (&[], UNKNOWN, is("batch", 1)),
    ] {
        assert_eq!(who(&strict, pairs), expected, "{pairs:?}");
        assert_eq!(who(&open, pairs), expected_if_open, "{pairs:?}, anonymous let in");
    }
    assert!(strict.takes_keys());
}

#[test]
fn a_trusted_header_names_the_tenant() {
    let config = config::Tenants { header: Some("x-tenant".to_owned()), ..config(&["search"]) };
    let strict = tenants(&config);
    let open = tenants(&config::Tenants { anonymous: Some("search".to_owned()), ..config });
    let long = "n".repeat(NAME_BYTES_AT_MOST + 1);
    let bad = Err((400, "invalid_value"));
    for (pairs, expected, expected_if_open) in [
        (&[("x-tenant", "search")][..], is("search", 0), is("search", 0)),
        (&[("x-tenant", "new/one")], is("new/one", 1), is("new/one", 1)),
        (&[("x-tenant", "")], bad.clone(), bad.clone()),
        (&[("x-tenant", "a b")], bad.clone(), bad.clone()),
        (&[("x-tenant", &long)], bad.clone(), bad.clone()),
        (&[("x-tenant", "a"), ("x-tenant", "b")], bad.clone(), bad.clone()),
        (&[("authorization", "Bearer sk-search")], UNKNOWN, is("search", 0)),
    ] {
        assert_eq!(who(&strict, pairs), expected, "{pairs:?}");
        assert_eq!(who(&open, pairs), expected_if_open, "{pairs:?}, anonymous let in");
    }
    assert!(!strict.takes_keys());
}

#[test]
fn without_configuration_every_key_is_a_tenant_in_one_account() {
    let tenants = tenants(&config(&[]));
    let caller = |key: &str| {
        let caller = tenants.identify(&headers(&[(AUTHORIZATION.as_str(), key)])).expect("everybody may");
        (caller.account, caller.name)
    };
    let (one, other) = (caller("Bearer one"), caller("Bearer other"));
    assert_eq!((one.0, other.0), (0, 0));
    assert_ne!(one.1, other.1);
    assert_eq!(who(&tenants, &[]), is("anonymous", 0));
}

fn sent(tenants: &Tenants, caller: &Caller, urgency: i32, extra: &str) -> (i32, serde_json::Value) {
    let body = format!(r#"{{"model":"m","prompt":"x"{extra}}}"#);
    let body = Bytes::from(body);
    let mut request = ClientRequest::parse(Endpoint::Completions, &HeaderMap::new(), &body).expect("valid");
    let priority = tenants.mark(caller, urgency, &mut request);
    (priority, serde_json::from_slice(&request.body(None).joined()).expect("JSON"))
}

#[test]
fn priorities_are_moved_into_the_tenants_bounds() {
    let mut config = config(&["search", "free"]);
    (config.tenants[0].priority_min, config.tenants[0].priority_max) = (Some(1), Some(5));
    let tenants = tenants(&config);
    let (bounded, free) = (tenants.caller(0), tenants.caller(1));
    // Body; what engines get; what policies get, to whom higher is more urgent. The header said 3.
    for (caller, extra, engine, policy) in [
        (&bounded, r#","priority":3"#, serde_json::json!(3), -3),
        (&bounded, r#","priority":-9"#, serde_json::json!(1), -1),
        (&bounded, r#","priority":99999999999"#, serde_json::json!(5), -5),
        (&bounded, "", serde_json::json!(1), -3),
        (&free, r#","priority":-9"#, serde_json::json!(-9), 9),
        (&free, "", serde_json::Value::Null, -3),
        (&free, r#","priority":0"#, serde_json::json!(0), 0),
    ] {
        let (to_policy, body) = sent(&tenants, caller, -3, extra);
        assert_eq!((&body["priority"], to_policy), (&engine, policy), "{extra:?}");
    }
    for (value, expected) in [("3", -3), ("-100", -1), ("100", -5)] {
        assert_eq!(tenants.urgency(&bounded, &headers(&[(PRIORITY_HEADER, value)])), Ok(expected), "{value}");
    }
    assert_eq!(tenants.urgency(&free, &HeaderMap::new()), Ok(0));
    let error = tenants.urgency(&free, &headers(&[(PRIORITY_HEADER, "high")])).expect_err("no number");
    assert_eq!((error.status.as_u16(), error.code), (400, "invalid_value"));
}

#[test]
fn salts_are_the_hosts_and_only_where_there_are_tenants() {
    let config = config(&["search", "batch"]);
    let salted = tenants(&config);
    let salt = |caller: &Caller| sent(&salted, caller, 0, r#","cache_salt":"mine""#).1["cache_salt"].clone();
    let (one, other) = (salt(&salted.caller(0)), salt(&salted.caller(1)));
    assert!(one.as_str().is_some_and(|salt| salt.len() == 64) && one != other, "{one} {other}");
    assert_eq!(one, salt(&salted.caller(0)));
    for unsalted in [
        config::Tenants { cache_salt: false, ..config.clone() },
        config::Tenants { tenants: Vec::new(), ..config },
    ] {
        let unsalted = tenants(&unsalted);
        let (_, body) = sent(&unsalted, &unsalted.caller(0), 0, r#","cache_salt":"mine""#);
        assert_eq!(body.get("cache_salt"), None);
    }
}

#[test]
fn tokens_are_reserved_and_corrected() {
    let mut config = config(&["search"]);
    config.tenants[0].tokens_per_minute = Some(1_000);
    let tenants = tenants(&config);
    let caller = tenants.caller(0);
    let left = || tenants.accounts[0].bucket().map(|mut bucket| bucket.left(0));
    let refused = |prompt, output| {
        let error = TokenUse::reserve(&tenants, &caller, prompt, output).err().expect("too much");
        (error.status.as_u16(), error.code, error.retry_after_ms)
    };
    assert_eq!(refused(1, 1_000), (400, "tokens_above_limit", None));
    let first = TokenUse::reserve(&tenants, &caller, 100, 800).expect("enough");
    assert_eq!(left(), Some(100));
    assert_eq!(refused(50, 100), (429, "rate_limit_exceeded", Some(3_000)));
    first.counted(120, 30);
    drop(first);
    assert_eq!(left(), Some(850), "what was not used comes back");
    let cancelled = TokenUse::reserve(&tenants, &caller, 50, 800).expect("enough");
    cancelled.generated(10);
    drop(cancelled);
    assert_eq!(left(), Some(790), "a client that leaves pays for what it got");
    let failed = TokenUse::reserve(&tenants, &caller, 50, 700).expect("enough");
    failed.void();
    drop(failed);
    assert_eq!(left(), Some(790), "a failure is not charged");
}
