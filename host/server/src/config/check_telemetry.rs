//! From written to meant: what the host tells of its requests.

use super::check;
use super::errors::Problems;
use super::limits;
use super::meant::{SampleRatio, Telemetry};
use super::table::Field;
use super::url::{UrlError, WorkerUrl};
use super::written;

/// What a written `[telemetry]` means.
pub(super) fn telemetry(written: &written::Telemetry, problems: &mut Problems<'_>) -> Telemetry {
    Telemetry {
        access_log: written.access_log.as_ref().is_some_and(|field| *field.get_ref()),
        otlp_endpoint: collector(&written.otlp_endpoint, problems),
        service_name: service_name(&written.service_name, problems),
        sample_ratio: sample_ratio(&written.sample_ratio, problems),
    }
}

fn collector(written: &Field<String>, problems: &mut Problems<'_>) -> Option<WorkerUrl> {
    let field = written.as_ref()?;
    let why = match WorkerUrl::parse(field.get_ref()) {
        Ok(url) if !url.tls => return Some(url),
        Ok(_) => "https to a collector is not in this version".to_owned(),
        Err(error) => why(&error),
    };
    let cure = "write it like \"http://127.0.0.1:4318\": spans go to /v1/traces there, without TLS";
    problems.at(field.span(), format!("otlp_endpoint is no address of a collector: {why}"), cure);
    None
}

/// What is said of workers' addresses, in words that fit a collector's.
fn why(error: &UrlError) -> String {
    match error {
        UrlError::Path { .. } => "it has a path".to_owned(),
        other => other.to_string(),
    }
}

fn service_name(written: &Field<String>, problems: &mut Problems<'_>) -> String {
    let Some(field) = written else { return limits::SERVICE_NAME.to_owned() };
    check::name("service", field, problems);
    field.get_ref().clone()
}

fn sample_ratio(written: &Field<f64>, problems: &mut Problems<'_>) -> SampleRatio {
    let Some(field) = written else { return SampleRatio::ALL };
    let ratio = *field.get_ref();
    if !(0.0..=1.0).contains(&ratio) {
        let cure = "write a number from 0.0 (none) to 1.0 (each request)";
        problems.at(field.span(), "sample_ratio is not a share", cure);
        return SampleRatio::ALL;
    }
    SampleRatio { per_million: (ratio * f64::from(SampleRatio::ALL.per_million)).round() as u32 }
}
