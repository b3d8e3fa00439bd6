//! What people should know of bindings that can be used as they stand, and yet do not do what was meant.

use sluice_core::workload::Binding;

use crate::config::BUILTIN;
use crate::spelling::nearest;

/// That a policy which decides has no file, and what was most likely meant: one of those that there are, or the
/// built-in one.
pub fn missing<'n>(file: &str, policy: &str, there: impl IntoIterator<Item = &'n str>) -> String {
    let names = there.into_iter().chain([BUILTIN]);
    format!("there is no {file}: the built-in default decides{}", did_you_mean(policy, names))
}

/// That no request can belong to a binding, since no pool serves its model; and which was most likely meant.
pub fn unserved<'n>(binding: &Binding, served: impl Iterator<Item = &'n str> + Clone) -> Option<String> {
    let model = binding.matches.model.as_deref()?;
    let is_served = served.clone().any(|other| other == model);
    let near = || did_you_mean(model, served);
    (!is_served).then(|| format!("nothing matches: no pool serves model {model:?}{}", near()))
}

/// The end of a sentence, empty where nothing is near.
pub fn did_you_mean<'n>(written: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    let others = names.into_iter().filter(|name| *name != written);
    nearest(written, others).map(|near| format!("; did you mean {near:?}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use sluice_core::workload::Match;

    use super::*;

    #[test]
    fn a_missing_policy_is_told_with_what_was_meant() {
        for (policy, near) in [
            ("adaptve", "; did you mean \"adaptive\"?"),
            ("least", "; did you mean \"least-loaded\"?"),
            ("buildin", "; did you mean \"builtin\"?"),
            ("mine", ""),
            // The file went while its name is still known.
            ("adaptive", ""),
        ] {
            let told = missing("p.wasm", policy, ["adaptive", "least-loaded"]);
            assert_eq!(told, format!("there is no p.wasm: the built-in default decides{near}"));
        }
    }

    #[test]
    fn a_model_that_no_pool_serves_is_told() {
        for (model, expected) in [
            (None, None),
            (Some("llama-8b"), None),
            (Some("llama-9b"), Some("\"llama-9b\"; did you mean \"llama-8b\"?")),
            (Some("mistral"), Some("\"mistral\"")),
        ] {
            let matches = Match { model: model.map(str::to_owned), ..Match::default() };
            let (workload, policy) = ("w".to_owned(), "p".to_owned());
            let binding = Binding { workload, matches, policy, ttft_target_ms: None, tpot_target_ms: None };
            let expected = expected.map(|end| format!("nothing matches: no pool serves model {end}"));
            assert_eq!(unserved(&binding, ["llama-8b", "qwen-30b"].into_iter()), expected);
        }
    }
}
