//! Whether an engine may attach, by what it says. Pure.

use sluice_engine_sdk::transport::sentence;
use sluice_engine_sdk::wire::{Hello, Refusal, RefusalCode, VERSIONS};

use crate::layout::Geometry;

/// Bytes of an engine's name: as a worker's in the configuration.
const MAX_NAME_BYTES: usize = 64;

/// What an acceptable hello comes to.
pub(super) struct Acceptable {
    /// What both speak.
    pub version: u16,
    /// How its KV lies.
    pub geometry: Geometry,
}

pub(super) fn refusal(code: RefusalCode, text: &str) -> Refusal {
    Refusal { code, text: sentence(text) }
}

/// Judges a user.
pub(super) fn user(uid: u32, own: u32, others: &[u32]) -> Result<(), Refusal> {
    if uid == own || others.contains(&uid) {
        return Ok(());
    }
    let text = format!(
        "user {uid} may not attach to a host of user {own}; run both as one user, or allow this one at the host"
    );
    Err(refusal(RefusalCode::User, &text))
}

/// Judges a hello.
pub(super) fn judge(hello: &Hello) -> Result<Acceptable, Refusal> {
    let (theirs, ours) = (hello.versions, VERSIONS);
    let version = ours.agreed(theirs).ok_or_else(|| {
        let text = format!(
            "the engine speaks versions {} to {} of the KV link, this host {} to {}; update the older of the two",
            theirs.oldest, theirs.newest, ours.oldest, ours.newest
        );
        refusal(RefusalCode::Version, &text)
    })?;
    if !(1..=MAX_NAME_BYTES).contains(&hello.name.len())
        || !hello.name.bytes().all(|byte| byte.is_ascii_graphic())
    {
        let text = format!(
            "the engine's name is {:?}: use 1 to {MAX_NAME_BYTES} visible ASCII characters, as the worker's in the router's file",
            hello.name
        );
        return Err(refusal(RefusalCode::Name, &text));
    }
    let wrong = |text: String| refusal(RefusalCode::Layout, &text);
    let geometry = Geometry::new(hello.layout).map_err(|error| wrong(error.to_string()))?;
    let (rank, ranks) = (hello.rank.0, hello.layout.tp_size);
    if u32::from(rank) >= ranks {
        return Err(wrong(format!("rank {rank} of an engine with tp_size {ranks}; ranks count from 0")));
    }
    let (slab_bytes, needed) = (hello.slab_bytes, geometry.rank_bytes());
    if slab_bytes < needed {
        return Err(wrong(format!(
            "a slab of {slab_bytes} bytes for a layout of {needed}; make the slab larger, or declare fewer blocks"
        )));
    }
    Ok(Acceptable { version, geometry })
}

#[cfg(test)]
mod tests {
    use sluice_engine_sdk::wire::{self, Rank, Role, Versions};

    use super::*;

    fn hello() -> Hello {
        let layout = wire::KvLayout {
            blocks: 8,
            block_tokens: 4,
            layers: 2,
            planes: wire::Planes::KeyValue,
            kv_heads: 2,
            head_dim: 16,
            element: wire::Element::Bf16,
            tp_size: 2,
            order: wire::Order::BlockLayerPlane,
            head_order: wire::HeadOrder::HeadsOutermost,
        };
        Hello {
            versions: VERSIONS,
            name: "decode-0".to_owned(),
            incarnation: 1,
            rank: Rank(1),
            role: Role::Decode,
            model: "m".to_owned(),
            layout,
            slab_bytes: 8 * 4 * 2 * 2 * 16 * 2,
        }
    }

    #[test]
    fn only_this_user_and_those_allowed_may_attach() {
        for (uid, may) in [(1_000, true), (1_001, true), (1_002, false), (0, false)] {
            let judged = user(uid, 1_000, &[1_001]);
            assert_eq!(judged.is_ok(), may, "{uid}");
            assert!(judged.err().is_none_or(|refused| refused.code == RefusalCode::User));
        }
    }

    #[test]
    fn both_ends_count_the_same_bytes() {
        let (hello, hosts) = (hello(), judge(&hello()).ok().map(|good| good.geometry.rank_bytes()));
        assert_eq!(hosts, hello.layout.rank_bytes());
        assert_eq!(hosts, Some(hello.slab_bytes));
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_to_do() {
        type Spoil = fn(&mut Hello);
        let cases: [(Spoil, RefusalCode, &str); 10] = [
            (|hello| hello.versions = Versions { oldest: 9, newest: 12 }, RefusalCode::Version, "update"),
            (|hello| hello.versions = Versions { oldest: 1, newest: 0 }, RefusalCode::Version, "update"),
            (|hello| hello.name.clear(), RefusalCode::Name, "visible"),
            (|hello| hello.name = "a b".to_owned(), RefusalCode::Name, "visible"),
            (|hello| hello.name = "x".repeat(65), RefusalCode::Name, "64"),
            (|hello| hello.layout.layers = 0, RefusalCode::Layout, "layers is 0"),
            (|hello| hello.layout.kv_heads = 3, RefusalCode::Layout, "multiple"),
            (|hello| hello.layout.blocks = u32::MAX, RefusalCode::Layout, "make the slab larger"),
            (|hello| hello.rank = Rank(2), RefusalCode::Layout, "count from 0"),
            (|hello| hello.slab_bytes -= 1, RefusalCode::Layout, "make the slab larger"),
        ];
        for (spoil, code, part) in cases {
            let mut hello = hello();
            spoil(&mut hello);
            let refused = judge(&hello).err().unwrap_or_else(|| panic!("{part}: accepted"));
            assert!(refused.code == code && refused.text.contains(part), "{refused:?}");
        }
    }
}
