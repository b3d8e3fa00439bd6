//! Memory that several processes map: a sealed memfd of ours, or one that another process sent.
#![allow(unsafe_code, reason = "two calls of the raw copy, next to the checks that make them sound")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::copy::{Stores, copy};
use super::mapping::Mapping;
use super::slab_error::{MAX_SLAB_BYTES, OutOfRange, SlabError};
use crate::layout::ByteCopy;

/// Huge pages of this size are asked for; slabs are rounded up to it, so that the last one can be huge too.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// What `statfs` says of a file of reserved huge pages.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// Whether the kernel backs shared memory with huge pages.
const SHMEM_HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Whether reserved huge pages are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HugePages {
    /// Where the machine has some reserved. Whoever holds the descriptor can give pages back while they are mapped
    /// here, and this process dies if the reserve is then empty: only for processes that are trusted with that.
    IfReserved,
    /// Never from the reserve; the kernel may still back the slab with huge pages of its own.
    FromKernelOnly,
}

/// The pages that a slab got: what status says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Huge, from the machine's reserve.
    Reserved,
    /// Huge where the kernel finds them.
    Advised,
    /// Ordinary ones: this kernel has no huge pages for shared memory.
    Ordinary,
    /// Another process made them.
    Foreign,
}

/// Shared memory, mapped.
#[derive(Debug)]
pub struct Slab {
    file: OwnedFd,
    mapping: Mapping,
    bytes: u64,
    pages: Pages,
}

impl Slab {
    /// Memory of ours, all of it allocated now, sealed so that nobody can change its size.
    pub fn create(bytes: u64, huge_pages: HugePages) -> Result<Self, SlabError> {
        sized(bytes)?;
        if huge_pages == HugePages::IfReserved
            && let Ok(slab) = Self::made(bytes, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, Pages::Reserved)
        {
            return Ok(slab);
        }
        let mut slab = Self::made(bytes, MemfdFlags::empty(), Pages::Ordinary)?;
        let offered = std::fs::read_to_string(SHMEM_HUGE_PAGES).unwrap_or_default();
        if kernel_offers_huge_pages(&offered) && slab.mapping.advise_huge_pages().is_ok() {
            slab.pages = Pages::Advised;
        }
        slab.allocate(bytes)?;
        Ok(slab)
    }

    /// Maps what another process sent, `least_bytes` of it, if that can never be taken away from under us.
    pub fn accept(file: OwnedFd, least_bytes: u64) -> Result<Self, SlabError> {
        let len = sized(least_bytes)?;
        let system = |step| move |cause: rustix::io::Errno| failed(least_bytes, step, cause.into());
        let seals = rustix::fs::fcntl_get_seals(&file)
            .map_err(|cause| SlabError::NotSealable { cause: cause.into() })?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(SlabError::NotSealed);
        }
        let kind = rustix::fs::fstatfs(&file).map_err(system("fstatfs"))?.f_type;
        if u64::try_from(kind) == Ok(HUGETLBFS_MAGIC) {
            return Err(SlabError::ReservedPages);
        }
        // After the seal was seen the size can only grow.
        let size = rustix::fs::fstat(&file).map_err(system("fstat"))?.st_size;
        let bytes = u64::try_from(size).unwrap_or(0);
        if bytes < least_bytes {
            return Err(SlabError::TooSmall { bytes, least_bytes });
        }
        let mapping = Mapping::new(file.as_fd(), len).map_err(|cause| failed(least_bytes, "mmap", cause))?;
        Ok(Self { file, mapping, bytes: least_bytes, pages: Pages::Foreign })
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The pages that it got.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// What to send to a process that shall map it.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies bytes in.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        let sink = self.at(offset, bytes.len() as u64)?;
        // SAFETY: `at` checked the range, and the slice is this process's own, so they do not overlap.
        unsafe { copy(bytes.as_ptr(), sink, bytes.len(), Stores::CACHED) };
        Ok(())
    }

    /// Copies bytes out. Another process may be writing them: the result is then a mix.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let source = self.at(offset, into.len() as u64)?;
        // SAFETY: `at` checked the range, and the slice is this process's own, so they do not overlap.
        unsafe { copy(source, into.as_mut_ptr(), into.len(), Stores::CACHED) };
        Ok(())
    }

    /// Copies from this slab to another, or within it.
    pub fn copy_to(&self, sink: &Self, bytes: ByteCopy, stores: Stores) -> Result<(), OutOfRange> {
        let from = self.at(bytes.source_offset, bytes.len)?;
        let to = sink.at(bytes.sink_offset, bytes.len)?;
        // SAFETY: `at` checked both ranges, so their length fits a usize; both mappings live as long as the
        // borrows, and slabs never lend references to their bytes.
        unsafe { copy(from, to, bytes.len as usize, stores) };
        Ok(())
    }

    /// Whether such bytes are there.
    pub fn check(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        let bytes = self.bytes();
        match offset.checked_add(len) {
            Some(end) if end <= bytes => Ok(()),
            _ => Err(OutOfRange { offset, len, bytes }),
        }
    }

    fn at(&self, offset: u64, len: u64) -> Result<*mut u8, OutOfRange> {
        self.check(offset, len)?;
        Ok(self.mapping.start().wrapping_add(offset as usize))
    }

    fn made(bytes: u64, kind: MemfdFlags, pages: Pages) -> Result<Self, SlabError> {
        let system = |step| move |cause: rustix::io::Errno| failed(bytes, step, cause.into());
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind;
        let file = rustix::fs::memfd_create("sluice-kv", flags).map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&file, rounded(bytes)).map_err(system("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(system("sealing"))?;
        let len = sized(rounded(bytes))?;
        let mapping = Mapping::new(file.as_fd(), len).map_err(|cause| failed(bytes, "mmap", cause))?;
        Ok(Self { file, mapping, bytes, pages })
    }

    /// A machine without the memory says so here, and not by a signal at some first touch.
    fn allocate(&self, bytes: u64) -> Result<(), SlabError> {
        let allocated = rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, rounded(bytes));
        allocated.map_err(|cause| failed(bytes, "fallocate", cause.into()))
    }
}

fn failed(bytes: u64, step: &'static str, cause: io::Error) -> SlabError {
    SlabError::System { bytes, step, cause }
}

fn sized(bytes: u64) -> Result<usize, SlabError> {
    match usize::try_from(bytes) {
        Ok(len) if (1..=MAX_SLAB_BYTES).contains(&bytes) => Ok(len),
        _ => Err(SlabError::Size { bytes }),
    }
}

fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(HUGE_PAGE_BYTES)
}

/// The chosen word is the one in brackets.
fn kernel_offers_huge_pages(words: &str) -> bool {
    ["[always]", "[within_size]", "[advise]", "[force]"].iter().any(|chosen| words.contains(chosen))
}
