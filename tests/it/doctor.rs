//! Whether KV really moves, as the host proves it and as `sluice doctor` does: healthy fleets pass, and each thing
//! that goes wrong in the field is found and named with its cure.

use serde_json::{Value, json};
use sluice_harness::process::{Ended, run_to_end};
use sluice_harness::{
    Ask, Canned, Emulator, EmulatorPlan, Fleet, FleetPlan, Host, HostPlan, MockEngine, Mode, until,
};
use sluice_sim::words;
use std::time::Duration;
use tempfile::TempDir;

use crate::certificates::Authority;
use crate::{SOON, nothing_left_booked, right};

/// A pair that hangs is given two legs' time.
const WITH_A_HANGING_PAIR: Duration = Duration::from_secs(50);

/// Engines, and the configuration that names them.
struct Ward {
    plan: HostPlan,
    engines: Vec<Emulator>,
    folder: TempDir,
}

impl Ward {
    /// So many arguments for each: a prefill engine, then decode engines.
    async fn of(arguments: &[&str]) -> Self {
        Self::of_mode(Mode::Pull, arguments).await
    }

    async fn of_mode(mode: Mode, arguments: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let (mut plan, mut engines) = (HostPlan::new(mode), Vec::new());
        for (number, arguments) in arguments.iter().enumerate() {
            let role = if number == 0 { "prefill" } else { "decode" };
            let mut engine = EmulatorPlan::fast(role).with(arguments);
            if let Some(at) = engine.arguments.iter().position(|word| word == "--model") {
                engine.model = engine.arguments.remove(at + 1);
                engine.arguments.remove(at);
            }
            let engine = Emulator::start(&format!("engine-{number}"), &engine, folder.path()).await.unwrap();
            plan = plan.worker(role, engine.url());
            engines.push(engine);
        }
        Self { plan, engines, folder }
    }

    async fn doctor(&self, more: &[&str]) -> Ended {
        let config = self.folder.path().join("sluice.toml");
        std::fs::write(&config, self.plan.toml()).unwrap();
        let config = config.display().to_string();
        let arguments = [&["doctor", "--config", &config], more].concat();
        run_to_end(&arguments, WITH_A_HANGING_PAIR).await.unwrap()
    }

    /// The report, and whether it says that all is well, which the exit code must say too.
    async fn report(&self) -> Value {
        let ended = self.doctor(&["--json"]).await;
        let report: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
        assert!(report["workers"].is_array(), "{}\n{}", ended.stdout, ended.stderr);
        assert_eq!(ended.code, Some(i32::from(report["well"] != true)), "{report:#}");
        report
    }
}

/// A socket that takes connections and says nothing.
fn black_hole() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[tokio::test]
async fn a_healthy_fleet_is_well() {
    let ward = Ward::of(&["", "", ""]).await;
    let report = ward.report().await;
    assert_eq!((&report["well"], &report["findings"]), (&json!(true), &json!([])), "{report:#}");
    let pairs = report["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 2);
    for pair in pairs {
        let outcome = &pair["proof"]["outcome"];
        assert_eq!(
            (&outcome["outcome"], &outcome["detail"]["sure"]),
            (&json!("moved"), &json!("exactly")),
            "{pair}"
        );
        // Three blocks of 16 tokens at the least, 64 bytes a token.
        assert!(outcome["detail"]["bytes"].as_u64().unwrap() >= 3 * 16 * 64, "{pair}");
        assert_eq!(
            (&pair["proof"]["holder"]["transfer_mode"], &pair["proof"]["holder"]["tp_size"]),
            (&json!("pull"), &json!(1))
        );
    }
    for worker in report["workers"].as_array().unwrap() {
        assert_eq!(
            (&worker["version_standing"], &worker["has_nixl"]),
            (&json!("tested"), &json!(true)),
            "{worker}"
        );
        assert_eq!(worker["tokenized"], worker["prompt_tokens"], "{worker}");
        assert_eq!((&worker["health"], &worker["clock_skew_ms"]), (&json!(200), &json!(0)), "{worker}");
    }
    for engine in &ward.engines {
        engine.until_idle(SOON).await.unwrap();
    }
    let told = ward.doctor(&[]).await;
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    for text in
        ["main/prefill-0", "0.32.0 (tested)", "-> decode-1", "moved: moved", "doctor: 0 wrong, 0 to note"]
    {
        assert!(told.stdout.contains(text), "{text:?} is not in:\n{}", told.stdout);
    }
    assert!(told.stderr.contains("a probe from prefill-0 to decode-1"), "{}", told.stderr);
}

/// What is wrong, and the finding it must give: severity, place, and a word of what is seen and of the cure.
#[tokio::test]
async fn what_is_wrong_is_found_with_its_cure() {
    let (_hole, address) = black_hole();
    let hole = format!("--kv-advertise {address}");
    let other = "--model other";
    type Change = fn(&mut HostPlan);
    let as_it_is: Change = |_| {};
    let down: Change = |plan| plan.workers[1].url = crate::readiness::nobodys_url();
    let blocks: Change = |plan| plan.pool.push_str("block_tokens = 32\n");
    let none = "--connector none";
    for (engines, change, expected) in [
        (
            ["--kv-lease-ms 30000", none],
            as_it_is,
            ["wrong", "main/prefill-0 -> decode-0", "computed the prompt itself", "kv_consumer"],
        ),
        ([none, none], as_it_is, ["wrong", "main/prefill-0 -> decode-0", "no KV handle", "kv_producer"]),
        (
            [&hole, ""],
            as_it_is,
            ["wrong", "main/prefill-0 -> decode-0", "gave no answer", "VLLM_NIXL_SIDE_CHANNEL_HOST"],
        ),
        (["", ""], blocks, ["wrong", "main/decode-0", "KV blocks of 16 tokens", "block_tokens = 16"]),
        (["", other], as_it_is, ["wrong", "main/decode-0", "serves other", "--served-model-name"]),
        (["", ""], down, ["wrong", "main/decode-0", "cannot be reached", "start the engine"]),
    ] {
        let mut ward = Ward::of(&engines).await;
        change(&mut ward.plan);
        let report = ward.report().await;
        assert_eq!(report["well"], false, "{report:#}");
        let [severity, place, what, cure] = expected;
        let text = |finding: &Value, member: &str| finding[member].as_str().unwrap_or_default().to_owned();
        let found = report["findings"].as_array().unwrap().iter().find(|finding| {
            text(finding, "severity") == severity
                && text(finding, "place") == place
                && text(finding, "what").contains(what)
        });
        let found = found.unwrap_or_else(|| panic!("{expected:?} is not in {report:#}"));
        assert!(text(found, "cure").contains(cure) && !text(found, "why").is_empty(), "{found}");
    }
}

/// Of bidirectional pools the way back is proven as well, and nothing is left of that.
#[tokio::test]
async fn turns_come_back_or_it_is_found_why_not() {
    let both = "--bidirectional";
    let newer = "--bidirectional --wire 0.33";
    for (engines, expected) in [
        ([both, both], None),
        ([newer, newer], None),
        ([both, ""], Some(["told of no turn that it keeps", "start the decode engine"])),
        (["", both], Some(["gave no answer in 10000 ms", "start the prefill engine anew"])),
        (
            ["--bidirectional --kv-recompute-threshold 100000", both],
            Some(["prefill computed the prompt itself", "\"kv_recompute_threshold\": 0"]),
        ),
        ([both, "--bidirectional --decoder-ttl-ms 4000"], Some(["answered 500", "decoder_kv_blocks_ttl"])),
    ] {
        let ward = Ward::of_mode(Mode::Bidirectional, &engines).await;
        let report = ward.report().await;
        let proof = &report["pairs"][0]["proof"];
        assert_eq!(proof["outcome"]["outcome"], "moved", "{report:#}");
        let Some([what, cure]) = expected else {
            assert_eq!((&report["well"], &report["findings"]), (&json!(true), &json!([])), "{report:#}");
            assert_eq!(proof["back"]["outcome"], "fetched", "{report:#}");
            for engine in &ward.engines {
                engine.until_idle(SOON).await.unwrap();
            }
            let told = ward.doctor(&[]).await.stdout;
            assert!(told.contains("main/decode-0 -> prefill-0") && told.contains("moved: fetched"), "{told}");
            continue;
        };
        let findings = report["findings"].as_array().unwrap();
        assert_eq!((findings.len(), &report["well"]), (1, &json!(false)), "{report:#}");
        let text = |member: &str| findings[0][member].as_str().unwrap();
        assert_eq!((text("severity"), text("place")), ("wrong", "main/decode-0 -> prefill-0"));
        assert!(text("what").contains(what) && text("cure").contains(cure), "{report:#}");
        for engine in &ward.engines {
            engine.until_idle(SOON).await.unwrap();
        }
    }
}

/// What a token's KV weighs is seen, and the figure to write is told, by the doctor and by the host.
#[tokio::test]
async fn other_kv_bytes_per_token_are_told() {
    let mut ward = Ward::of(&["", ""]).await;
    ward.plan.pool = "kv_bytes_per_token = 131072\n".into();
    let report = ward.report().await;
    let finding = &report["findings"][0];
    assert_eq!((&report["well"], &finding["severity"]), (&json!(true), &json!("note")), "{report:#}");
    assert_eq!(finding["cure"], "set kv_bytes_per_token = 64", "{finding}");
    let mut host = Host::start(&ward.plan, &[]).await.unwrap();
    host.until_metric("sluice_pool_kv_moves", &[], |moves| moves == 1.0, SOON).await.unwrap();
    until("the warning", SOON, async || {
        host.process().log().contains("Cure: kv_bytes_per_token = 64").then_some(())
    })
    .await
    .unwrap();
}

/// A decode engine that fails says nothing of KV: not known, and no word of answers that are only slow.
#[tokio::test]
async fn a_failing_decode_engine_proves_nothing() {
    let prefill = MockEngine::well_behaved().await.unwrap();
    let decode = MockEngine::start(|request| match request.path == "/v1/completions" {
        true => Canned::json(500, &json!({"error": {"message": "out of memory"}})),
        false => Canned::completed(),
    });
    let decode = decode.await.unwrap();
    let mut plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    plan.pool = "kv_bytes_per_token = 64\n".into();
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_metric("sluice_kv_probes_total", &[("outcome", "unproven")], |probes| probes >= 1.0, SOON)
        .await
        .unwrap();
    let pool = host.client().get("/ready").await.unwrap().json()["pools"][0].clone();
    assert_eq!((&pool["kv"], &pool["note"]), (&json!("unproven"), &Value::Null));
    let listed = host.admin().get("/admin/fleet").await.unwrap().json();
    let pair = &listed["pools"][0]["kv"]["pairs"][0];
    assert!(pair["what"].as_str().unwrap().contains("decode answered 500"), "{pair}");
}

/// Mock engines have no counter that tells: not known is not well, and not wrong.
#[tokio::test]
async fn without_counters_nothing_is_claimed() {
    let (prefill, decode) =
        (MockEngine::well_behaved().await.unwrap(), MockEngine::well_behaved().await.unwrap());
    let plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    let ward = Ward { plan, engines: Vec::new(), folder: TempDir::new().unwrap() };
    let report = ward.report().await;
    assert_eq!(
        report["pairs"][0]["proof"]["outcome"],
        json!({"outcome": "unproven", "detail": {"kind": "no-metric"}})
    );
    assert_eq!(report["well"], true, "{report:#}");
    for request in prefill.seen().iter().chain(&decode.seen()) {
        assert!(request.header("x-request-id").unwrap().starts_with("sluice-probe-"), "{request:?}");
    }
}

/// Engines that ask for a key, over TLS: the doctor and the host's own probes have both, as requests do.
#[tokio::test]
async fn engines_keys_and_certificates_are_used() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let authority = Authority::new("workers");
    std::fs::write(file("ca.pem"), authority.pem()).unwrap();
    std::fs::write(file("engines.key"), "sk-engine\n").unwrap();
    let engine = || {
        let acceptor = authority.signs("127.0.0.1").acceptor(None);
        MockEngine::start_at("127.0.0.1:0", Some(acceptor), |request| match request.header("authorization") {
            Some("Bearer sk-engine") if request.path == "/tokenize" => {
                Canned::json(200, &json!({"count": 7}))
            }
            Some("Bearer sk-engine") if request.is_prefill() => Canned::prefilled(),
            Some("Bearer sk-engine") => Canned::completed(),
            _ => Canned::json(401, &json!({"error": "Unauthorized"})),
        })
    };
    let (prefill, decode) = (engine().await.unwrap(), engine().await.unwrap());
    let mut plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    plan.upstream = format!("ca_file = {:?}\n", file("ca.pem"));
    plan.pool = format!("kv_bytes_per_token = 64\nengine_api_key_file = {:?}\n", file("engines.key"));
    let ward = Ward { plan, engines: Vec::new(), folder: TempDir::new().unwrap() };
    let report = ward.report().await;
    assert_eq!(report["well"], true, "{report:#}");
    assert_eq!(report["pairs"][0]["proof"]["outcome"]["detail"]["kind"], "no-metric", "{report:#}");
    for worker in report["workers"].as_array().unwrap() {
        assert_eq!((&worker["tokenized"], &worker["prompt_tokens"]), (&json!(7), &json!(7)), "{worker}");
    }

    let before = decode.seen().len();
    let host = Host::start(&ward.plan, &[]).await.unwrap();
    let unproven = [("outcome", "unproven")];
    host.until_metric("sluice_kv_probes_total", &unproven, |probes| probes >= 1.0, SOON).await.unwrap();
    assert!(decode.seen().len() > before);
    for request in prefill.seen().iter().chain(&decode.seen()) {
        assert_eq!(request.header("authorization"), Some("Bearer sk-engine"), "{request:?}");
    }
}

#[tokio::test]
async fn a_configuration_that_cannot_be_used_exits_with_2() {
    let ended = run_to_end(&["doctor", "--config", "/nonexistent/sluice.toml"], SOON).await.unwrap();
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    let mut plan = HostPlan::new(Mode::Unified).worker("unified", "http://127.0.0.1:1");
    plan.pool.push_str("engine_api_key_file = \"/nonexistent/engines.key\"\n");
    let ward = Ward { plan, engines: Vec::new(), folder: TempDir::new().unwrap() };
    let ended = ward.doctor(&[]).await;
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("engine_api_key_file"), "{}", ended.stderr);
}

async fn probed(arguments: [&str; 2]) -> Fleet {
    let mut plan = FleetPlan::pull(1, 1).engines("prefill", arguments[0]).engines("decode", arguments[1]);
    plan.host.pool = "kv_bytes_per_token = 64\n".into();
    plan.start().await.unwrap()
}

/// Waits for what `/ready` says of the pool's KV; requests are served all the while.
async fn until_kv(fleet: &Fleet, verdict: &str) -> Value {
    until(&format!("KV to be {verdict}"), WITH_A_HANGING_PAIR, async || {
        let ready = fleet.client().get("/ready").await.unwrap();
        assert_eq!(ready.status, 200, "{}", ready.text());
        let pool = ready.json()["pools"][0].clone();
        (pool["kv"] == verdict).then_some(pool)
    })
    .await
    .unwrap()
}

/// The host proves it by itself, of each start of an engine anew, and its probes are no client's requests.
#[tokio::test]
async fn the_host_proves_that_kv_moves() {
    let mut fleet = probed(["", ""]).await;
    let pool = until_kv(&fleet, "moved").await;
    assert_eq!(pool["note"], Value::Null);
    let metrics = fleet.host.metrics().await.unwrap();
    let pair = [("pool", "main"), ("prefill", "prefill-0"), ("decode", "decode-0")];
    assert_eq!(metrics.sum("sluice_kv_moves", &pair), 1.0);
    assert_eq!(metrics.sum("sluice_pool_kv_moves", &[("pool", "main")]), 1.0);
    assert_eq!(metrics.sum("sluice_kv_probes_total", &[("outcome", "moved")]), 1.0);
    for clients in ["sluice_requests_total", "sluice_legs_total", "sluice_decisions_total"] {
        assert_eq!(metrics.sum(clients, &[]), 0.0, "{clients}");
    }
    nothing_left_booked(&fleet.host, &["prefill-0", "decode-0"]).await;
    assert_eq!(fleet.host.worker("prefill-0").await.unwrap()["handles"], 0);

    // The same address, an engine without connector: answers stay right, and the loss is told.
    let listen = fleet.worker("decode-0").url().trim_start_matches("http://").to_owned();
    fleet.worker_mut("decode-0").process().kill().await.unwrap();
    let folder = TempDir::new().unwrap();
    let plan = EmulatorPlan::fast("decode").with(&format!("--connector none --listen {listen}"));
    fleet.host.until_metric("sluice_worker_up", &[], |up| up == 1.0, SOON).await.unwrap();
    let _engine = Emulator::start("again", &plan, folder.path()).await.unwrap();
    fleet.host.until_metric("sluice_pool_kv_moves", &[], |moves| moves == 0.0, SOON).await.unwrap();
    let pool = until_kv(&fleet, "not-moved").await;
    let note = pool["note"].as_str().unwrap();
    assert!(note.contains("decode computed the prompt itself") && note.contains("only slow"), "{note}");
    right(fleet.client(), &Ask::completion(&words(1, 40), 4)).await;
    let log = fleet.host.process().log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("KV DOES NOT MOVE")).collect();
    assert_eq!(told.len(), 1, "{log}");
    assert!(told[0].contains("ERROR") && told[0].contains("kv_consumer"), "{}", told[0]);
}

/// A side channel that is a black hole: the probe gives up, and the blocks it left count until their lease ends.
#[tokio::test]
async fn a_black_holed_side_channel_is_told() {
    let (_hole, address) = black_hole();
    let fleet = probed([&format!("--kv-advertise {address}"), ""]).await;
    assert_eq!(until_kv(&fleet, "unproven").await["note"], Value::Null);
    let pool = until_kv(&fleet, "not-moved").await;
    assert!(pool["note"].as_str().unwrap().contains("gave no answer in 10000 ms"), "{pool}");
    assert_eq!(fleet.host.worker("prefill-0").await.unwrap()["handles"], 1);
    nothing_left_booked(&fleet.host, &["prefill-0", "decode-0"]).await;
    let listed = fleet.host.admin().get("/admin/fleet").await.unwrap().json();
    let pair = &listed["pools"][0]["kv"]["pairs"][0];
    assert!(pair["cure"].as_str().unwrap().contains("VLLM_NIXL_SIDE_CHANNEL_HOST"), "{pair}");
}

#[tokio::test]
async fn a_pool_that_is_not_probed_claims_nothing() {
    let fleet = FleetPlan::pull(1, 1).start().await.unwrap();
    let pool = fleet.client().get("/ready").await.unwrap().json()["pools"][0].clone();
    assert_eq!((&pool["kv"], &pool["note"]), (&json!("unproven"), &Value::Null));
    let fleet = FleetPlan::unified(1).start().await.unwrap();
    let pool = fleet.client().get("/ready").await.unwrap().json()["pools"][0].clone();
    assert_eq!(pool["kv"], Value::Null);
}

/// Of host-managed pools the running host says who is attached. Without one that is not known.
#[tokio::test]
async fn engines_that_are_not_attached_are_found() {
    let mut plan = FleetPlan::hosted(1, 1);
    let fleet = plan.start().await.unwrap();
    let folder = TempDir::new().unwrap();
    let stray = EmulatorPlan::fast("decode");
    let socket = std::fs::read_to_string(fleet.host.folder().join("sluice.toml")).unwrap();
    let socket =
        socket.lines().find_map(|line| line.strip_prefix("socket = ")).unwrap().trim_matches('"').to_owned();
    let stray = stray.with(&format!("--kv-link {socket} --name decode-O"));
    let _stray = Emulator::start("stray", &stray, folder.path()).await.unwrap();
    fleet.host.until_metric("sluice_transfer_engines", &[], |count| count == 3.0, SOON).await.unwrap();
    // The same workers as the host knows them by, and one of them misnamed.
    plan.host.admin_listen = fleet.host.admin().base().trim_start_matches("http://").to_owned();
    plan.host.tables = format!("[transfer]\nsocket = {socket:?}\n");
    for (worker, role) in fleet.workers().iter().zip(["prefill", "decode"]) {
        plan.host = plan.host.worker(role, worker.url());
    }
    let mut ward = Ward { plan: plan.host, engines: Vec::new(), folder };
    let report = ward.report().await;
    assert_eq!(report["well"], true, "{report:#}");
    let stray = &report["findings"][0];
    assert_eq!((&stray["severity"], &stray["place"]), (&json!("note"), &json!("[transfer]")), "{report:#}");
    assert!(stray["what"].as_str().unwrap().contains("\"decode-O\" is attached"), "{stray}");

    let mut fleet = fleet;
    fleet.worker_mut("decode-0").process().kill().await.unwrap();
    let listen = ward.plan.workers[1].url.trim_start_matches("http://").to_owned();
    let alone = EmulatorPlan::fast("decode").with(&format!("--connector none --listen {listen}"));
    let _alone = Emulator::start("alone", &alone, ward.folder.path()).await.unwrap();
    fleet.host.until_metric("sluice_transfer_engines", &[], |count| count == 2.0, SOON).await.unwrap();
    let report = ward.report().await;
    let missing = &report["findings"][0];
    assert_eq!(
        (&missing["severity"], &missing["place"]),
        (&json!("wrong"), &json!("main/decode-0")),
        "{report:#}"
    );
    assert!(missing["cure"].as_str().unwrap().contains(&socket), "{missing}");

    ward.plan.admin_listen = "127.0.0.1:9".into();
    let report = ward.report().await;
    assert_eq!(report["well"], true, "{report:#}");
    let unknown = report["findings"][0]["what"].as_str().unwrap();
    assert!(unknown.contains("not known: cannot ask 127.0.0.1:9"), "{unknown}");
}
