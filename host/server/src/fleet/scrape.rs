//! Reading vLLM's `/metrics`: the few figures that routing needs, by the names vLLM 0.32 gives them.

use serde::Serialize;

/// What one scrape says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineMetrics {
    /// `vllm:num_requests_running`, summed over engines of one server.
    pub running: u32,
    /// `vllm:num_requests_waiting`, summed.
    pub waiting: u32,
    /// `vllm:kv_cache_usage_perc`, 0..1, mean over engines.
    pub kv_usage: f64,
    /// `num_gpu_blocks` of `vllm:cache_config_info`, summed.
    pub kv_blocks: u32,
    /// `block_size` of `vllm:cache_config_info`.
    pub block_tokens: Option<u32>,
    /// `enable_prefix_caching` of `vllm:cache_config_info`.
    pub caches_prefixes: Option<bool>,
    /// Totals since the engine started.
    pub totals: Totals,
    /// `process_start_time_seconds`, which every Python server tells that has one process for all metrics: no two of its lives
    /// have the same.
    pub started_s: Option<f64>,
    /// Whether it counts prompt tokens by source at all.
    pub counts_sources: bool,
    /// Whether it counts NIXL's transfers: it then has the connector.
    pub has_nixl: bool,
}

/// Totals that only grow while an engine lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Totals {
    /// `vllm:nixl_bytes_transferred_sum`.
    pub transferred_bytes: f64,
    /// `vllm:nixl_xfer_time_seconds_sum`.
    pub transfer_seconds: f64,
    /// `vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}`.
    pub external_prompt_tokens: f64,
}

/// When the engine's process started, in seconds since the epoch.
const STARTED: &str = "process_start_time_seconds";

/// Start times of one life differ by less than that, in seconds: written down and read again, a float's last digit may be another.
/// Those of two lives differ by the start of a process.
const ONE_LIFE_WITHIN_S: f64 = 0.001;

/// Whether these start times, in seconds since the epoch, are of two lives.
pub fn is_another_life(before_s: f64, now_s: f64) -> bool {
    (before_s - now_s).abs() >= ONE_LIFE_WITHIN_S
}

/// Why a scrape is unusable.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("/metrics has no vllm:num_requests_running: is this a vLLM server?")]
pub struct NotVllm;

/// Reads the text exposition. Lines of other metrics, and lines that are broken, are passed over.
pub fn parse(text: &str) -> Result<EngineMetrics, NotVllm> {
    let mut metrics = EngineMetrics::default();
    let mut engines = 0_u32;
    let mut usage_sum = 0.0;
    for line in text.lines().filter(|line| line.starts_with("vllm:") || line.starts_with(STARTED)) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let Ok(value) = value.parse::<f64>() else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        match name {
            "vllm:num_requests_running" => {
                engines += 1;
                metrics.running = metrics.running.saturating_add(value as u32);
            }
            "vllm:num_requests_waiting" => metrics.waiting = metrics.waiting.saturating_add(value as u32),
            "vllm:kv_cache_usage_perc" => usage_sum += value.clamp(0.0, 1.0),
            "vllm:cache_config_info" => {
                let number = |name| label(labels, name).and_then(|text| text.parse::<u32>().ok());
                metrics.kv_blocks = metrics.kv_blocks.saturating_add(number("num_gpu_blocks").unwrap_or(0));
                metrics.block_tokens = number("block_size").or(metrics.block_tokens);
                metrics.caches_prefixes = label(labels, "enable_prefix_caching").map(|told| told == "True");
            }
            STARTED => metrics.started_s = Some(value),
            "vllm:nixl_bytes_transferred_sum" => {
                metrics.has_nixl = true;
                metrics.totals.transferred_bytes += value;
            }
            "vllm:nixl_xfer_time_seconds_sum" => metrics.totals.transfer_seconds += value,
            "vllm:prompt_tokens_by_source_total"
                if label(labels, "source") == Some("external_kv_transfer") =>
            {
                metrics.counts_sources = true;
                metrics.totals.external_prompt_tokens += value;
            }
            _ => {}
        }
    }
    if engines == 0 {
        return Err(NotVllm);
    }
    metrics.kv_usage = usage_sum / f64::from(engines);
    Ok(metrics)
}

/// A label's value. vLLM's own label values hold no quotes or commas.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    labels.trim_end_matches('}').split(',').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        (key == name).then(|| value.trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"process_start_time_seconds 1.79597359438e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:cache_config_info{block_size="32",cache_dtype="auto",enable_prefix_caching="True",engine="0",num_gpu_blocks="1024",sliding_window="None"} 1.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="tiny"} 1.540096e+06
vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="tiny"} 0.058935
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 189.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external_kv_transfer"} 1267.0
broken line
vllm:num_requests_running
"#;

    #[test]
    fn vllms_figures_are_read() {
        assert_eq!(
            parse(TEXT),
            Ok(EngineMetrics {
                running: 3,
                waiting: 2,
                kv_usage: 0.25,
                kv_blocks: 1024,
                block_tokens: Some(32),
                caches_prefixes: Some(true),
                totals: Totals {
                    transferred_bytes: 1_540_096.0,
                    transfer_seconds: 0.058_935,
                    external_prompt_tokens: 1_267.0,
                },
                started_s: Some(1_795_973_594.38),
                counts_sources: true,
                has_nixl: true,
            })
        );
    }

    #[test]
    fn a_life_is_the_same_after_it_was_written_down() {
        let read = |started_s: f64| -> f64 {
            let text = serde_json::to_string(&started_s).expect("a number");
            serde_json::from_str(&text).expect("a number")
        };
        for number in 0..10_000 {
            let started_s = 1_796_047_000.0 + f64::from(number) * 0.013_700_1;
            assert!(!is_another_life(started_s, read(started_s)), "{started_s}");
            assert!(
                is_another_life(started_s, started_s + 0.01) && is_another_life(started_s, started_s - 0.01)
            );
        }
    }

    #[test]
    fn data_parallel_engines_are_summed() {
        let two = TEXT.to_owned() + &TEXT.replace("engine=\"0\"", "engine=\"1\"");
        let metrics = parse(&two).expect("vLLM");
        assert_eq!((metrics.running, metrics.kv_blocks, metrics.kv_usage), (6, 2_048, 0.25));
    }

    #[test]
    fn other_servers_are_told_apart() {
        assert_eq!(parse("go_goroutines 12\n"), Err(NotVllm));
        assert_eq!(parse(""), Err(NotVllm));
    }
}
