//! Hellos that are none, and memory that could be taken away.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::SealFlags;
use sluice_engine_sdk::wire::{Hello, RefusalCode, Versions, write_hello};

use super::raw::{Raw, good_memfd, hello, memfd};
use super::{Peer, SLAB_BYTES};

/// A hello, what comes with it, and what is said to that.
type Lie = (&'static str, Vec<u8>, Vec<OwnedFd>, RefusalCode, &'static str);

fn lies() -> Vec<Lie> {
    let good = || write_hello(&hello(1)).unwrap();
    let spoilt = |spoil: fn(&mut Hello)| {
        let mut hello = hello(1);
        spoil(&mut hello);
        write_hello(&hello).unwrap()
    };
    let at = |at: usize, byte: u8| {
        let mut bytes = good();
        bytes[at] = byte;
        bytes
    };
    let one = || vec![good_memfd()];
    let file = || vec![OwnedFd::from(tempfile::tempfile().unwrap())];
    use RefusalCode::{Layout, NotOurs, Slab, Version};
    vec![
        ("http", b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![], NotOurs, "no hello"),
        ("wrong magic", at(7, b'?'), one(), NotOurs, "no hello"),
        ("not a hello", at(12, 9), one(), NotOurs, "first frame 9"),
        ("endless", at(10, 0xFF), one(), NotOurs, "of at most"),
        ("ends early", at(8, 5), one(), NotOurs, "ends early"),
        ("unknown role", at(12 + 1 + 4 + (2 + "engine-1".len()) + 8 + 2, 77), one(), NotOurs, "role 77"),
        (
            "wrong version",
            spoilt(|hello| hello.versions = Versions { oldest: 7, newest: 8 }),
            one(),
            Version,
            "update",
        ),
        ("no layers", spoilt(|hello| hello.layout.layers = 0), one(), Layout, "layers is 0"),
        (
            "more than its slab",
            spoilt(|hello| hello.layout.blocks += 1),
            one(),
            Layout,
            "make the slab larger",
        ),
        ("more than its memfd", spoilt(|hello| hello.slab_bytes += 1), one(), Slab, "its layout needs"),
        ("more than all memory", spoilt(|hello| hello.slab_bytes = u64::MAX), one(), Slab, "must be 1 to"),
        ("no memory", good(), vec![], Slab, "no descriptor"),
        ("two", good(), vec![good_memfd(), good_memfd()], Slab, "several"),
        ("eight", good(), (0..8).map(|_| good_memfd()).collect(), Slab, "several"),
        ("not sealed", good(), vec![memfd(SLAB_BYTES, SealFlags::GROW)], Slab, "F_SEAL_SHRINK"),
        ("short", good(), vec![memfd(SLAB_BYTES - 1, SealFlags::SHRINK)], Slab, "needs"),
        ("a plain file", good(), file(), Slab, "no memfd"),
        (
            "never writable",
            good(),
            vec![memfd(SLAB_BYTES, SealFlags::SHRINK | SealFlags::FUTURE_WRITE)],
            Slab,
            "mmap",
        ),
    ]
}

fn descriptors(peer: &Peer) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", peer.child.id())).unwrap().count()
}

#[test]
fn every_lie_is_refused_by_name_and_leaves_no_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kv.sock");
    let mut host = Peer::new("host", &socket, &[]);
    assert_eq!(host.line(), "listens");
    let before = descriptors(&host);
    for (name, bytes, files, code, part) in lies() {
        let mut raw = Raw::connect(&socket);
        let borrowed: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        raw.send(&bytes, &borrowed);
        let (said, text) = raw.refusal().unwrap_or_else(|| panic!("{name}: no answer"));
        assert!(said == code && text.contains(part), "{name}: {said:?} {text}");
        assert_eq!(host.line(), format!("refused {code:?}"), "{name}");
        assert_eq!(descriptors(&host), before, "{name}");
    }
    // After all that an honest engine is let in, and its end gives all back.
    let raw = Raw::attach(&socket, 1);
    assert!(host.line().starts_with("attached"));
    assert!(descriptors(&host) > before);
    drop(raw);
    assert!(host.line().starts_with("detached"));
    // Its threads close the socket behind that line.
    let mut raw = Raw::attach(&socket, 1);
    assert!(host.line().starts_with("attached"));
    // Descriptors that come later are nobody's.
    let (one, other) = (good_memfd(), good_memfd());
    let count = descriptors(&host);
    raw.send(&[9, 0, 0], &[one.as_fd(), other.as_fd()]);
    raw.send(&[0, 1, 5, 0, 0, 0, 0, 0, 0, 0], &[one.as_fd()]);
    assert!(raw.frame().is_some(), "the ping was read");
    assert_eq!(descriptors(&host), count);
}
