//! What the host says it decided: the `x-sluice-decision` header.

/// Asks for the decision, and carries it.
pub const DECISION_HEADER: &str = "x-sluice-decision";

/// One decision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Name of the policy in charge.
    pub policy: String,
    /// The request's workload.
    pub workload: String,
    /// As the policy says.
    pub version: String,
    /// Number of the policy set that the request was served with.
    pub generation: u64,
    /// `policy`, or why the host's default decided.
    pub source: String,
    /// `unified` or `disaggregated`.
    pub placement: String,
    /// Worker that prefilled.
    pub prefill: String,
    /// Worker that decoded.
    pub decode: String,
    /// In the policy's words.
    pub reason: String,
}

impl Decision {
    /// Reads the header; `None` when it has not the form.
    pub fn parse(header: &str) -> Option<Self> {
        let mut decision = Self::default();
        let mut generation = None;
        for part in header.split("; ") {
            let (key, value) = part.split_once('=')?;
            let value = value.to_owned();
            match key {
                "policy" => decision.policy = value,
                "workload" => decision.workload = value,
                "version" => decision.version = value,
                "generation" => generation = value.parse().ok(),
                "source" => decision.source = value,
                "placement" => decision.placement = value,
                "prefill" => decision.prefill = value,
                "decode" => decision.decode = value,
                "reason" => decision.reason = value,
                _ => {}
            }
        }
        Some(Self { generation: generation?, ..decision })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_read() {
        let header = "policy=active; version=0.1.0; generation=7; source=policy; placement=disaggregated; prefill=p; decode=d; reason=their turn";
        let decision = Decision::parse(header).expect("a decision");
        assert_eq!(
            (decision.generation, decision.prefill.as_str(), decision.reason.as_str()),
            (7, "p", "their turn")
        );
        assert_eq!(Decision::parse("policy=active"), None);
        assert_eq!(Decision::parse(""), None);
    }
}
