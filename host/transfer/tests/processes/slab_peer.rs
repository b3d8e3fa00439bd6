//! The other process of the tests: maps the slab that is its standard input, and does as it is told.
//!
//! `hold BYTES` maps it, writes 0xAB all over it without end, says `ready` and waits to be killed.
//! `shrink` tries to cut it short, grow it, and take its seals off, and says what came of it.
#![allow(clippy::print_stdout, reason = "it answers on its standard output")]

use std::io::Write;
use std::os::fd::AsFd;
use std::process::ExitCode;

use rustix::fs::{SealFlags, fcntl_add_seals, ftruncate};
use sluice_transfer::memory::Slab;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let told = match (words.next().as_deref(), words.next()) {
        (Some("hold"), Some(bytes)) => hold(bytes.parse().unwrap_or(0)),
        (Some("shrink"), None) => shrink(),
        _ => Err("usage: slab-peer hold BYTES | shrink".to_owned()),
    };
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slab-peer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn hold(bytes: u64) -> Result<(), String> {
    let file = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let slab = Slab::accept(file, bytes).map_err(|error| error.to_string())?;
    let page = vec![0xAB_u8; 4_096];
    let mut said = false;
    loop {
        for offset in (0..bytes).step_by(page.len()) {
            let len = (bytes - offset).min(page.len() as u64) as usize;
            slab.write(offset, &page[..len]).map_err(|error| error.to_string())?;
        }
        if !said {
            println!("ready");
            std::io::stdout().flush().map_err(|error| error.to_string())?;
            said = true;
        }
    }
}

fn shrink() -> Result<(), String> {
    let file = std::io::stdin();
    let told = |what: &str, done: rustix::io::Result<()>| {
        println!("{what}: {}", if done.is_ok() { "done" } else { "refused" });
    };
    told("shrink", ftruncate(&file, 0));
    told("grow", ftruncate(&file, 1 << 30));
    told("seal", fcntl_add_seals(&file, SealFlags::FUTURE_WRITE));
    std::io::stdout().flush().map_err(|error| error.to_string())
}
