//! From written to meant: who the callers are.

use std::path::Path;

use sluice_core::workload::SECRET_HEADERS;
use toml::Spanned;

use super::check::{Seen, file, is_header_name, name, number, optional};
use super::errors::Problems;
use super::limits;
use super::meant::{Tenant, Tenants};
use super::table::Field;
use super::written;
use crate::tenants::KeyDigest;
use crate::tenants::OTHER;

pub(super) fn tenants(path: &Path, written: &written::Tenants, problems: &mut Problems<'_>) -> Tenants {
    let header = header(&written.header, problems);
    if let Some(extra) = written.tenants.get(limits::MAX_TENANTS) {
        let what =
            format!("the file has {} tenants, more than {}", written.tenants.len(), limits::MAX_TENANTS);
        problems.at(extra.span.clone(), what, "run a second host for some of them");
    }
    names(&written.tenants, problems);
    keys(header.is_some(), written, problems);
    anonymous(written, problems);
    let salt_secret_file = file("salt_secret_file", "salt.secret", path, &written.salt_secret_file, problems);
    if let Some(field) = &written.salt_secret_file
        && header.is_none()
        && written.tenants.is_empty()
    {
        let what = "salt_secret_file does nothing: there are no tenants";
        problems.at(field.span(), what, "add a [[tenant]] or a header, or take it out");
    }
    Tenants {
        header,
        anonymous: written.anonymous.as_ref().map(|field| field.get_ref().clone()),
        cache_salt: written.cache_salt.as_ref().is_none_or(|field| *field.get_ref()),
        salt_secret_file,
        tenants: written.tenants.iter().map(|written| tenant(written, problems)).collect(),
    }
}

fn tenant(written: &written::Tenant, problems: &mut Problems<'_>) -> Tenant {
    let tenant = Tenant {
        name: written.name.as_ref().map(|field| field.get_ref().clone()).unwrap_or_default(),
        keys: written.keys.iter().filter_map(|key| KeyDigest::parse(key.get_ref())).collect(),
        weight: number("weight", &written.weight, limits::TENANT_WEIGHT, problems),
        max_in_flight: optional("max_in_flight", &written.max_in_flight, limits::TENANT_IN_FLIGHT, problems),
        tokens_per_minute: optional(
            "tokens_per_minute",
            &written.tokens_per_minute,
            limits::TOKENS_PER_MINUTE,
            problems,
        ),
        priority_min: optional("priority_min", &written.priority_min, limits::PRIORITY, problems),
        priority_max: optional("priority_max", &written.priority_max, limits::PRIORITY, problems),
    };
    if let (Some(min), Some(max), Some(field)) =
        (tenant.priority_min, tenant.priority_max, &written.priority_min)
        && min > max
    {
        let what = format!("priority_min ({min}) is above priority_max ({max})");
        problems.at(field.span(), what, "swap them: engines serve lower numbers earlier");
    }
    tenant
}

fn header(written: &Field<String>, problems: &mut Problems<'_>) -> Option<String> {
    let field = written.as_ref()?;
    let header = field.get_ref().to_ascii_lowercase();
    if !is_header_name(&header) {
        let what = format!("{:?} is no header name", field.get_ref());
        problems.at(field.span(), what, "write letters, digits and -, such as \"x-tenant\"");
    } else if SECRET_HEADERS.contains(&header.as_str()) {
        let what = format!("the header {header:?} holds a secret, not a tenant's name");
        let cure = "name the header that your gateway sets, or give each [[tenant]] its keys instead";
        problems.at(field.span(), what, cure);
    }
    Some(header)
}

fn names(written: &[written::Tenant], problems: &mut Problems<'_>) {
    let mut seen = Seen::default();
    for field in written.iter().filter_map(|tenant| tenant.name.as_ref()) {
        name("tenant", field, problems);
        if field.get_ref() == OTHER {
            let what = format!("{OTHER:?} is what all tenants without a [[tenant]] are called together");
            problems.at(field.span(), what, "give the tenant another name");
        }
        if let Some(first) = seen.line_of_first(field.get_ref(), field, problems) {
            let what = format!("tenant {:?} is named twice (first on line {first})", field.get_ref());
            problems.at(
                field.span(),
                what,
                "give each tenant its own name, and all its keys to one [[tenant]]",
            );
        }
    }
}

/// Messages about keys stand at the tenant's own line: what is no digest may be a key.
fn keys(by_header: bool, written: &written::Tenants, problems: &mut Problems<'_>) {
    let mut seen = Seen::default();
    let count: usize = written.tenants.iter().map(|tenant| tenant.keys.len()).sum();
    if let Some(last) = written.tenants.last()
        && count > limits::MAX_TENANT_KEYS
    {
        let what = format!("the tenants have {count} keys, more than {}", limits::MAX_TENANT_KEYS);
        problems.at(last.span.clone(), what, "take out keys that are used no more");
    }
    for tenant in &written.tenants {
        let title = title(tenant);
        let is_anonymous =
            tenant.name.as_ref().map(Spanned::get_ref) == written.anonymous.as_ref().map(Spanned::get_ref);
        if by_header && !tenant.keys.is_empty() {
            let what = format!("{title} has keys, but [tenants] header says who asks");
            problems.at(tenant.span.clone(), what, "take the keys out, or the header");
        }
        if !by_header && tenant.keys.is_empty() && !is_anonymous {
            let what = format!("{title} has no keys, so nobody can be it");
            problems.at(tenant.span.clone(), what, "make one: sluice tenant-key prints the line to add");
        }
        for (number, key) in (1..).zip(&tenant.keys) {
            if KeyDigest::parse(key.get_ref()).is_none() {
                let what = format!("key {number} of {title} is no SHA-256 digest in hexadecimal (64 digits)");
                let cure = "keys are not stored: pass the key to sluice tenant-key and paste the line that it prints";
                problems.at(tenant.span.clone(), what, cure);
            } else if let Some(first) = seen.line_of_first(&key.get_ref().to_ascii_lowercase(), key, problems)
            {
                let what = format!("key {number} of {title} stands twice (first on line {first})");
                problems.at(tenant.span.clone(), what, "a key belongs to one tenant: take one of them out");
            }
        }
    }
}

fn anonymous(written: &written::Tenants, problems: &mut Problems<'_>) {
    let names = || written.tenants.iter().filter_map(|tenant| tenant.name.as_ref());
    if let Some(field) = &written.anonymous
        && names().all(|name| name.get_ref() != field.get_ref())
    {
        let what = format!("anonymous names the tenant {:?}, which is not there", field.get_ref());
        problems.at(field.span(), what, format!("add a [[tenant]] with name = {:?}", field.get_ref()));
    }
}

fn title(tenant: &written::Tenant) -> String {
    match &tenant.name {
        Some(field) => format!("tenant {:?}", field.get_ref()),
        None => "this [[tenant]]".to_owned(),
    }
}
