//! The memory that an engine's KV blocks lie in, shared with its host.

mod mapping;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use mapping::Mapping;

/// The largest slab, in bytes: what a process can map with room left for others.
const MAX_SLAB_BYTES: u64 = 1 << 46;
/// Slabs are rounded up to it, so that the kernel can back all of one with huge pages.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Why there is no slab.
#[derive(Debug, thiserror::Error)]
pub enum SlabError {
    /// A size that cannot be.
    #[error("slab of {bytes} bytes: must be 1 to {MAX_SLAB_BYTES}")]
    Size {
        /// Asked for.
        bytes: u64,
    },
    /// The system refused.
    #[error("slab of {bytes} bytes: {step} failed: {cause}")]
    System {
        /// Asked for.
        bytes: u64,
        /// Which call.
        step: &'static str,
        /// What it said.
        cause: io::Error,
    },
    /// Too little was given.
    #[error("the memfd that was given has {bytes} bytes, the slab needs {least_bytes}")]
    TooSmall {
        /// It has.
        bytes: u64,
        /// It needs.
        least_bytes: u64,
    },
    /// What was asked for lies outside.
    #[error("{len} bytes at {offset} of a slab of {bytes}")]
    OutOfRange {
        /// Asked for.
        offset: u64,
        /// Asked for.
        len: u64,
        /// The slab's.
        bytes: u64,
    },
}

/// A memfd that is mapped here and that nobody can cut short.
#[derive(Debug)]
pub struct Slab {
    file: OwnedFd,
    mapping: Mapping,
    bytes: u64,
}

impl Slab {
    /// New memory, all of it allocated now and zero.
    ///
    /// # Errors
    /// If the machine has not got it.
    pub fn create(bytes: u64) -> Result<Self, SlabError> {
        sized(bytes)?;
        let whole = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("sluice-kv", flags).map_err(failed(bytes, "memfd_create"))?;
        rustix::fs::ftruncate(&file, whole).map_err(failed(bytes, "ftruncate"))?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).map_err(failed(bytes, "sealing"))?;
        let slab = Self::share(file, bytes)?;
        slab.mapping.advise_huge_pages();
        // A machine without the memory says so here, and not by a signal at some first touch.
        rustix::fs::fallocate(&slab.file, FallocateFlags::empty(), 0, whole)
            .map_err(failed(bytes, "fallocate"))?;
        Ok(slab)
    }

    /// The first `bytes` of a memfd that the engine has already. Seals it against shrinking, which the host insists
    /// on, and against more seals; it must have been created with `MFD_ALLOW_SEALING`, without huge pages of the
    /// machine's reserve.
    ///
    /// # Errors
    /// If it is too small, no memfd, or cannot be sealed or mapped.
    pub fn share(file: OwnedFd, bytes: u64) -> Result<Self, SlabError> {
        let len = sized(bytes)?;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(failed(bytes, "reading the seals"))?;
        let needed = SealFlags::SHRINK | SealFlags::SEAL;
        if !seals.contains(SealFlags::SHRINK) {
            rustix::fs::fcntl_add_seals(&file, needed).map_err(failed(bytes, "sealing"))?;
        }
        let size = rustix::fs::fstat(&file).map_err(failed(bytes, "fstat"))?.st_size;
        let has = u64::try_from(size).unwrap_or(0);
        if has < bytes {
            return Err(SlabError::TooSmall { bytes: has, least_bytes: bytes });
        }
        let mapping = Mapping::new(file.as_fd(), len).map_err(failed(bytes, "mmap"))?;
        Ok(Self { file, mapping, bytes })
    }

    /// Bytes of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it begins in this process, for tensors that lie in it; valid while the slab lives. The host reads and
    /// writes the same bytes: reach them by raw pointers or this slab's own methods, not by references.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.start()
    }

    /// What the host maps.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// If they do not fit there.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), SlabError> {
        let offset = self.checked(offset, bytes.len())?;
        self.mapping.write(offset, bytes);
        Ok(())
    }

    /// Copies bytes out. What the host is writing at the same time is a mix.
    ///
    /// # Errors
    /// If there are not so many.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SlabError> {
        let offset = self.checked(offset, into.len())?;
        self.mapping.read(offset, into);
        Ok(())
    }

    fn checked(&self, offset: u64, len: usize) -> Result<usize, SlabError> {
        let (bytes, len) = (self.bytes, len as u64);
        let fits = offset.checked_add(len).is_some_and(|end| end <= bytes);
        // What fits a mapping fits a usize.
        if fits { Ok(offset as usize) } else { Err(SlabError::OutOfRange { offset, len, bytes }) }
    }
}

fn failed<E: Into<io::Error>>(bytes: u64, step: &'static str) -> impl FnOnce(E) -> SlabError {
    move |cause| SlabError::System { bytes, step, cause: cause.into() }
}

fn sized(bytes: u64) -> Result<usize, SlabError> {
    match usize::try_from(bytes) {
        Ok(len) if (1..=MAX_SLAB_BYTES).contains(&bytes) => Ok(len),
        _ => Err(SlabError::Size { bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_sealed_and_keeps_to_its_bounds() {
        let slab = Slab::create(5_000).unwrap();
        let seals = rustix::fs::fcntl_get_seals(slab.file()).unwrap();
        assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "{seals:?}");
        slab.write(4_998, &[1, 2]).unwrap();
        let mut read = [9; 3];
        slab.read(4_997, &mut read).unwrap();
        assert_eq!(read, [0, 1, 2]);
        for (offset, len) in [(4_999, 2), (5_000, 1), (u64::MAX, 1), (0, 5_001)] {
            assert!(matches!(slab.write(offset, &vec![0; len]), Err(SlabError::OutOfRange { .. })));
            assert!(matches!(slab.read(offset, &mut vec![0; len]), Err(SlabError::OutOfRange { .. })));
        }
        assert!(slab.write(5_000, &[]).is_ok());
    }

    #[test]
    fn memory_that_is_given_is_sealed_or_refused() {
        let memfd = |flags| rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | flags).unwrap();
        let file = memfd(MemfdFlags::ALLOW_SEALING);
        rustix::fs::ftruncate(&file, 8_192).unwrap();
        let too_small = Slab::share(file.try_clone().unwrap(), 8_193);
        assert!(matches!(too_small, Err(SlabError::TooSmall { bytes: 8_192, least_bytes: 8_193 })));
        let slab = Slab::share(file, 8_192).unwrap();
        assert!(rustix::fs::fcntl_get_seals(slab.file()).unwrap().contains(SealFlags::SHRINK));
        let unsealable = memfd(MemfdFlags::empty());
        rustix::fs::ftruncate(&unsealable, 8_192).unwrap();
        assert!(matches!(Slab::share(unsealable, 8_192), Err(SlabError::System { step: "sealing", .. })));
        assert!(matches!(Slab::create(0), Err(SlabError::Size { bytes: 0 })));
    }
}
