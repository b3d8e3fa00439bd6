//! Who asks, and what each tenant may have.
//!
//! With keys configured, a caller is whose key it shows; with a trusted header, whom the header names; with neither,
//! every `Authorization` value is a tenant of its own, unchecked. Tenants without a `[[tenant]]` of their own share
//! one account, [`OTHER`], so that nobody gains a share by inventing names.

mod key;
mod salt;
pub mod status;
mod token_use;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName};
use sluice_core::admission::Share;
use sluice_core::token_bucket::TokenBucket;

pub use key::{KEY_BYTES_AT_MOST, KEY_HEADER, KeyDigest, Presented, bearer};
pub use salt::cache_salt;
pub use token_use::TokenUse;

use crate::clock::{Clock, millis};
use crate::config::{self, Secrets};
use crate::http::error::{ApiError, Blame};
use crate::identity;
use crate::request::ClientRequest;
use crate::telemetry::admission::{AdmissionMetrics, Refusal};
use key::KeyRing;

/// What all tenants without a `[[tenant]]` are called together, in metrics and tables.
pub const OTHER: &str = "other";

/// The longest tenant name taken from a header, in bytes: it is kept in memory per session.
const NAME_BYTES_AT_MOST: usize = 128;

/// Where a request says how urgent it is before its body is read; lower is earlier, as in the body's `priority`.
pub const PRIORITY_HEADER: &str = "x-sluice-priority";

/// All tenants.
pub struct Tenants {
    source: Source,
    /// The configured ones in their order, then [`OTHER`].
    accounts: Vec<Account>,
    anonymous: Option<usize>,
    /// `None`: engines get no salts.
    salt_secret: Option<Vec<u8>>,
    clock: Arc<dyn Clock>,
    metrics: Arc<AdmissionMetrics>,
}

enum Source {
    Unchecked,
    Keys(KeyRing),
    /// And the configured tenants by name.
    Header(HeaderName, HashMap<Arc<str>, usize>),
}

/// What one tenant may have and has used.
struct Account {
    name: Arc<str>,
    share: Share,
    priority_min: i32,
    priority_max: i32,
    bucket: Option<Mutex<TokenBucket>>,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Position among the accounts; those of [`OTHER`] share the last.
    pub account: usize,
    /// Its own name, which sessions and salts are kept apart by.
    pub name: Arc<str>,
}

impl Tenants {
    /// The tenants as configured.
    pub fn new(
        config: &config::Tenants,
        secrets: &Secrets,
        clock: &Arc<dyn Clock>,
        metrics: Arc<AdmissionMetrics>,
    ) -> Self {
        let now_ms = millis(clock.elapsed());
        let mut accounts: Vec<_> = config.tenants.iter().map(|tenant| Account::new(tenant, now_ms)).collect();
        let keys = config.tenants.iter().zip(0..);
        let keys = keys.flat_map(|(tenant, account)| tenant.keys.iter().map(move |key| (*key, account)));
        let header = config.header.as_ref().and_then(|name| HeaderName::try_from(name.as_str()).ok());
        let source = match header {
            Some(header) => Source::Header(header, by_name(&accounts)),
            None if config.tenants.is_empty() => Source::Unchecked,
            None => Source::Keys(KeyRing::new(keys)),
        };
        accounts.push(Account::other());
        let salts = config.cache_salt && !matches!(source, Source::Unchecked);
        let position = |name: &String| config.tenants.iter().position(|tenant| tenant.name == *name);
        Self {
            source,
            accounts,
            anonymous: config.anonymous.as_ref().and_then(position),
            salt_secret: salts.then(|| secrets.salt.clone()),
            clock: clock.clone(),
            metrics,
        }
    }

    /// Names for metrics, in the order of the accounts.
    pub fn names(config: &config::Tenants) -> Vec<String> {
        config.tenants.iter().map(|tenant| tenant.name.clone()).chain([OTHER.to_owned()]).collect()
    }

    /// What each account may have of the places.
    pub fn shares(&self) -> impl Iterator<Item = Share> + '_ {
        self.accounts.iter().map(|account| account.share)
    }

    /// Whether a caller's `Authorization` is for this host, so that engines must not see it.
    pub fn takes_keys(&self) -> bool {
        matches!(self.source, Source::Keys(_))
    }

    /// How many requests at a time a caller's account may have, if that is limited.
    pub fn max_in_flight(&self, caller: &Caller) -> Option<usize> {
        self.accounts[caller.account].share.in_flight_at_most
    }

    /// Who asks, or why nobody may.
    pub fn identify(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let identified = match &self.source {
            Source::Unchecked => {
                return Ok(Caller { account: self.other(), name: identity::tenant(headers).into() });
            }
            Source::Keys(keys) => self.by_key(keys, headers),
            Source::Header(header, names) => self.by_header(header, names, headers),
        };
        identified.inspect_err(|_| self.metrics.refused_unknown())
    }

    fn by_key(&self, keys: &KeyRing, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let account = match key::presented(headers) {
            Presented::Key(key) => keys.owner(key).ok_or("the API key is not known here"),
            Presented::Unreadable => Err("Authorization must stand once and read: Bearer KEY"),
            Presented::Nothing => {
                self.anonymous.ok_or("there is no API key: send Authorization: Bearer KEY, or x-api-key: KEY")
            }
        };
        account.map(|account| self.caller(account)).map_err(unauthorized)
    }

    fn by_header(
        &self,
        header: &HeaderName,
        names: &HashMap<Arc<str>, usize>,
        headers: &HeaderMap,
    ) -> Result<Caller, ApiError> {
        let mut values = headers.get_all(header).iter();
        let Some(value) = values.next() else {
            let missing = || unauthorized(&format!("the header {header} is missing, which names the tenant"));
            return self.anonymous.map(|account| self.caller(account)).ok_or_else(missing);
        };
        let visible = |byte: &u8| byte.is_ascii_graphic();
        let name = value.to_str().ok().filter(|name| {
            (1..=NAME_BYTES_AT_MOST).contains(&name.len()) && name.as_bytes().iter().all(visible)
        });
        let (Some(name), None) = (name, values.next()) else {
            let message = format!(
                "{header} must stand once and name a tenant in 1 to {NAME_BYTES_AT_MOST} visible ASCII characters without spaces"
            );
            return Err(ApiError::bad_request(None, "invalid_value", message));
        };
        Ok(match names.get(name) {
            Some(account) => self.caller(*account),
            None => Caller { account: self.other(), name: name.into() },
        })
    }

    /// How urgent a request is before its body is read; higher is more urgent.
    pub fn urgency(&self, caller: &Caller, headers: &HeaderMap) -> Result<i32, ApiError> {
        let written = match headers.get(PRIORITY_HEADER) {
            None => 0,
            Some(value) => {
                value.to_str().ok().and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
                    let message =
                        format!("{PRIORITY_HEADER} must be a whole number of 32 bits; lower is earlier");
                    ApiError::bad_request(None, "invalid_value", message)
                })?
            }
        };
        let clamped = self.accounts[caller.account].clamped(written);
        // Those that the configuration does not name share one account: none of them comes before the others by its own
        // word.
        let clamped = if caller.account == self.other() { clamped.max(0) } else { clamped };
        Ok(clamped.saturating_neg())
    }

    /// Sets what only the host may say of a request to engines: the tenant's salt, and a priority in its bounds.
    /// Returns how urgent the request is to policies; higher is more urgent.
    pub fn mark(&self, caller: &Caller, urgency: i32, request: &mut ClientRequest<'_>) -> i32 {
        let written = request.priority;
        let marks: Vec<_> = self.marks(caller, &request.model, written).collect();
        for (name, json) in marks {
            request.set_by_host(name, json);
        }
        let clamped = self.accounts[caller.account].clamped(written.unwrap_or(0));
        written.map_or(urgency, |_| clamped.saturating_neg())
    }

    /// What keeps the caller's cached prefixes apart from others', where engines get salts.
    pub fn salt(&self, caller: &Caller, model: &str) -> Option<String> {
        self.salt_secret.as_ref().map(|secret| cache_salt(secret, &caller.name, model))
    }

    /// The members, as raw JSON, that only the host may set on what it sends to engines.
    pub fn marks(
        &self,
        caller: &Caller,
        model: &str,
        priority: Option<i32>,
    ) -> impl Iterator<Item = (&'static str, String)> {
        let salt = self.salt(caller, model);
        let written = priority.unwrap_or(0);
        let clamped = self.accounts[caller.account].clamped(written);
        // Engines without priority scheduling refuse any priority but 0: none is sent where none was asked for.
        let priority = (clamped != written).then(|| ("priority", clamped.to_string()));
        salt.map(|salt| ("cache_salt", format!("\"{salt}\""))).into_iter().chain(priority)
    }

    fn caller(&self, account: usize) -> Caller {
        Caller { account, name: self.accounts[account].name.clone() }
    }

    fn other(&self) -> usize {
        self.accounts.len() - 1
    }
}

impl Account {
    fn new(config: &config::Tenant, now_ms: u64) -> Self {
        let bucket = config.tokens_per_minute.map(|tokens| Mutex::new(TokenBucket::full(tokens, now_ms)));
        Self {
            name: config.name.as_str().into(),
            share: Share { weight: config.weight, in_flight_at_most: config.max_in_flight },
            priority_min: config.priority_min.unwrap_or(i32::MIN),
            priority_max: config.priority_max.unwrap_or(i32::MAX),
            bucket,
        }
    }

    fn other() -> Self {
        let share = Share { weight: 1, in_flight_at_most: None };
        Self { name: OTHER.into(), share, priority_min: i32::MIN, priority_max: i32::MAX, bucket: None }
    }

    fn clamped(&self, priority: i32) -> i32 {
        priority.clamp(self.priority_min, self.priority_max)
    }

    fn bucket(&self) -> Option<MutexGuard<'_, TokenBucket>> {
        self.bucket.as_ref().map(|bucket| bucket.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn by_name(accounts: &[Account]) -> HashMap<Arc<str>, usize> {
    accounts.iter().zip(0..).map(|(account, position)| (account.name.clone(), position)).collect()
}

fn unauthorized(what: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, Blame::Client, "invalid_api_key", what)
}

#[cfg(test)]
mod tests;
