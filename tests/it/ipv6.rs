//! IPv6 all the way: the listener, the workers, and handles that name an IPv6 host.

use serde_json::json;
use sluice_harness::mock_engine::handle;
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode};

#[tokio::test]
async fn a_pair_on_ipv6_serves() {
    let given = {
        let mut handle = handle();
        handle["remote_host"] = json!("fd00::1:2");
        handle
    };
    let answered = json!({
        "id": "cmpl-1", "choices": [{"index": 0, "text": " x", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1}, "kv_transfer_params": given,
    });
    let prefill = MockEngine::start_at("[::1]:0", None, move |_| Canned::json(200, &answered)).await.unwrap();
    let decode = MockEngine::start_at("[::1]:0", None, |_| Canned::completed()).await.unwrap();
    assert!(prefill.url().starts_with("http://[::1]:"), "{}", prefill.url());
    let mut plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    plan.listen = "[::1]:0".into();
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    assert!(host.client().base().starts_with("http://[::1]:"), "{}", host.client().base());

    let asked = json!({"model": "emulated", "prompt": "hi"});
    let answer = host.client().post("/v1/completions", &asked).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let leg = decode.seen().pop().expect("decode was asked");
    assert_eq!(leg.body["kv_transfer_params"], given, "the handle is forwarded as it came");
    // Brackets, as a Host header has them.
    assert_eq!(leg.header("host"), Some(decode.url().trim_start_matches("http://")));
    assert_eq!(host.worker("decode-0").await.unwrap()["url"], decode.url());
}
