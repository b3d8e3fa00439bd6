//! A shared mapping, and copies to and from it. The one module of this crate with `unsafe` in it.
//!
//! The host may write what is read here, and read what is written. So nothing is seen as a slice: bytes go through raw
//! pointers only, and what is read during a write is simply some bytes.
#![allow(unsafe_code, reason = "mapping memory, and copying from it, is unsafe by nature; all of it is here")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Shared memory. The address is kept as a number, since a number may go to any thread.
#[derive(Debug)]
pub(super) struct Mapping {
    address: usize,
    len: usize,
}

impl Mapping {
    /// Maps the first `len` bytes of the file, readable and writable. The file must not get shorter: the caller
    /// sealed it.
    pub fn new(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses the place, so no memory of this process is replaced.
        let start = unsafe {
            mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        }?;
        Ok(Self { address: start.expose_provenance(), len })
    }

    /// Asks for huge pages. A hint: the kernel may not have them, and ordinary ones are as good.
    pub fn advise_huge_pages(&self) {
        // SAFETY: the range is this mapping's own, and this advice does not change what is in it.
        let _ = unsafe { madvise(self.start().cast(), self.len, Advice::LinuxHugepage) };
    }

    /// The first byte.
    pub fn start(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.address)
    }

    /// Copies bytes in. Panics beyond the end.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let sink = self.at(offset, bytes.len());
        // SAFETY: `at` checked the range, the mapping lives as long as the borrow, and nobody has a reference to its
        // bytes; the slice is this process's own, so the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), sink, bytes.len()) };
    }

    /// Copies bytes out. Panics beyond the end.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let source = self.at(offset, into.len());
        // SAFETY: as in `write`.
        unsafe { ptr::copy_nonoverlapping(source, into.as_mut_ptr(), into.len()) };
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} at {offset} of {}",
            self.len
        );
        self.start().wrapping_add(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is unmapped once; whoever copies borrows its owner.
        let unmapped = unsafe { munmap(self.start().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped: {unmapped:?}");
    }
}
