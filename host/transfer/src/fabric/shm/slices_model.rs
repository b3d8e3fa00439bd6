//! Slices held against the copies that they are cut from.

use proptest::prelude::*;

use super::slices::*;
use crate::layout::ByteCopy;

proptest! {
    #[test]
    fn slices_are_the_copies_in_order_and_bounded(
        lens in prop::collection::vec(prop_oneof![0..3_000_u64, 0..3 * SLICE_BYTES], 0..3_000),
    ) {
        let copies: Vec<_> = lens
            .iter()
            .scan(0, |at, len| {
                let copy = ByteCopy { source_offset: *at, sink_offset: *at + 7, len: *len };
                *at += len;
                Some(copy)
            })
            .collect();
        let (mut at, mut reached) = (Cursor::default(), 0);
        while !at.is_end(&copies) {
            let end = at.slice_end(&copies);
            prop_assert!(end != at, "a slice goes on");
            let slice: Vec<_> = between(&copies, at, end).collect();
            prop_assert!(slice.iter().map(|copy| copy.len).sum::<u64>() <= SLICE_BYTES);
            prop_assert!(slice.len() <= SLICE_COPIES + 1);
            for copy in slice {
                prop_assert_eq!(copy.source_offset, reached);
                prop_assert_eq!(copy.sink_offset, reached + 7);
                reached += copy.len;
            }
            at = end;
        }
        prop_assert_eq!(reached, lens.iter().sum::<u64>());
    }
}
