//! A shared mapping of a file descriptor. One of the two modules of this crate's memory with `unsafe` in it.
#![allow(unsafe_code, reason = "mapping and unmapping memory is unsafe by nature; all of it is here")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Memory that other processes may have mapped too, so that it is never seen as a slice: only addresses are given
/// out. The address is kept as a number, since a number may go to any thread.
#[derive(Debug)]
pub(super) struct Mapping {
    address: usize,
    bytes: usize,
}

impl Mapping {
    /// Maps the first `bytes` of the file, readable and writable.
    pub fn new(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses the place, so no memory of this process is replaced.
        let start = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        }?;
        Ok(Self { address: start.expose_provenance(), bytes })
    }

    /// Asks for huge pages. A hint: the kernel may not have them.
    pub fn advise_huge_pages(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping's own, and this advice does not change what is in it.
        unsafe { madvise(self.start().cast(), self.bytes, Advice::LinuxHugepage) }?;
        Ok(())
    }

    /// The first byte. Valid for the length asked for while the mapping lives.
    pub fn start(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.address)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is unmapped once; whoever copies borrows its owner.
        let unmapped = unsafe { munmap(self.start().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped: {unmapped:?}");
    }
}
