use crate::{Facts, Lease, Prefilled, Renewal, Retention, Row, TurnEnd, Verdict};

/// The decisions of one workload. Only [`configure`](Policy::configure) and [`route`](Policy::route) must be
/// written; every other hook leaves its decision to the host.
///
/// Name, version and the sentence about the policy come from its Cargo.toml.
pub trait Policy: Sized + 'static {
    /// JSON Schema of the settings. [`settings!`](crate::settings!) writes it.
    fn settings_schema() -> String {
        crate::settings::NoSettings::schema()
    }

    /// Reads the settings, a JSON object (`{}` where the user gave none). An error refuses the policy and is
    /// shown to the user: name the key, what is wrong with it, and what would be right.
    fn configure(settings: &str) -> Result<Self, String>;

    /// Where a request runs.
    fn route(&self, facts: &Facts) -> Verdict;

    /// Late binding: who decodes what was just prefilled. Asked after a verdict whose decode choice was
    /// [`AfterPrefill`](crate::DecodeChoice::AfterPrefill). `None` lets the host choose.
    fn bind_decode(&self, _facts: &Facts, _prefilled: &Prefilled) -> Option<Row> {
        None
    }

    /// What becomes of the decode worker's KV blocks when a turn ended.
    fn retain(&self, _turn: &TurnEnd) -> Retention {
        Retention::UseDefault
    }

    /// Whether KV blocks kept on a lease stay kept. Asked at each heartbeat of the lease.
    fn heartbeat(&self, _lease: &Lease) -> Renewal {
        Renewal::UseDefault
    }
}
