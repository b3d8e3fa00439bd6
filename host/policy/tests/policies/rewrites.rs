//! A folder that never rests.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice_core::verdict::Verdict;

use crate::followed::watched;
use crate::guest;

/// The same code in a file of its own: a custom section makes its digest new.
fn marked(wasm: &[u8], mark: u32) -> Vec<u8> {
    // Id, length of the rest, length of the name, name, number.
    let section = [&[0, 6, 1, b'm'][..], &mark.to_le_bytes()].concat();
    [wasm, &section].concat()
}

/// A folder that changes each 10 ms for 10 s: policies answer all the while, the last version wins, and what came
/// before leaves nothing behind.
#[test]
fn a_thousand_rewrites() {
    const REWRITES: u32 = 1_000;
    const APART: Duration = Duration::from_millis(10);
    /// Open files of what else this process does meanwhile.
    const FILES_OF_OTHERS: usize = 50;
    let open_files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let watched = watched();
    let base = guest::text(0);
    watched.expect_version(&base);
    let files_before = open_files();

    let stop = Arc::new(AtomicBool::new(false));
    let (host, stopped) = (Arc::clone(&watched.host), Arc::clone(&stop));
    let asking = std::thread::spawn(move || {
        let facts = guest::facts(guest::seed::GOOD);
        let mut answers = 0_u64;
        while !stopped.load(Ordering::Relaxed) {
            let answer = host.generation().default_policy().expect("one decides").route(&facts);
            assert_eq!(answer, Ok(Verdict::UseDefault), "after {answers} answers");
            answers += 1;
        }
        answers
    });
    let mut seen = vec![Arc::downgrade(&watched.host.generation())];
    for mark in 1..=REWRITES {
        let staged = watched.path(".staged");
        fs::write(&staged, marked(&base, mark)).unwrap();
        // Every other one in place, where a half-written file can be seen.
        if mark % 2 == 0 {
            fs::rename(&staged, watched.path("main.wasm")).unwrap();
        } else {
            fs::copy(&staged, watched.path("main.wasm")).unwrap();
        }
        if watched.events.recv_timeout(APART).is_ok_and(|event| event.starts_with("main=")) {
            seen.push(Arc::downgrade(&watched.host.generation()));
        }
    }
    watched.put("main.wasm", &guest::text(1));
    watched.expect_version(&guest::text(1));
    stop.store(true, Ordering::Relaxed);
    assert!(asking.join().unwrap() > 0);

    let generation = watched.host.generation();
    assert!(seen.len() > 10, "{} generations", seen.len());
    assert!(generation.number >= seen.len() as u64);
    // The first that is still there is the one in force; policies went with their generations.
    let alive: Vec<_> = seen.iter().filter_map(std::sync::Weak::upgrade).map(|old| old.number).collect();
    assert!(alive.iter().all(|number| *number == generation.number), "{alive:?}");
    assert!(generation.default_policy().unwrap().instances() <= guest::limits().instances_per_policy);
    let files_after = open_files();
    assert!(files_after <= files_before + FILES_OF_OTHERS, "{files_before} open files became {files_after}");
}
