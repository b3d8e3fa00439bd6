//! What a policy file is before it is compiled: read from its bytes, without running or compiling anything.

use wasmparser::{ComponentTypeRef, Encoding, Parser, Payload};
use wit_component::ComponentEncoder;

use crate::code_bounds::CodeSize;
use crate::expansion::{self, INSTANCES_MAX};
use crate::limits::{Limits, WASM_PAGE_BYTES};
use crate::load_error::Refusal;
use crate::shown::shown;
use crate::world::with_our_world;

/// The interface that a policy exports.
pub const HOOKS: &str = "sluice:policy/hooks@0.1.0";
/// The same, any version.
const HOOKS_ANY_VERSION: &str = "sluice:policy/hooks@";
/// The one import that is allowed: it holds types only. Which version it is, the hooks tell better; and were
/// there a function in it, linking would fail, since nothing is there to satisfy it.
const TYPES_ANY_VERSION: &str = "sluice:policy/types@";
/// Custom section in which the SDK's bindings say which world a core module is for.
pub(crate) const WORLD_SECTION: &str = "component-type";
const MAGIC: &[u8; 4] = b"\0asm";
/// Of a file that is no WASM this much is read, and shown.
pub(crate) const HEAD_BYTES: usize = 24;
/// Exports of a core module that a refusal can tell of: there may be a million.
const EXPORTS_KEPT: usize = 16;
/// Magic and version.
const HEADER_BYTES: usize = 8;

/// What a WASM file says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outline {
    is_component: bool,
    names_a_world: bool,
    imports: Vec<String>,
    exports: Vec<String>,
    /// The largest memory that is there from the start, of all modules in the file.
    memory_bytes: u64,
    /// Of all modules in the file.
    code: CodeSize,
}

/// The component of a policy file, checked as far as bytes can tell.
pub(crate) fn component_of(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, Refusal> {
    check_magic(bytes)?;
    let outline = outline(bytes)?;
    check_outside(&outline, limits)?;
    if outline.is_component {
        check_hooks(&outline)?;
        check_instances(bytes)?;
        return Ok(bytes.to_vec());
    }
    if !outline.names_a_world {
        return Err(Refusal::NoWorld);
    }
    check_hooks(&outline)?;
    let not_made = |detail: String| Refusal::NotUsable { step: "made a component", detail: shown(&detail) };
    let module = with_our_world(bytes).map_err(not_made)?;
    let component = encode(&module).map_err(|error| not_made(format!("{error:#}")))?;
    let outline = self::outline(&component)?;
    check_outside(&outline, limits)?;
    check_hooks(&outline)?;
    check_instances(&component)?;
    Ok(component)
}

fn encode(module: &[u8]) -> Result<Vec<u8>, impl std::fmt::Display + use<>> {
    // wit-component's error type is not ours to name.
    ComponentEncoder::default().module(module).and_then(|encoder| encoder.validate(true).encode())
}

/// Whether a file that begins so may be WASM. [`HEAD_BYTES`] are enough.
pub(crate) fn check_magic(bytes: &[u8]) -> Result<(), Refusal> {
    if bytes.starts_with(MAGIC) {
        return Ok(());
    }
    if MAGIC.starts_with(bytes) {
        return Err(Refusal::Truncated { bytes: bytes.len() });
    }
    Err(Refusal::NotWasm { begins: first_bytes(bytes) })
}

/// Text as text, anything else in hexadecimal.
fn first_bytes(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(HEAD_BYTES)];
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    if shown.iter().all(is_text) {
        return format!("the text {:?}", String::from_utf8_lossy(shown));
    }
    let digits: Vec<_> = shown.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("the bytes {}", digits.join(" "))
}

fn outline(bytes: &[u8]) -> Result<Outline, Refusal> {
    check_length(bytes)?;
    wasmparser::Validator::new().validate_all(bytes).map_err(|error| invalid(&error))?;
    let mut outline = Outline::default();
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(|error| invalid(&error))?;
        match payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            payload => note(&mut outline, payload, depth).map_err(|error| invalid(&error))?,
        }
    }
    Ok(outline)
}

fn note(outline: &mut Outline, payload: Payload<'_>, depth: usize) -> wasmparser::Result<()> {
    match payload {
        Payload::Version { encoding, .. } if depth == 0 => {
            outline.is_component = encoding == Encoding::Component;
        }
        Payload::CustomSection(section) if depth == 0 => {
            outline.names_a_world |= section.name().starts_with(WORLD_SECTION);
        }
        Payload::CodeSectionEntry(body) => outline.code.add(&body)?,
        Payload::MemorySection(memories) => {
            for memory in memories {
                let bytes = memory?.initial.saturating_mul(WASM_PAGE_BYTES);
                outline.memory_bytes = outline.memory_bytes.max(bytes);
            }
        }
        Payload::ImportSection(imports) if depth == 0 => {
            for import in imports.into_imports() {
                let import = import?;
                outline.imports.push(format!("{} {}", import.module, import.name));
            }
        }
        Payload::ComponentImportSection(imports) if depth == 0 => {
            for import in imports {
                let import = import?;
                let types_only = import.name.name.starts_with(TYPES_ANY_VERSION)
                    && matches!(import.ty, ComponentTypeRef::Instance(_));
                if !types_only {
                    outline.imports.push(import.name.name.to_owned());
                }
            }
        }
        // Of a core module, `INTERFACE#function`.
        Payload::ExportSection(exports) if depth == 0 => {
            for export in exports {
                let name = export?.name;
                let interface = name.split_once('#').map_or(name, |(interface, _)| interface);
                let is_kept = interface == HOOKS || outline.exports.len() < EXPORTS_KEPT;
                if is_kept && outline.exports.iter().all(|known| known != interface) {
                    outline.exports.push(interface.to_owned());
                }
            }
        }
        Payload::ComponentExportSection(exports) if depth == 0 => {
            for export in exports {
                outline.exports.push(export?.name.name.to_owned());
            }
        }
        _ => {}
    }
    Ok(())
}

/// A file cut short is told apart from a broken one: a section's length points beyond the end.
fn check_length(bytes: &[u8]) -> Result<(), Refusal> {
    let truncated = Refusal::Truncated { bytes: bytes.len() };
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        // A section is its id, the length of its content, and the content.
        let Some((content_bytes, length_bytes)) = leb128_u32(&bytes[at + 1..]) else { return Err(truncated) };
        at = at.saturating_add(1 + length_bytes).saturating_add(content_bytes as usize);
    }
    if at == bytes.len() { Ok(()) } else { Err(truncated) }
}

/// The number, and how many bytes it took. `None` when the bytes end within it.
fn leb128_u32(bytes: &[u8]) -> Option<(u32, usize)> {
    const BYTES_MAX: usize = 5;
    let mut number = 0_u32;
    for (index, byte) in bytes.iter().take(BYTES_MAX).enumerate() {
        number |= u32::from(byte & 0x7f).checked_shl(7 * index as u32).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Some((number, index + 1));
        }
    }
    None
}

fn invalid(error: &wasmparser::Error) -> Refusal {
    Refusal::Invalid { offset: error.offset() as u64, detail: shown(error.message()) }
}

fn check_outside(outline: &Outline, limits: &Limits) -> Result<(), Refusal> {
    if !outline.imports.is_empty() {
        return Err(Refusal::Imports { imports: outline.imports.clone() });
    }
    if outline.memory_bytes > limits.memory_bytes as u64 {
        let needed_bytes = outline.memory_bytes;
        return Err(Refusal::MemoryTooLarge { needed_bytes, limit_bytes: limits.memory_bytes });
    }
    outline.code.check()
}

fn check_instances(component: &[u8]) -> Result<(), Refusal> {
    let instances = expansion::count(component).map_err(|error| invalid(&error))?;
    if instances > INSTANCES_MAX { Err(Refusal::TooManyInstances) } else { Ok(()) }
}

fn check_hooks(outline: &Outline) -> Result<(), Refusal> {
    if outline.exports.iter().any(|name| name == HOOKS) {
        return Ok(());
    }
    match outline.exports.iter().find(|name| name.starts_with(HOOKS_ANY_VERSION)) {
        Some(found) => Err(Refusal::WrongVersion { found: found.clone() }),
        None => Err(Refusal::NoHooks { found: outline.exports.clone() }),
    }
}
