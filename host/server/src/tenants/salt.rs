//! Cache salts: engines share cached prefixes only among requests of one salt, so that no tenant can find out, by
//! timing, what another one asked.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// Keeps these digests apart from any other use of the same secret.
const DOMAIN: &[u8] = b"sluice cache_salt v1";

/// The salt of a tenant's requests to a model: 64 hexadecimal digits. Each field goes in behind its length, so that
/// no two triples read alike.
pub fn cache_salt(secret: &[u8], tenant: &str, model: &str) -> String {
    let mut hash = Sha256::new();
    for field in [DOMAIN, secret, tenant.as_bytes(), model.as_bytes()] {
        hash.update((field.len() as u64).to_le_bytes());
        hash.update(field);
    }
    let digest = hash.finalize();
    digest.iter().fold(String::with_capacity(64), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_field_counts_and_none_runs_into_the_next() {
        let cases = [
            ("", "ab", "c"),
            ("", "a", "bc"),
            ("", "abc", ""),
            ("", "", "abc"),
            ("a", "b", "c"),
            ("ab", "", "c"),
            ("s", "ab", "c"),
            ("", "ab\0", "c"),
            ("", "ab", "\0c"),
        ];
        let mut seen = BTreeMap::new();
        for case @ (secret, tenant, model) in cases {
            let salt = cache_salt(secret.as_bytes(), tenant, model);
            assert!(salt.len() == 64 && salt.bytes().all(|byte| byte.is_ascii_hexdigit()), "{salt}");
            assert_eq!(seen.insert(salt.clone(), case), None, "{case:?}");
            assert_eq!(cache_salt(secret.as_bytes(), tenant, model), salt, "the same every time");
        }
    }

    /// The bytes that go in, written out: hosts of different versions must agree, or caches are cold after an upgrade.
    #[test]
    fn the_form_is_fixed() {
        let mut bytes = Vec::new();
        for (length, field) in [(20_u64, "sluice cache_salt v1"), (2, "pw"), (6, "search"), (5, "llama")] {
            bytes.extend(length.to_le_bytes());
            bytes.extend(field.bytes());
        }
        let expected: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(cache_salt(b"pw", "search", "llama"), expected);
    }
}
