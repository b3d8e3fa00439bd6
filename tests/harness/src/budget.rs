//! Budget lines: how every bench says what was promised and what was measured.

/// One budget, as every bench prints it.
pub fn line(budget: &str, target: &str, measured: &str, is_met: bool) -> String {
    format!(
        "budget {budget}: target {target}, measured {measured}, {}",
        if is_met { "met" } else { "missed" }
    )
}

/// A budget whose other side is not there.
pub fn not_run(budget: &str, target: &str) -> String {
    format!("budget {budget}: target {target}, measured nothing, missed: not run")
}
