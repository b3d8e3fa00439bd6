//! KV that does not come, hosts that go, clients that leave.

use http::Method;
use sluice_emulator::{EmulatorConfig, Role};
use sluice_sim::TimeModel;

use super::*;

#[tokio::test]
async fn what_does_not_come_is_computed() {
    for conduct in [Conduct::Fails, Conduct::Refuses] {
        let node = Node::new(|_| {}).await;
        prefill(&node, &prompt(1), 1).await;
        node.host.conduct(conduct);
        assert_eq!(tokens_of(&decode(&node, &prompt(1), 1).await), right_tokens(&prompt(1), 32));
        assert_eq!((sources(&node.d).await, failed(&node.d).await), ((100, 0, 0), 1), "{conduct:?}");
        until_link(&node.d, |link| link.named_blocks == 0).await;
        until(node.d.engine(), |engine| engine.blocks.used == 0).await;
        assert_eq!(metric(&node.d, "sluice:kv_receives_failed_total", "").await, 1.0);
    }
}

#[tokio::test]
async fn a_host_that_says_nothing_is_given_up() {
    let node = Node::new(|_| {}).await;
    node.host.conduct(Conduct::Stalls);
    let mut wanted = receive(1, "pull");
    wanted["whole_ms"] = json!(0);
    let answer = complete(&node.d, &leg(greedy(&prompt(1), 8), None, Some(wanted))).await;
    assert_eq!(tokens_of(&answer), right_tokens(&prompt(1), 8));
    node.is_idle().await;
    node.host.until(|state| (state.aborted.len() == 1).then_some(())).await;
}

#[tokio::test]
async fn blocks_that_are_never_freed_stay_out_of_use() {
    // All but the named ones are needed for the second prompt.
    let node = Node::new(|config| (config.blocks, config.max_model_len) = (1 + 7 + 10, 160)).await;
    node.host.conduct(Conduct::FailsAndWrites);
    assert_eq!(tokens_of(&decode(&node, &prompt(1), 1).await), right_tokens(&prompt(1), 32));
    assert_eq!(until(node.d.engine(), |engine| engine.running == 0).await.blocks.used, 7);
    let text = sluice_sim::tokens::words(2, 128);
    let body = greedy(&text, 32);
    let answering = complete(&node.d, &body);
    let spoiling = async {
        loop {
            node.host.state().spoil_withheld();
            tokio::task::yield_now().await;
        }
    };
    let answer = tokio::select! { answer = answering => answer, () = spoiling => unreachable!() };
    assert_eq!(tokens_of(&answer), right_tokens(&text, 32));
    assert_eq!(until_link(&node.d, |link| link.receives == 0).await.named_blocks, 7);
    node.host.state().free_withheld();
    node.is_idle().await;
}

#[tokio::test]
async fn a_host_that_goes_takes_no_request_along() {
    let node = Node::new(|_| {}).await;
    node.host.conduct(Conduct::Stalls);
    let going = async {
        until_link(&node.d, |link| link.receives == 1).await;
        node.host.state().detach("decode");
    };
    let text = prompt(1);
    let (answer, ()) = tokio::join!(decode(&node, &text, 1), going);
    assert_eq!(tokens_of(&answer), right_tokens(&prompt(1), 32));
    // It is not let in again while the host has its slab mapped, so the blocks that it named are not its own.
    let link = until_link(&node.d, |link| !link.attached).await;
    assert_eq!((link.named_blocks, link.receives), (7, 0));
    assert_eq!(until(node.d.engine(), |engine| engine.running == 0).await.blocks.used, 7);
    node.host.conduct(Conduct::Right);
    node.host.state().let_go();
    assert_eq!(until_link(&node.d, |link| link.attached).await.attaches, 2);
    node.is_idle().await;
    prefill(&node, &prompt(2), 2).await;
    assert_eq!(tokens_of(&decode(&node, &prompt(2), 2).await), right_tokens(&prompt(2), 32));
    assert_eq!(sources(&node.d).await.2, 100);
}

#[tokio::test]
async fn without_a_host_engines_compute_and_attach_when_it_comes() {
    let place = Place::new();
    let config = EmulatorConfig { name: None, ..hosted(&place, Role::Prefill) };
    let p = emulator(config).await;
    let d = emulator(hosted(&place, Role::Decode)).await;
    let answer = complete(&p, &leg(greedy(&prompt(1), 1), Some(hold(1, "prompt")), None)).await;
    assert!(answer["kv_transfer_params"].is_null());
    let answer = complete(&d, &leg(greedy(&prompt(1), 32), None, Some(receive(1, "pull")))).await;
    assert_eq!(tokens_of(&answer), right_tokens(&prompt(1), 32));
    assert_eq!(failed(&d).await, 1);
    let node = Node { host: FakeHost::start(&place), place, p, d };
    node.is_attached().await;
    let mut names = node.host.state().names();
    names.sort();
    let name = format!("prefill-{}", node.p.http_addr().port());
    assert!(node.p.banner().contains(&format!("as {name}")), "{}", node.p.banner());
    assert_eq!(names, ["decode".to_owned(), name]);
    assert_eq!(prefill(&node, &prompt(2), 2).await["sluice"]["tokens"], 100);
}

/// Asks and leaves once something has happened.
async fn left(to: &Emulator, body: Value, happens: impl Future<Output = ()>) {
    tokio::select! {
        _ = call(to.http_addr(), Method::POST, "/v1/completions", None, Some(&body)) => panic!("it was answered"),
        () = happens => {}
    }
}

#[tokio::test]
async fn clients_that_leave_leave_nothing_behind() {
    let slow = |config: &mut EmulatorConfig| {
        config.max_num_seqs = 1;
        config.max_step_tokens = 16;
        config.time = TimeModel { prefill_tokens_per_s: 200.0, ..TimeModel::default() };
    };
    let node = Node::new(slow).await;
    node.host.conduct(Conduct::Stalls);
    // While the prompt is computed.
    let asked = leg(greedy(&prompt(1), 1), Some(hold(1, "prompt")), None);
    left(&node.p, asked, async { assert_eq!(until_link(&node.p, |link| link.holds == 1).await.receives, 0) })
        .await;
    node.is_idle().await;
    node.host.until(|state| (state.released.len() == 1).then_some(())).await;
    // While KV is to come, and with it one that waits for a place.
    let asked =
        |number| leg(greedy(&prompt(1), 8), Some(hold(number + 10, "turn")), Some(receive(number, "push")));
    left(&node.d, asked(2), async {
        until_link(&node.d, |link| link.receives == 1).await;
        let waits =
            async { assert_eq!(until(node.d.engine(), |engine| engine.waiting == 1).await.loading, 1) };
        left(&node.d, asked(3), waits).await;
        until(node.d.engine(), |engine| engine.waiting == 0).await;
    })
    .await;
    node.is_idle().await;
    let told =
        |state: &fake_host::State| ((state.aborted.len(), state.released.len()) == (1, 2)).then_some(());
    node.host.until(told).await;
    assert!(node.host.state().holds.is_empty(), "an answer that is not whole is no turn");
}

#[tokio::test]
async fn one_client_of_many_that_share_a_prompt_takes_only_its_own() {
    let node = Node::new(|_| {}).await;
    for number in 1..4 {
        prefill(&node, &prompt(1), number).await;
    }
    // The head is shared: six blocks, and each has its own last one.
    assert_eq!(until_link(&node.p, |link| link.holds == 3).await.named_blocks, 21);
    assert_eq!(node.p.engine().now().blocks.used, 9);
    for number in 1..4 {
        assert_eq!(tokens_of(&decode(&node, &prompt(1), number).await), right_tokens(&prompt(1), 32));
    }
    node.is_idle().await;
}

#[tokio::test]
async fn an_engine_that_stops_says_goodbye_and_its_next_life_is_another() {
    let node = Node::new(|_| {}).await;
    prefill(&node, &prompt(1), 1).await;
    let config = hosted(&node.place, Role::Prefill);
    let Node { place, host, p, d } = node;
    p.stop().await;
    host.until(|state| (state.names() == ["decode"]).then_some(())).await;
    host.state().let_go();
    let node = Node { place, host, p: emulator(config).await, d };
    node.is_attached().await;
    prefill(&node, &prompt(1), 2).await;
    assert_eq!(tokens_of(&decode(&node, &prompt(1), 2).await), right_tokens(&prompt(1), 32));
    node.is_idle().await;
}
