//! `sluice tenants` and `sluice tenant-key`.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use super::{BAD_INPUT, admin_client, complain, say};
use crate::cli::AdminHost;
use crate::tenants::status::TenantsStatus;
use crate::tenants::{KEY_BYTES_AT_MOST, KeyDigest};
use crate::text_table::TextTable;

/// Shows what the tenants of a running host have.
pub fn list(host: &AdminHost) -> ExitCode {
    let status: TenantsStatus = match admin_client::get(host, "/admin/tenants") {
        Ok(status) => status,
        Err(message) => {
            complain(&message);
            return ExitCode::FAILURE;
        }
    };
    let shown = |figure: Option<String>| figure.unwrap_or_else(|| "-".to_owned());
    let headings = ["tenant", "weight", "in flight", "queued", "at most", "tokens left", "tokens/min"];
    let mut table = TextTable::new(&headings);
    for tenant in status.tenants {
        table.row([
            tenant.name,
            tenant.weight.to_string(),
            tenant.in_flight.to_string(),
            tenant.queued.to_string(),
            shown(tenant.max_in_flight.map(|limit| limit.to_string())),
            shown(tenant.tokens_left.map(|left| left.to_string())),
            shown(tenant.tokens_per_minute.map(|limit| limit.to_string())),
        ]);
    }
    let wait = status.wait_ms.map_or("unmeasured".to_owned(), |ms| format!("{ms} ms"));
    say(&format!(
        "{} of {} in flight, {} of {} queued, wait {wait}\n{table}",
        status.in_flight, status.max_in_flight, status.queued, status.max_queued
    ));
    ExitCode::SUCCESS
}

/// Reads a key and prints the line that makes it a tenant's.
pub fn key() -> ExitCode {
    if std::io::stdin().is_terminal() {
        complain("type the key, then Enter and Ctrl-D");
    }
    let mut text = String::new();
    let limit = KEY_BYTES_AT_MOST as u64 + 2;
    let key = std::io::stdin().take(limit).read_to_string(&mut text).map(|_| text.trim());
    match key {
        Ok(key) if is_key(key) => {
            say(&format!("keys = [\"{}\"]", KeyDigest::of(key.as_bytes())));
            ExitCode::SUCCESS
        }
        _ => {
            complain(&format!(
                "standard input holds no key: 1 to {KEY_BYTES_AT_MOST} visible ASCII characters without spaces\n  cure: \
                 openssl rand -hex 32 | tee search.key | sluice tenant-key"
            ));
            ExitCode::from(BAD_INPUT)
        }
    }
}

/// Whether clients can send it in a header, and the host take it out again as it was.
fn is_key(key: &str) -> bool {
    (1..=KEY_BYTES_AT_MOST).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_a_header_can_carry() {
        for (key, expected) in
            [("sk-1", true), ("", false), ("a b", false), ("schlüssel", false), ("a\nb", false)]
        {
            assert_eq!(is_key(key), expected, "{key:?}");
        }
    }
}
