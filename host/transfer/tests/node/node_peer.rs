//! The other process of the tests about nodes: an engine that is told what to do, or a host.
//!
//! `engine SOCKET NAME prefill|decode` attaches and then obeys lines: `hold NUMBER TOKENS` computes and reports layer by
//! layer; `receive NUMBER push|pull TOKENS FROM` says whether it came and how many bytes of it are wrong; `used` says how
//! many blocks are not free.
//! `host SOCKET SILENCE_MS` runs a node.
//! Both end when their standard input does.
#![allow(clippy::print_stdout, reason = "it answers on its standard output")]
#![allow(clippy::unwrap_used, reason = "a peer ends at the first surprise")]
#![allow(dead_code, reason = "it shares its engine with the tests")]

#[path = "engine.rs"]
mod engine;
#[path = "../exchange/kv.rs"]
mod kv;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{TryRecvError, channel};

use engine::{Engine, Job};
use sluice_engine_sdk::transport::{Clock, Monotonic, Pace};
use sluice_engine_sdk::wire::{BlockRef, Verb};
use sluice_transfer::fabric::ShmSettings;
use sluice_transfer::link::Settings;
use sluice_transfer::node::{Node, NodeSettings};
use sluice_transfer::protocol::limits::Limits;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["engine", socket, name, "prefill"] => obey(Engine::attach(Path::new(socket), name, kv::PREFILL)),
        ["engine", socket, name, "decode"] => obey(Engine::attach(Path::new(socket), name, kv::DECODE)),
        ["host", socket, silence_ms] => host(socket.into(), silence_ms.parse().unwrap()),
        _ => panic!("usage: node-peer engine SOCKET NAME prefill|decode | host SOCKET SILENCE_MS"),
    }
}

fn host(socket: PathBuf, silence_ms: u64) {
    let pace = Pace { ping_ms: silence_ms / 8, silence_ms };
    let settings = NodeSettings {
        socket,
        link: Settings { pace, ..Settings::default() },
        limits: Limits::default(),
        shm: ShmSettings::default(),
    };
    let time = Monotonic::default();
    let clock = Arc::new(move || time.now_ms());
    let _node = Node::start(settings, clock, Arc::new(|event| println!("{event:?}"))).unwrap();
    println!("listens");
    let _ = std::io::stdin().lock().lines().count();
}

/// What it was told to receive and has not said the end of.
type Waiting = BTreeMap<u128, (Job, Vec<BlockRef>)>;

fn obey(mut engine: Engine) {
    println!("attached");
    let (say, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let _ = say.send(line.unwrap());
        }
        // No process outlives its test.
        std::process::exit(0);
    });
    let mut waiting = Waiting::new();
    loop {
        match lines.try_recv() {
            Ok(line) => command(&mut engine, &mut waiting, &line),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        engine.hear_once();
        tell_ended(&mut engine, &mut waiting);
    }
}

fn command(engine: &mut Engine, waiting: &mut Waiting, line: &str) {
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["hold", number, tokens] => {
            let job = Job::new(number.parse().unwrap(), Verb::Write, tokens.parse().unwrap());
            let blocks = engine.allocate(job.tokens);
            engine.hold(&job, &blocks, Vec::new());
            println!("holds");
            for layer in 0..kv::LAYERS {
                engine.compute(&job, &blocks, layer);
                engine.hear_once();
            }
            engine.filled(&job);
            println!("filled");
        }
        ["receive", number, verb, tokens, from] => {
            let verb = if *verb == "push" { Verb::Write } else { Verb::Read };
            let job = Job::new(number.parse().unwrap(), verb, tokens.parse().unwrap());
            let blocks = engine.allocate(job.tokens);
            engine.receive(&job, from, &blocks, Vec::new());
            println!("receives");
            waiting.insert(job.id.0, (job, blocks));
        }
        ["used"] => println!("used {}", engine.used()),
        other => panic!("{other:?}"),
    }
}

fn tell_ended(engine: &mut Engine, waiting: &mut Waiting) {
    let has_ended = |engine: &Engine, job: &Job| engine.outcome(job.attempt());
    let ended: Vec<_> = waiting
        .iter()
        .filter_map(|(number, (job, _))| has_ended(engine, job).map(|came| (*number, came)))
        .collect();
    for (number, came) in ended {
        let Some((job, blocks)) = waiting.remove(&number) else { continue };
        if came {
            println!("came {}", engine.wrong(&job, &blocks, job.tokens));
            engine.take_over(&blocks);
            engine.free(&blocks);
        } else {
            println!("failed");
        }
    }
}
