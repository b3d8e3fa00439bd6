//! `/metrics` under vLLM's names.

use std::fmt::Write;

use sluice_sim::engine::Finish;
use sluice_sim::histogram::Histogram;

use crate::config::{Connector, EmulatorConfig};
use crate::report::Report;

/// Writes all metrics in Prometheus' text form.
pub(crate) fn render(report: &Report, config: &EmulatorConfig, started_s: f64) -> String {
    let mut page =
        Page { text: String::new(), model: config.model.replace('\\', "\\\\").replace('"', "\\\"") };
    page.started(started_s);
    let (occupancy, counts) = (&report.occupancy, &report.counts);
    // An engine without a connector has none of them.
    if config.connector == Connector::Pull {
        page.histogram("vllm:nixl_xfer_time_seconds", &report.transfers.read_s);
        page.histogram("vllm:nixl_bytes_transferred", &report.transfers.read_bytes);
        page.counter("vllm:nixl_num_failed_transfers_total", report.transfers.failed);
        page.counter("vllm:nixl_num_kv_expired_reqs_total", counts.holds_expired);
        page.counter("vllm:nixl_num_notifications_after_expiry_total", counts.late_releases);
    }

    if config.connector == Connector::Host {
        page.gauge("sluice:kv_link_attached", f64::from(u8::from(report.kv_link.attached)));
        page.gauge("sluice:kv_link_holds", report.kv_link.holds as f64);
        page.gauge("sluice:kv_link_receives", report.kv_link.receives as f64);
        page.gauge("sluice:kv_link_named_blocks", report.kv_link.named_blocks as f64);
        page.counter("sluice:kv_link_unsent_total", report.kv_link.unsent);
        page.histogram("sluice:kv_receive_seconds", &report.transfers.read_s);
        page.histogram("sluice:kv_receive_bytes", &report.transfers.read_bytes);
        page.counter("sluice:kv_receives_failed_total", report.transfers.failed);
    }

    page.gauge("vllm:num_requests_running", occupancy.running as f64);
    page.gauge("vllm:num_requests_waiting", (occupancy.waiting + occupancy.loading) as f64);
    let waiting = [("capacity", occupancy.waiting as f64), ("deferred", occupancy.loading as f64)];
    page.labelled("vllm:num_requests_waiting_by_reason", "gauge", "reason", waiting);
    page.gauge(
        "vllm:kv_cache_usage_perc",
        occupancy.blocks.used as f64 / occupancy.blocks.total.max(1) as f64,
    );

    page.counter("vllm:prefix_cache_queries_total", counts.prefix_queries);
    page.counter("vllm:prefix_cache_hits_total", counts.prefix_hits);
    page.counter("vllm:external_prefix_cache_queries_total", counts.external_queries);
    page.counter("vllm:external_prefix_cache_hits_total", counts.external_hits);
    page.counter("vllm:num_preemptions_total", counts.preemptions);

    let (computed, cached) = (counts.prompt_tokens_computed, counts.prompt_tokens_cached);
    let external = counts.prompt_tokens_external;
    page.counter("vllm:prompt_tokens_total", computed + cached + external);
    let sources =
        [("local_compute", computed), ("local_cache_hit", cached), ("external_kv_transfer", external)];
    let sources = sources.map(|(source, tokens)| (source, tokens as f64));
    page.labelled("vllm:prompt_tokens_by_source_total", "counter", "source", sources);
    page.counter("vllm:prompt_tokens_cached_total", cached + external);
    let sources = [("device", cached as f64), ("p2p", external as f64)];
    page.labelled("vllm:prompt_tokens_cached_by_source_total", "counter", "source", sources);
    page.counter("vllm:generation_tokens_total", counts.generation_tokens);
    let finished = Finish::ALL.map(|reason| (reason.name(), counts.finished[reason as usize] as f64));
    page.labelled("vllm:request_success_total", "counter", "finished_reason", finished);

    page.histogram("vllm:request_prompt_tokens", &counts.request_prompt_tokens);
    page.histogram("vllm:request_generation_tokens", &counts.request_generation_tokens);
    page.histogram("vllm:time_to_first_token_seconds", &counts.first_token_s);
    page.histogram("vllm:inter_token_latency_seconds", &counts.between_tokens_s);
    page.histogram("vllm:e2e_request_latency_seconds", &counts.request_s);
    page.cache_config(config);
    page.text
}

struct Page {
    text: String,
    model: String,
}

impl Page {
    /// What Python servers tell of their process: no two lives of an engine say the same.
    fn started(&mut self, started_s: f64) {
        let name = "process_start_time_seconds";
        self.kind(name, "gauge");
        let _ = writeln!(self.text, "{name} {started_s:?}");
    }

    fn counter(&mut self, name: &str, value: u64) {
        self.kind(name, "counter");
        self.sample(name, "", value as f64);
    }

    fn gauge(&mut self, name: &str, value: f64) {
        self.kind(name, "gauge");
        self.sample(name, "", value);
    }

    fn labelled<const N: usize>(&mut self, name: &str, kind: &str, label: &str, samples: [(&str, f64); N]) {
        self.kind(name, kind);
        for (value, sample) in samples {
            self.sample(name, &format!(",{label}=\"{value}\""), sample);
        }
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram) {
        self.kind(name, "histogram");
        let bucket = format!("{name}_bucket");
        for (bound, count) in histogram.cumulative() {
            self.sample(&bucket, &format!(",le=\"{bound:?}\""), count as f64);
        }
        self.sample(&bucket, ",le=\"+Inf\"", histogram.count() as f64);
        self.sample(&format!("{name}_count"), "", histogram.count() as f64);
        self.sample(&format!("{name}_sum"), "", histogram.sum());
    }

    /// Labels are part of what clients read: `block_size` and `num_gpu_blocks`.
    fn cache_config(&mut self, config: &EmulatorConfig) {
        let name = "vllm:cache_config_info";
        self.kind(name, "gauge");
        let caching = if config.prefix_caching { "True" } else { "False" };
        let (block_size, blocks) = (config.block_tokens, config.blocks);
        let tokens = block_size * blocks;
        // Writing to a string does not fail.
        let _ = writeln!(
            self.text,
            "{name}{{block_size=\"{block_size}\",cache_dtype=\"auto\",enable_prefix_caching=\"{caching}\",\
             engine=\"0\",kv_cache_size_tokens=\"{tokens}\",num_gpu_blocks=\"{blocks}\"}} 1.0"
        );
    }

    fn kind(&mut self, name: &str, kind: &str) {
        let _ = writeln!(self.text, "# HELP {name} Emulated.\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.text, "{name}{{engine=\"0\",model_name=\"{}\"{labels}}} {value:?}", self.model);
    }
}
