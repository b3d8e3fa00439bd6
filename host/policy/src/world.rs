//! The policy world, said by the host: what a module's own section says of its world is left out, not read. Its reader
//! was made for sections that compilers wrote, and one wrong byte can send it round in a circle until the stack is used up.

use std::sync::OnceLock;

use wasmparser::{Parser, Payload};
use wit_component::{StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use crate::component_file::WORLD_SECTION;

/// The one interface file.
const WIT: &str = include_str!("../../../sdk/policy/wit/policy.wit");
/// The world in it.
const WORLD: &str = "policy";
/// Magic and version of a module.
const MODULE_HEADER: [u8; 8] = *b"\0asm\x01\0\0\0";

/// The module with our world in place of whatever it says. `module` must be valid.
pub(crate) fn with_our_world(module: &[u8]) -> Result<Vec<u8>, String> {
    let mut plain = without_worlds(module).map_err(|error| error.to_string())?;
    plain.extend_from_slice(our_section()?);
    Ok(plain)
}

fn without_worlds(module: &[u8]) -> wasmparser::Result<Vec<u8>> {
    let mut kept = MODULE_HEADER.to_vec();
    // Where the last section ended: a section's id and length lie between that and its content.
    let mut at = MODULE_HEADER.len();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload?;
        let says_world =
            matches!(&payload, Payload::CustomSection(section) if section.name().starts_with(WORLD_SECTION));
        if let Some((_, content)) = payload.as_section() {
            if !says_world {
                kept.extend(module.get(at..content.end).unwrap_or_default());
            }
            at = content.end;
        }
    }
    Ok(kept)
}

/// The section that says our world, as it stands at the end of a module.
fn our_section() -> Result<&'static [u8], String> {
    static SECTION: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
    let section = SECTION.get_or_init(|| {
        let failed = |error: &dyn std::fmt::Display| format!("{error:#}");
        let mut resolve = Resolve::default();
        let package = resolve.push_str("policy.wit", WIT).map_err(|error| failed(&error))?;
        let world = resolve.select_world(&[package], Some(WORLD)).map_err(|error| failed(&error))?;
        let mut module = MODULE_HEADER.to_vec();
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)
            .map_err(|error| failed(&error))?;
        Ok(module.split_off(MODULE_HEADER.len()))
    });
    section.as_deref().map_err(Clone::clone)
}
