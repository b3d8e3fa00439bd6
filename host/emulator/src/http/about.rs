//! What an engine tells about itself.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::json as value;

use super::{Answer, App, Body, full, json};
use crate::client::Command;
use crate::metrics;

/// 200 while the engine lives.
pub(super) async fn health(app: &App) -> Response<Body> {
    let status = match app.engine.ask(Command::Report).await {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut response = full(status, "application/json", Bytes::new());
    response.headers_mut().remove(CONTENT_TYPE);
    response
}

pub(super) fn version(app: &App) -> Answer {
    json(StatusCode::OK, &value!({"version": app.config.wire.version()}))
}

pub(super) async fn load(app: &App) -> Answer {
    let occupancy = app.engine.ask(Command::Report).await?.occupancy;
    let load = occupancy.running + occupancy.waiting + occupancy.loading;
    json(StatusCode::OK, &value!({"server_load": load}))
}

#[derive(Debug, Serialize)]
struct Models<'a> {
    object: &'static str,
    data: [ServedModel<'a>; 1],
}

#[derive(Debug, Serialize)]
struct ServedModel<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: &'a str,
    parent: Option<()>,
    max_model_len: usize,
    permission: [Permission; 1],
}

#[derive(Debug, Serialize)]
struct Permission {
    id: String,
    object: &'static str,
    created: u64,
    allow_create_engine: bool,
    allow_sampling: bool,
    allow_logprobs: bool,
    allow_search_indices: bool,
    allow_view: bool,
    allow_fine_tuning: bool,
    organization: &'static str,
    group: Option<()>,
    is_blocking: bool,
}

pub(super) fn models(app: &App) -> Answer {
    let created = app.clock.unix_s();
    let permission = Permission {
        id: format!("modelperm-{}", app.random_id()),
        object: "model_permission",
        created,
        allow_create_engine: false,
        allow_sampling: true,
        allow_logprobs: true,
        allow_search_indices: false,
        allow_view: true,
        allow_fine_tuning: false,
        organization: "*",
        group: None,
        is_blocking: false,
    };
    let model = ServedModel {
        id: &app.config.model,
        object: "model",
        created,
        owned_by: "sluice-emulator",
        root: &app.config.model,
        parent: None,
        max_model_len: app.config.max_model_len,
        permission: [permission],
    };
    json(StatusCode::OK, &Models { object: "list", data: [model] })
}

pub(super) async fn metrics(app: &App) -> Answer {
    let report = app.engine.ask(Command::Report).await?;
    let text = metrics::render(&report, &app.config, app.clock.started_s());
    Ok(full(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

/// Ours alone: real engines have nothing like it.
pub(super) async fn state(app: &App) -> Answer {
    let report = app.engine.ask(Command::Report).await?;
    let (occupancy, counts) = (report.occupancy, &report.counts);
    json(
        StatusCode::OK,
        &value!({
            "emulator": true,
            "role": app.config.role.name(),
            "engine_id": app.engine_id,
            "http": app.http_addr.to_string(),
            "kv": app.kv_addr.to_string(),
            "blocks": {
                "total": occupancy.blocks.total,
                "free": occupancy.blocks.free,
                "used": occupancy.blocks.used,
                "held": occupancy.held_blocks,
                "cached": occupancy.blocks.cached,
            },
            "holds": {
                "open": occupancy.holds,
                "expired": counts.holds_expired,
                "released_late": counts.late_releases,
            },
            "sequences": {
                "running": occupancy.running,
                "waiting": occupancy.waiting,
                "loading": occupancy.loading,
                "preempted": counts.preemptions,
            },
            "prompts": counts.prompts,
            "prompt_tokens": {
                "computed": counts.prompt_tokens_computed,
                "cached": counts.prompt_tokens_cached,
                "external": counts.prompt_tokens_external,
            },
            "generation_tokens": counts.generation_tokens,
            "kv_bytes": {
                "read": report.transfers.read_bytes.sum() as u64,
                "served": report.transfers.served_bytes,
            },
            "kv_reads": { "done": report.transfers.read_bytes.count(), "failed": report.transfers.failed },
            "kv_link": {
                "attached": report.kv_link.attached,
                "attaches": report.kv_link.attaches,
                "holds": report.kv_link.holds,
                "receives": report.kv_link.receives,
                "named_blocks": report.kv_link.named_blocks,
                "unsent": report.kv_link.unsent,
            },
            "holds_released_elsewhere": report.transfers.released_early,
            "softened_failures": report.softened_failures,
        }),
    )
}
