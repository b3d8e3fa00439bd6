//! The first frame of each side. They may grow at their end: see the rule of the module above.

use super::bytes::{Cursor, DecodeError, EncodeError, Wire, codes, members};
use super::frame::framed;
use super::layout::KvLayout;
use super::names::{EngineId, Rank};
use super::{MAGIC, MAX_TEXT_BYTES};

/// Bytes of a hello or its answer, with its magic and count: its texts at their longest, and as much again for what
/// a later version may add.
pub const HELLO_AT_MOST_BYTES: usize = 4 * MAX_TEXT_BYTES;

/// The versions that this build speaks.
pub const VERSIONS: Versions = Versions { oldest: 1, newest: 1 };

const HELLO: u8 = 8;
const WELCOME: u8 = 9;
const REFUSAL: u8 = 10;

/// A range of versions, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The oldest.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

/// Who attaches, with which memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Which versions it speaks.
    pub versions: Versions,
    /// Which engine, by the name that the router knows it by: see [`EngineId::of_name`].
    pub name: String,
    /// Which life of it: rises with each attach, and with each process. What was said by an earlier one is over.
    pub incarnation: u64,
    /// Which of its ranks.
    pub rank: Rank,
    /// What it does.
    pub role: Role,
    /// What it serves, as clients name it.
    pub model: String,
    /// How its KV lies.
    pub layout: KvLayout,
    /// Bytes of the slab that comes with this.
    pub slab_bytes: u64,
}

/// What an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Computes KV for others.
    Prefill,
    /// Takes KV and decodes.
    Decode,
    /// Both.
    Unified,
}

/// The host's answer to an engine that is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version that is spoken from here on.
    pub version: u16,
    /// The number of this attach, never given twice by one host process.
    pub session: u64,
    /// The host pings after so long a silence, in milliseconds.
    pub ping_ms: u32,
    /// Either side takes the other for dead after so long a silence, in milliseconds.
    pub silence_ms: u32,
    /// Holds and transfers of this engine that the host keeps at a time.
    pub max_open: u32,
}

/// The host's answer to an engine that is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// Why, for programs.
    pub code: RefusalCode,
    /// What, where, and what to do, for people.
    pub text: String,
}

/// Why an engine was not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// It does not speak this protocol.
    NotOurs,
    /// No version is common to both.
    Version,
    /// Its user may not attach.
    User,
    /// The layout cannot be, or needs more bytes than there are.
    Layout,
    /// None or several descriptors came, or one that cannot be mapped safely.
    Slab,
    /// The same rank of the same engine is attached and alive.
    Duplicate,
    /// As many engines are attached, or attaching, as may be.
    Full,
    /// The hello was not whole in time.
    TooSlow,
    /// The host goes away.
    Closing,
    /// The engine's name cannot be.
    Name,
}

impl Hello {
    /// Which engine, for messages.
    #[must_use]
    pub fn engine(&self) -> EngineId {
        EngineId::of_name(&self.name)
    }
}

impl RefusalCode {
    /// Whether it may be otherwise in a while.
    #[must_use]
    pub fn is_passing(self) -> bool {
        matches!(self, Self::Duplicate | Self::Full | Self::TooSlow | Self::Closing)
    }
}

/// The host's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Attached.
    Welcome(Welcome),
    /// Not attached.
    Refusal(Refusal),
}

/// How far the beginning of a connection is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preamble<T> {
    /// So many more bytes are needed to go on. No more should be read: what follows may be another frame.
    Needs(usize),
    /// All of it.
    Whole(T),
}

impl Versions {
    /// The newest that both speak.
    #[must_use]
    pub fn agreed(self, theirs: Self) -> Option<u16> {
        let newest = self.newest.min(theirs.newest);
        (newest >= self.oldest.max(theirs.oldest)).then_some(newest)
    }
}

/// A hello with its magic.
///
/// # Errors
/// If the model's name is too long.
pub fn write_hello(hello: &Hello) -> Result<Vec<u8>, EncodeError> {
    framed(HELLO, |out| hello.put(out)).map(with_magic)
}

/// An answer with its magic.
///
/// # Errors
/// If the text is too long.
pub fn write_answer(answer: &Answer) -> Result<Vec<u8>, EncodeError> {
    let frame = match answer {
        Answer::Welcome(welcome) => framed(WELCOME, |out| welcome.put(out)),
        Answer::Refusal(refusal) => framed(REFUSAL, |out| refusal.put(out)),
    };
    frame.map(with_magic)
}

/// Reads the bytes that came so far as a hello.
///
/// # Errors
/// If they are none, or are not ours at all; said at the first byte that cannot be.
pub fn read_hello(bytes: &[u8]) -> Result<Preamble<Hello>, DecodeError> {
    preamble(bytes, |kind, from| match kind {
        HELLO => Hello::take(from),
        code => Err(DecodeError::Unknown { what: "first frame", code }),
    })
}

/// Reads the bytes that came so far as an answer.
///
/// # Errors
/// As [`read_hello`].
pub fn read_answer(bytes: &[u8]) -> Result<Preamble<Answer>, DecodeError> {
    preamble(bytes, |kind, from| match kind {
        WELCOME => Welcome::take(from).map(Answer::Welcome),
        REFUSAL => Refusal::take(from).map(Answer::Refusal),
        code => Err(DecodeError::Unknown { what: "first frame", code }),
    })
}

fn with_magic(frame: Vec<u8>) -> Vec<u8> {
    [MAGIC.as_slice(), &frame].concat()
}

fn preamble<T>(
    bytes: &[u8],
    take: impl FnOnce(u8, &mut Cursor<'_>) -> Result<T, DecodeError>,
) -> Result<Preamble<T>, DecodeError> {
    const HEAD_BYTES: usize = MAGIC.len() + 4;
    if let Some((_, code)) = MAGIC.iter().zip(bytes).find(|(expected, found)| expected != found) {
        return Err(DecodeError::Unknown { what: "magic, with the byte", code: *code });
    }
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return Ok(Preamble::Needs(HEAD_BYTES - bytes.len()));
    };
    let [.., a, b, c, d] = *head;
    let (count, limit) = (u32::from_le_bytes([a, b, c, d]) as usize, HELLO_AT_MOST_BYTES - HEAD_BYTES);
    if count > limit {
        return Err(DecodeError::TooMany { what: "bytes of a first frame", count, limit });
    }
    if let Some(missing) = count.checked_sub(rest.len()).filter(|missing| *missing > 0) {
        return Ok(Preamble::Needs(missing));
    }
    // What follows the known members is a later version's.
    let mut from = Cursor::new(&rest[..count]);
    let kind = u8::take(&mut from)?;
    take(kind, &mut from).map(Preamble::Whole)
}

members!(Versions { oldest, newest });
members!(Hello { versions, name, incarnation, rank, role, model, layout, slab_bytes });
members!(Welcome { version, session, ping_ms, silence_ms, max_open });
members!(Refusal { code, text });
codes!(Role, "role": 1 => Role::Prefill, 2 => Role::Decode, 3 => Role::Unified);
codes!(RefusalCode, "refusal of an engine":
    1 => RefusalCode::NotOurs, 2 => RefusalCode::Version, 3 => RefusalCode::User, 4 => RefusalCode::Layout,
    5 => RefusalCode::Slab, 6 => RefusalCode::Duplicate, 7 => RefusalCode::Full, 8 => RefusalCode::TooSlow,
    9 => RefusalCode::Closing, 10 => RefusalCode::Name);
