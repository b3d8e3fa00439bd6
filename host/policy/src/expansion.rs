//! How many instances a component makes, counted before it is compiled: components that instantiate one another twice
//! each double with each step, and the compiler would write all of them out.

use wasmparser::{
    ComponentAlias, ComponentExternalKind, ComponentInstance, ComponentOuterAliasKind, ComponentTypeRef,
    Instance, Parser, Payload,
};

/// Most instances of modules and components that one policy may make. Ours make 3, a JavaScript engine 36.
pub(crate) const INSTANCES_MAX: u64 = 256;

/// What cannot be told from the file: a component that comes from outside.
const UNKNOWN: u64 = u64::MAX;

/// A component or module whose sections are being read.
#[derive(Default)]
struct Open {
    is_component: bool,
    /// Instances that one instance of it makes, itself included.
    instances: u64,
    /// The same of each component that it can name, by index.
    components: Vec<u64>,
}

/// Instances that a valid component makes when it is instantiated once.
pub(crate) fn count(component: &[u8]) -> wasmparser::Result<u64> {
    let mut open = vec![Open { is_component: true, instances: 1, components: Vec::new() }];
    for payload in Parser::new(0).parse_all(component) {
        match payload? {
            Payload::ModuleSection { .. } => open.push(Open::default()),
            Payload::ComponentSection { .. } => {
                open.push(Open { is_component: true, instances: 1, components: Vec::new() });
            }
            Payload::End(_) if open.len() > 1 => close(&mut open),
            payload => note(&mut open, payload)?,
        }
    }
    Ok(open.first().map_or(0, |whole| whole.instances))
}

fn close(open: &mut Vec<Open>) {
    let closed = open.pop().filter(|closed| closed.is_component);
    if let (Some(closed), Some(outer)) = (closed, open.last_mut()) {
        outer.components.push(closed.instances);
    }
}

fn note(open: &mut [Open], payload: Payload<'_>) -> wasmparser::Result<()> {
    match payload {
        Payload::InstanceSection(instances) => {
            for instance in instances {
                if let (Instance::Instantiate { .. }, Some(this)) = (instance?, open.last_mut()) {
                    this.instances = this.instances.saturating_add(1);
                }
            }
        }
        Payload::ComponentInstanceSection(instances) => {
            for instance in instances {
                let made = match instance? {
                    ComponentInstance::Instantiate { component_index, .. } => named(open, 0, component_index),
                    ComponentInstance::FromExports(_) => 1,
                };
                if let Some(this) = open.last_mut() {
                    this.instances = this.instances.saturating_add(made);
                }
            }
        }
        Payload::ComponentAliasSection(aliases) => {
            for alias in aliases {
                let instances = match alias? {
                    ComponentAlias::Outer { kind: ComponentOuterAliasKind::Component, count, index } => {
                        named(open, count, index)
                    }
                    ComponentAlias::InstanceExport { kind: ComponentExternalKind::Component, .. } => UNKNOWN,
                    _ => continue,
                };
                open.last_mut().into_iter().for_each(|this| this.components.push(instances));
            }
        }
        Payload::ComponentImportSection(imports) => {
            for import in imports {
                if let (ComponentTypeRef::Component(_), Some(this)) = (import?.ty, open.last_mut()) {
                    this.components.push(UNKNOWN);
                }
            }
        }
        Payload::ComponentExportSection(exports) => {
            // An export is one more name of what it exports.
            for export in exports {
                let export = export?;
                if export.kind == ComponentExternalKind::Component {
                    let instances = named(open, 0, export.index);
                    open.last_mut().into_iter().for_each(|this| this.components.push(instances));
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Instances that the component of this index makes, so many components outwards.
fn named(open: &[Open], outwards: u32, index: u32) -> u64 {
    let outer = open.iter().rev().filter(|open| open.is_component).nth(outwards as usize);
    outer.and_then(|outer| outer.components.get(index as usize)).copied().unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> u64 {
        count(&wat::parse_str(text).unwrap()).unwrap()
    }

    #[test]
    fn instances_are_counted_as_they_are_made() {
        for (text, expected) in [
            ("(component)", 1),
            (
                "(component (core module $m) (core instance (instantiate $m)) (core instance (instantiate $m)))",
                3,
            ),
            // A definition that nobody instantiates makes nothing.
            ("(component (component (core module $m) (core instance (instantiate $m))))", 1),
            (
                "(component
                    (component $a (core module $m) (core instance (instantiate $m)))
                    (export $b \"b\" (component $a))
                    (instance (instantiate $a)) (instance (instantiate $b)))",
                5,
            ),
            (
                "(component
                    (component $a)
                    (component $b (alias outer 1 $a (component $p))
                        (instance (instantiate $p)) (instance (instantiate $p)))
                    (instance (instantiate $b)) (instance (instantiate $b)))",
                7,
            ),
            // Who it is, only the file's user knows.
            ("(component (import \"a\" (component $a)) (instance (instantiate $a)))", UNKNOWN),
        ] {
            assert_eq!(counted(text), expected, "{text}");
        }
    }

    #[test]
    fn what_doubles_with_each_step_does_not_overflow() {
        let mut text = "(component (component $c0)".to_owned();
        for step in 1..100 {
            let inner = step - 1;
            text.push_str(&format!(
                "(component $c{step} (alias outer 1 $c{inner} (component $p))
                    (instance (instantiate $p)) (instance (instantiate $p)))"
            ));
        }
        assert_eq!(counted(&format!("{text} (instance (instantiate $c99)))")), UNKNOWN);
    }
}
