//! What another process can do to memory that is shared with it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use sluice_transfer::layout::ByteCopy;
use sluice_transfer::memory::{HugePages, Pages, Slab, SlabError, Stores};

const MIB: u64 = 1 << 20;

/// A slab whose bytes tell where they are.
pub fn slab(bytes: u64, salt: u8) -> Slab {
    let slab = Slab::create(bytes, HugePages::FromKernelOnly).expect("memory for a small slab");
    slab.write(0, &pattern(bytes, salt)).expect("the whole slab");
    slab
}

/// The bytes of such a slab.
pub fn pattern(bytes: u64, salt: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8 ^ salt).collect()
}

/// All bytes of a slab.
pub fn bytes_of(slab: &Slab) -> Vec<u8> {
    let mut bytes = vec![0; slab.bytes() as usize];
    slab.read(0, &mut bytes).expect("the whole slab");
    bytes
}

/// A process that has the slab as its standard input.
pub fn peer(slab: &Slab, words: &[&str]) -> Child {
    let file = slab.file().try_clone_to_owned().expect("a descriptor");
    let mut command = Command::new(env!("CARGO_BIN_EXE_slab-peer"));
    command.args(words).stdin(file).stdout(Stdio::piped()).spawn().expect("the peer starts")
}

/// A process that writes 0xAB over the slab again and again, and has done so once.
pub fn writer(slab: &Slab) -> Child {
    let mut child = peer(slab, &["hold", &slab.bytes().to_string()]);
    let mut line = String::new();
    let said = child.stdout.as_mut().expect("its output is piped");
    BufReader::new(said).read_line(&mut line).expect("the peer answers");
    assert_eq!(line, "ready\n");
    child
}

/// Kills it as an engine dies.
pub fn kill(mut child: Child) {
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
fn a_slab_outlives_the_process_that_maps_it() {
    let slab = slab(MIB, 0);
    kill(writer(&slab));
    assert!(bytes_of(&slab).iter().all(|byte| *byte == 0xAB), "what it wrote is there");
    slab.write(0, &pattern(MIB, 7)).unwrap();
    assert_eq!(bytes_of(&slab), pattern(MIB, 7), "and nobody writes any more");
}

#[test]
fn nobody_can_take_a_slab_away() {
    let slab = slab(MIB, 3);
    let told = peer(&slab, &["shrink"]).wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&told.stdout), "shrink: refused\ngrow: refused\nseal: refused\n");
    assert_eq!(bytes_of(&slab), pattern(MIB, 3));
}

#[test]
fn what_could_be_taken_away_is_not_mapped() {
    let memfd = |bytes, seals| {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    };
    let sealed = SealFlags::SHRINK;
    assert!(matches!(Slab::accept(memfd(MIB, SealFlags::GROW), MIB), Err(SlabError::NotSealed)));
    let refused = Slab::accept(memfd(MIB - 1, sealed), MIB).unwrap_err();
    assert!(matches!(refused, SlabError::TooSmall { bytes, least_bytes: MIB } if bytes == MIB - 1));
    let file = tempfile::tempfile().unwrap();
    file.set_len(MIB).unwrap();
    assert!(matches!(Slab::accept(file.into(), MIB), Err(SlabError::NotSealable { .. })));
    let read_only = Slab::accept(memfd(MIB, sealed | SealFlags::FUTURE_WRITE), MIB);
    assert!(matches!(read_only, Err(SlabError::System { step: "mmap", .. })), "{read_only:?}");
    assert!(matches!(Slab::accept(memfd(MIB, sealed), 0), Err(SlabError::Size { bytes: 0 })));
    // Making one takes no page of the reserve, so this needs none.
    let huge = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let file = memfd_create("test", huge).unwrap();
    ftruncate(&file, 2 * MIB).unwrap();
    fcntl_add_seals(&file, sealed).unwrap();
    assert!(matches!(Slab::accept(file, MIB), Err(SlabError::ReservedPages)));
    let slab = Slab::accept(memfd(MIB, sealed), MIB).unwrap();
    assert_eq!((slab.bytes(), slab.pages()), (MIB, Pages::Foreign));
}

#[test]
fn a_slab_without_reserved_pages_says_what_it_got() {
    let slab = Slab::create(3 * MIB, HugePages::IfReserved).unwrap();
    let reserved = std::fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap_or_default();
    if reserved.trim() == "0" {
        assert_ne!(slab.pages(), Pages::Reserved);
    }
    slab.write(3 * MIB - 1, &[9]).unwrap();
    assert!(slab.write(3 * MIB, &[9]).is_err());
    assert!(slab.check(u64::MAX, 2).is_err(), "an offset that overflows");
}

#[test]
fn both_ways_to_store_move_all_bytes_and_no_others() {
    let source = slab(64 * 1_024, 1);
    for stores in [Stores::CACHED, Stores::streaming()] {
        for (source_offset, sink_offset, len) in [
            (0, 0, 65_536),
            (1, 3, 255),
            (3, 1, 256),
            (2, 5, 300),
            (1, 3, 1_023),
            (5, 2, 1_024),
            (7, 33, 4_097),
            (64, 31, 20_000),
            (9, 9, 0),
            (0, 65_535, 1),
        ] {
            let sink = slab(64 * 1_024, 2);
            source.copy_to(&sink, ByteCopy { source_offset, sink_offset, len }, stores).unwrap();
            let mut expected = pattern(65_536, 2);
            let (from, to, count) = (source_offset as usize, sink_offset as usize, len as usize);
            expected[to..to + count].copy_from_slice(&pattern(65_536, 1)[from..from + count]);
            assert!(bytes_of(&sink) == expected, "{stores:?} {source_offset} -> {sink_offset}, {len}");
        }
    }
    let beyond = ByteCopy { source_offset: 1, sink_offset: 0, len: 65_536 };
    assert!(source.copy_to(&source, beyond, Stores::CACHED).is_err());
}
