//! Generated from `wit/policy.wit`. The only file that knows wit-bindgen.
#![allow(missing_docs, reason = "the WIT is the documentation of these shapes")]

wit_bindgen::generate!({
    path: "wit",
    world: "policy",
    pub_export_macro: true,
    export_macro_name: "export_world",
    default_bindings_module: "sluice_policy_sdk::bindings",
    additional_derives: [PartialEq],
});
