//! Memory of large bodies, all together: places bound how many there are, and this how much they take.

use std::convert::AsRef;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;

use super::body::ReadError;

/// Large bodies held at one time, in bytes: of requests, and again of whole answers. Some 64 of the longest requests
/// that are taken by default; a host's memory is sized for requests, not for all of them being that long at once.
pub const LARGE_BODIES_BYTES_AT_MOST: u64 = 1024 * 1024 * 1024;

/// A body up to this long, in bytes, costs nothing of it: most are shorter, and the places bound them well enough.
const SMALL_BODY_BYTES: u64 = 64 * 1024;

/// What large bodies may take.
#[derive(Debug)]
pub struct BodyBudget {
    at_most_bytes: u64,
    taken_bytes: AtomicU64,
}

impl BodyBudget {
    /// Nothing is taken.
    pub fn new(at_most_bytes: u64) -> Arc<Self> {
        Arc::new(Self { at_most_bytes, taken_bytes: AtomicU64::new(0) })
    }

    /// Reads a body of at most `limit_bytes`, as far as there is room for it. A large one takes its room until the last
    /// of its bytes is dropped.
    pub async fn read<B>(self: &Arc<Self>, body: B, limit_bytes: usize) -> Result<Bytes, ReadError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let least_bytes = body.size_hint().lower();
        // A length that is said is believed: nothing is read of a body that is too long, or for which there is no room.
        if least_bytes > limit_bytes as u64 {
            return Err(ReadError::TooLong { limit_bytes });
        }
        let mut charge = Charge { budget: self.clone(), bytes: 0 };
        if least_bytes > SMALL_BODY_BYTES && least_bytes > self.left_bytes() {
            return Err(ReadError::NoRoom);
        }
        let mut body = pin!(Limited::new(body, limit_bytes));
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        while let Some(frame) = body.frame().await {
            let Ok(piece) = frame.map_err(|error| told(error, limit_bytes))?.into_data() else { continue };
            let length = (first.len() + rest.len() + piece.len()) as u64;
            if length > SMALL_BODY_BYTES && !charge.grow_to(length) {
                return Err(ReadError::NoRoom);
            }
            if first.is_empty() && rest.is_empty() {
                first = piece;
                continue;
            }
            if rest.is_empty() {
                rest.reserve((least_bytes as usize).max(first.len() + piece.len()));
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&piece);
        }
        let bytes = if rest.is_empty() { first } else { rest.freeze() };
        Ok(if charge.bytes == 0 { bytes } else { Bytes::from_owner(Charged { bytes, _charge: charge }) })
    }

    fn left_bytes(&self) -> u64 {
        self.at_most_bytes.saturating_sub(self.taken_bytes.load(Ordering::Relaxed))
    }
}

fn told(error: Box<dyn std::error::Error + Send + Sync>, limit_bytes: usize) -> ReadError {
    if error.is::<LengthLimitError>() { ReadError::TooLong { limit_bytes } } else { ReadError::Broken(error) }
}

/// What one body has taken, given back when dropped.
struct Charge {
    budget: Arc<BodyBudget>,
    bytes: u64,
}

impl Charge {
    fn grow_to(&mut self, bytes: u64) -> bool {
        let more = bytes - self.bytes;
        let before = self.budget.taken_bytes.fetch_add(more, Ordering::Relaxed);
        // Taken in any case: what is too much goes back with the rest.
        self.bytes = bytes;
        before + more <= self.budget.at_most_bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.taken_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// A body that gives its room back with its last byte.
struct Charged {
    bytes: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body_util::Full;
    use hyper::body::Frame;

    use super::*;

    const KIB: usize = 1_024;

    /// Pieces of 10 KiB, of a length that is not said.
    struct Pieces {
        next: u8,
        count: u8,
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let number = self.next;
            self.next += 1;
            let piece = || Ok(Frame::data(Bytes::from(vec![number; 10 * KIB])));
            Poll::Ready((number < self.count).then(piece))
        }
    }

    fn taken(budget: &BodyBudget) -> u64 {
        budget.taken_bytes.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn large_bodies_are_bounded_together_until_their_last_byte_is_dropped() {
        let budget = BodyBudget::new(250 * KIB as u64);
        let read = |bytes: usize| budget.read(Full::from(vec![b'x'; bytes]), 200 * KIB);
        let first = read(150 * KIB).await.expect("room");
        assert!(matches!(read(150 * KIB).await, Err(ReadError::NoRoom)));
        assert!(matches!(read(201 * KIB).await, Err(ReadError::TooLong { .. })));
        let small = read(64 * KIB).await.expect("small ones need no room");
        assert_eq!((small.len(), taken(&budget)), (64 * KIB, 150 * KIB as u64));
        let second = read(100 * KIB).await.expect("just fits");
        let part = first.slice(7..9);
        drop((first, second));
        assert_eq!((&part[..], taken(&budget)), (&b"xx"[..], 150 * KIB as u64));
        drop(part);
        assert_eq!(taken(&budget), 0);
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_is_charged_as_it_comes() {
        let budget = BodyBudget::new(100 * KIB as u64);
        let pieces = |count| Pieces { next: 0, count };
        let whole = budget.read(pieces(10), 200 * KIB).await.expect("room");
        let expected: Vec<u8> = (0..10).flat_map(|number| vec![number; 10 * KIB]).collect();
        assert!(whole == expected);
        assert_eq!(taken(&budget), 100 * KIB as u64);
        drop(whole);
        assert!(matches!(budget.read(pieces(11), 200 * KIB).await, Err(ReadError::NoRoom)));
        assert!(matches!(budget.read(pieces(11), 60 * KIB).await, Err(ReadError::TooLong { .. })));
        assert_eq!(taken(&budget), 0);
    }
}
