use sluice_core::health::Report;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::*;
use crate::clock::SystemClock;
use crate::config::{self, Secrets};
use crate::fleet::Fleet;
use crate::telemetry::metrics::Metrics;

const BODY: &str = r#"{"model":"m","prompt":"a b"}"#;
const IDS: &str = r#"{"count":2,"max_model_len":64,"tokens":[7,8],"token_strs":null}"#;

/// An engine that answers each request so, or never; what it was asked is told.
async fn engine(
    tasks: &mut JoinSet<()>,
    status: u16,
    answer: Option<&'static str>,
    asked: UnboundedSender<String>,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tasks.spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut text = String::new();
            while !text.ends_with(BODY) {
                let mut piece = [0; 1_024];
                let bytes = stream.read(&mut piece).await.expect("a request");
                text.push_str(std::str::from_utf8(&piece[..bytes]).expect("UTF-8"));
            }
            asked.send(text).expect("the test goes on");
            if let Some(answer) = answer {
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    answer.len()
                );
                stream.write_all((head + answer).as_bytes()).await.expect("a reader");
            }
            kept.push(stream);
        }
    });
    format!("http://{address}")
}

/// The pool of these prefill workers, all up, what they are asked, and they themselves.
async fn pool(
    engines: &[(u16, Option<&'static str>)],
) -> (Arc<Pool>, UnboundedReceiver<String>, JoinSet<()>) {
    let (asked, told) = unbounded_channel();
    let mut tasks = JoinSet::new();
    let mut toml = "[[pool]]\nname = 'p'\nmodel = 'm'\nmode = 'bidirectional'\n\
        [[pool.worker]]\nname = 'd'\nrole = 'decode'\nurl = 'http://127.0.0.1:9'\n\
        [[pool.worker]]\nname = 'down'\nrole = 'prefill'\nurl = 'http://127.0.0.1:10'\n"
        .to_owned();
    for (index, (status, answer)) in engines.iter().enumerate() {
        let url = engine(&mut tasks, *status, *answer, asked.clone()).await;
        toml += &format!("[[pool.worker]]\nname = 'p{index}'\nrole = 'prefill'\nurl = '{url}'\n");
    }
    let config =
        config::parse(std::path::Path::new("sluice.toml"), &toml).unwrap_or_else(|fault| panic!("{fault}"));
    let fleet = Fleet::new(&config, &Secrets::default(), &SystemClock::shared(), &Metrics::default());
    let pool = fleet.pool("m").expect("a pool").clone();
    for worker in pool.workers.iter().filter(|worker| worker.name != "down") {
        pool.report(worker, Report::ProbeOk);
    }
    pool.publish();
    (pool, told, tasks)
}

async fn ids(pool: &Pool) -> Result<Vec<u32>, NoIds> {
    let upstream = Upstream::new(Duration::from_secs(600), 1, None);
    let mut headers = HeaderMap::new();
    headers.insert("authorization", "Bearer k".parse().expect("a value"));
    let asking = Asking { upstream: &upstream, pool, headers: &headers };
    let found = asking.ids(BODY.into(), Instant::now() + Duration::from_secs(60)).await;
    found.map(|ids| ids.ids().to_vec())
}

#[tokio::test]
async fn a_prefill_worker_is_asked_and_one_more_if_it_fails() {
    let (good, bad, odd) = ((200, Some(IDS)), (500, Some("x")), (200, Some(r#"{"count":3,"tokens":[1]}"#)));
    for (engines, found, questions) in [
        (&[good][..], true, 1),
        (&[good, bad], true, 1),
        (&[bad, good], true, 2),
        (&[odd, good], true, 2),
        (&[bad, bad, good], false, 2),
        (&[], false, 0),
    ] {
        let (pool, mut told, _engines) = pool(engines).await;
        let answer = ids(&pool).await;
        assert_eq!(answer.as_deref().ok(), found.then_some(&[7, 8][..]), "{engines:?}");
        let error = answer.err().map(|error| error.result());
        let expected = if engines.is_empty() { Tokenized::NoWorker } else { Tokenized::Failed };
        assert_eq!(error, (!found).then_some(expected), "{engines:?}");
        for _ in 0..questions {
            let asked = told.recv().await.expect("a question");
            assert!(
                asked.starts_with("POST /tokenize HTTP/1.1\r\n") && asked.contains("authorization: Bearer k"),
                "{asked}"
            );
        }
        assert!(told.try_recv().is_err(), "{engines:?}");
    }
}

/// Time stands still but for what is waited for, which is the end alone.
#[tokio::test(start_paused = true)]
async fn an_engine_that_says_nothing_is_late() {
    let (pool, _told, _engines) = pool(&[(200, None)]).await;
    assert_eq!(ids(&pool).await, Err(NoIds::Late { within_ms: 500 }));
    // Its permit is free again.
    assert_eq!(pool.tokenizing.available_permits(), TOKENIZED_AT_ONCE);
}

#[tokio::test]
async fn so_many_are_asked_at_once() {
    let (pool, mut told, _engines) = pool(&[(200, Some(IDS))]).await;
    let permits = pool.tokenizing.try_acquire_many(TOKENIZED_AT_ONCE as u32).expect("all of them");
    assert_eq!(ids(&pool).await, Err(NoIds::Busy { at_once: TOKENIZED_AT_ONCE }));
    assert!(told.try_recv().is_err());
    drop(permits);
    assert_eq!(ids(&pool).await, Ok(vec![7, 8]));
}
