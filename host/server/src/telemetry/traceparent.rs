//! W3C trace context: the `traceparent` header, read and written.

use hyper::HeaderMap;
use hyper::header::HeaderValue;

/// Header that names a trace and the span a request comes from.
pub const TRACEPARENT: &str = "traceparent";

/// Header that carries what tracing systems add to it.
pub const TRACESTATE: &str = "tracestate";

/// Bytes of `traceparent` in version 00; later versions may add to it, after a dash.
const BYTES: usize = 55;

/// A place in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Never 0.
    pub trace: u128,
    /// Never 0.
    pub span: u64,
    /// Whether who came before records its spans.
    pub sampled: bool,
}

impl TraceParent {
    /// The place a client's request comes from. One that is not well-formed, or is given twice, counts as none.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let only = values.next().filter(|_| values.next().is_none())?;
        Self::parse(only.as_bytes())
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let version = hex(text.get(..2)?)?;
        let ends_well = match version {
            0 => text.len() == BYTES,
            0xff => false,
            _ => text.len() == BYTES || text.get(BYTES) == Some(&b'-'),
        };
        let dashes = [2, 35, 52].iter().all(|at| text.get(*at) == Some(&b'-'));
        if !ends_well || !dashes {
            return None;
        }
        let trace = hex(text.get(3..35)?)?;
        let span = u64::try_from(hex(text.get(36..52)?)?).ok()?;
        let flags = hex(text.get(53..BYTES)?)?;
        (trace != 0 && span != 0).then_some(Self { trace, span, sampled: flags & 1 == 1 })
    }

    /// As a header's value.
    pub fn header(&self) -> Option<HeaderValue> {
        let text = format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled));
        HeaderValue::try_from(text).ok()
    }
}

/// Lower-case hexadecimal, as the standard wants it.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_written_is_read() {
        let parent = TraceParent::parse(GOOD.as_bytes()).expect("well-formed");
        assert_eq!((parent.span, parent.sampled), (0xb7ad_6b71_6920_3331, true));
        assert_eq!(parent.header().expect("visible ASCII"), GOOD);
    }

    #[test]
    fn what_is_not_well_formed_is_none() {
        for (text, sampled) in [
            (GOOD.to_owned(), Some(true)),
            (GOOD.replace("-01", "-00"), Some(false)),
            (GOOD.replace("-01", "-03"), Some(true)),
            (format!("01{}-more", &GOOD[2..]), Some(true)),
            (format!("{GOOD}-more"), None),
            (format!("01{}more", &GOOD[2..]), None),
            (format!("ff{}", &GOOD[2..]), None),
            (GOOD.to_uppercase(), None),
            (GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)), None),
            (GOOD.replace("b7ad6b7169203331", &"0".repeat(16)), None),
            (GOOD[..54].to_owned(), None),
            (GOOD.replace('-', "_"), None),
            (String::new(), None),
        ] {
            assert_eq!(TraceParent::parse(text.as_bytes()).map(|parent| parent.sampled), sampled, "{text}");
        }
    }

    #[test]
    fn two_are_none() {
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, HeaderValue::from_static(GOOD));
        assert!(TraceParent::of(&headers).is_some());
        headers.append(TRACEPARENT, HeaderValue::from_static(GOOD));
        assert_eq!(TraceParent::of(&headers), None);
    }
}
