//! From written to meant: files of certificates and keys. They are read when the host starts, not here.

use std::path::{Path, PathBuf};

use super::errors::Problems;
use super::meant::{Pool, Tls, UpstreamTls};
use super::table::Field;
use super::written::{self, Written};

/// The listener's certificate, if it has one.
pub(super) fn server(path: &Path, written: &written::Server, problems: &mut Problems<'_>) -> Option<Tls> {
    let files = ("tls_cert_file", &written.tls_cert_file, "tls_key_file", &written.tls_key_file);
    pair(path, files, problems)
}

/// What connections to workers are checked by.
pub(super) fn upstream(path: &Path, written: &written::Upstream, problems: &mut Problems<'_>) -> UpstreamTls {
    let files = ("client_cert_file", &written.client_cert_file, "client_key_file", &written.client_key_file);
    UpstreamTls {
        ca_file: file(path, "ca_file", &written.ca_file, problems),
        client: pair(path, files, problems),
    }
}

/// A worker reached over TLS is believed by the authority that signed its certificate: it must be named.
pub(super) fn workers_are_known(
    written: &Written,
    upstream: &UpstreamTls,
    pools: &[Pool],
    problems: &mut Problems<'_>,
) {
    if upstream.ca_file.is_some() {
        return;
    }
    for (written, pool) in written.pools.iter().zip(pools) {
        for (written, worker) in written.workers.iter().zip(&pool.workers) {
            if let Some(field) = written.url.as_ref().filter(|_| worker.url.tls) {
                let what = format!("{} needs to be checked, and [upstream] has no ca_file", worker.url);
                let cure = "add [upstream] with ca_file = \"ca.pem\", the authority that signed the worker's \
                            certificate (the system's own are often in /etc/ssl/certs/ca-certificates.crt)";
                problems.at(field.span(), what, cure);
            }
        }
    }
}

type Files<'a> = (&'a str, &'a Field<String>, &'a str, &'a Field<String>);

/// A certificate and its key: both or neither.
fn pair(path: &Path, files: Files<'_>, problems: &mut Problems<'_>) -> Option<Tls> {
    let (cert_name, cert, key_name, key) = files;
    let (cert_file, key_file) = (file(path, cert_name, cert, problems), file(path, key_name, key, problems));
    let lone = match (cert, key) {
        (Some(cert), None) => Some((cert, cert_name, key_name)),
        (None, Some(key)) => Some((key, key_name, cert_name)),
        _ => None,
    };
    if let Some((field, given, missing)) = lone {
        let what = format!("{given} is of no use without {missing}");
        problems.at(field.span(), what, format!("add {missing}, or take {given} out"));
    }
    Some(Tls { cert_file: cert_file?, key_file: key_file? })
}

/// A file; a relative path starts from the configuration file's folder.
fn file(path: &Path, key: &str, written: &Field<String>, problems: &mut Problems<'_>) -> Option<PathBuf> {
    let field = written.as_ref()?;
    let file = field.get_ref();
    if file.is_empty() || file.chars().any(char::is_control) {
        problems.at(field.span(), format!("{key} is not a path"), format!("write {key} = \"FILE.pem\""));
        return None;
    }
    Some(path.parent().unwrap_or(Path::new("")).join(file))
}
