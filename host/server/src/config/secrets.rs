//! Secrets, which stand in files of their own so that the configuration can be shown and kept.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};

use super::errors::ConfigError;
use super::in_use;
use super::meant::Config;
use crate::tenants::KeyDigest;

/// The longest secret taken, in bytes: any key or token in use is far shorter.
const MAX_SECRET_BYTES: u64 = 4_096;

/// The shortest admin token, in bytes: who reaches the port may try as many as the network carries.
const MIN_TOKEN_BYTES: usize = 16;

/// What the secret files hold. Never shown.
#[derive(Clone, Default)]
pub struct Secrets {
    /// Of `[tenants] salt_secret_file`; empty without one.
    pub salt: Vec<u8>,
    /// Of `[server] admin_token_file`, by digest only; `None` without one.
    pub admin_token: Option<KeyDigest>,
    /// `Authorization` values for the engines, by pool name.
    pub engine_keys: HashMap<String, HeaderValue>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secrets(..)")
    }
}

impl Secrets {
    /// Reads the files that a configuration names.
    pub fn read(config: &Config) -> Result<Self, ConfigError> {
        let told = |table: &str, key: &str, whose: &str, path: &Path, what: String| {
            let what = format!("{key}{whose}: {} {what}", path.display());
            let cure = "put the secret on the file's only line, and let this user read the file";
            in_use(config, table, key, what, cure.to_owned())
        };
        let mut secrets = Self::default();
        if let Some(path) = &config.tenants.salt_secret_file {
            let read = secret(path).map_err(|what| told("tenants", "salt_secret_file", "", path, what));
            secrets.salt = read?.into_bytes();
        }
        if let Some(path) = &config.server.admin_token_file {
            let token = admin_token(path).map_err(|what| told("server", "admin_token_file", "", path, what));
            secrets.admin_token = Some(KeyDigest::of(token?.as_bytes()));
        }
        for pool in &config.pools {
            let Some(path) = &pool.engine_api_key_file else { continue };
            let whose = format!(" of pool {:?}", pool.name);
            let value = secret(path).and_then(|key| {
                let value = HeaderValue::try_from(format!("Bearer {key}"));
                value.map_err(|_| "holds what cannot stand in a header".to_owned())
            });
            let mut value = value.map_err(|what| told("pool", "engine_api_key_file", &whose, path, what))?;
            value.set_sensitive(true);
            secrets.engine_keys.insert(pool.name.clone(), value);
        }
        Ok(secrets)
    }

    /// Headers of requests that are Sluice's own to a pool's engines: their key, if they ask for one.
    pub fn own_headers(&self, pool: &str) -> HeaderMap {
        own_headers(self.engine_keys.get(pool))
    }
}

/// The same, of a key.
pub fn own_headers(engine_key: Option<&HeaderValue>) -> HeaderMap {
    engine_key.iter().map(|key| (AUTHORIZATION, (*key).clone())).collect()
}

/// The admin token in a file.
fn admin_token(path: &Path) -> Result<String, String> {
    let token = secret(path)?;
    if token.len() < MIN_TOKEN_BYTES {
        return Err(format!("is shorter than {MIN_TOKEN_BYTES} bytes; openssl rand -hex 32 makes one"));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("holds what cannot stand in a header".to_owned());
    }
    Ok(token)
}

/// A file's only line. The error says what is wrong, never what stands there.
pub fn secret(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let read = file.take(MAX_SECRET_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > MAX_SECRET_BYTES {
        return Err(format!("is longer than {MAX_SECRET_BYTES} bytes"));
    }
    let secret = text.trim();
    if secret.is_empty() {
        return Err("is empty".to_owned());
    }
    if secret.contains(['\n', '\r']) {
        return Err("has more than one line".to_owned());
    }
    Ok(secret.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_a_files_only_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        for (text, expected) in [
            ("s3cret\n", Ok("s3cret")),
            ("  s3cret", Ok("s3cret")),
            ("", Err("is empty")),
            (" \n", Err("is empty")),
            ("one\ntwo\n", Err("has more than one line")),
        ] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(secret(&path), expected.map(str::to_owned).map_err(str::to_owned), "{text:?}");
        }
        std::fs::write(&path, "x".repeat(5_000)).expect("written");
        assert_eq!(secret(&path), Err("is longer than 4096 bytes".to_owned()));
        assert!(secret(&folder.path().join("absent")).is_err_and(|what| what.starts_with("cannot be read")));
    }
}
