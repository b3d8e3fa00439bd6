//! Long and rough runs on real processes: every request carries a number that is in no other, every answer is compared
//! with the right one, and at the end nothing may be left over.
#![forbid(unsafe_code)]

pub mod checked_load;
pub mod engines;
pub mod fault_plan;
pub mod faulty_engine;
pub mod memory;
