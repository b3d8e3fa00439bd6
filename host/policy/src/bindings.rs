//! The WIT as Rust types, generated from the file that the SDK reads too.
//!
//! Parameters borrow: passing facts costs one copy, from the host's columns straight into the guest's memory.
#![allow(missing_docs, reason = "generated; the WIT file is the documentation")]

wasmtime::component::bindgen!({
    path: "../../sdk/policy/wit",
    world: "policy",
    ownership: Borrowing { duplicate_if_necessary: true },
});
