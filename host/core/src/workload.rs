//! Which workload a request belongs to, and with it which policy decides: the first binding that matches.

use serde::Serialize;

/// The workload of requests that no binding matches.
pub const DEFAULT_WORKLOAD: &str = "default";

/// Request headers whose values are secrets: no policy, binding, decision record or log is given them.
pub const SECRET_HEADERS: [&str; 5] =
    ["authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"];

/// One workload: what belongs to it, and who decides for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Binding {
    /// Its name.
    pub workload: String,
    /// What belongs to it.
    #[serde(rename = "match")]
    pub matches: Match,
    /// The policy that decides.
    pub policy: String,
    /// What its requests' time to first token should be, if that was said.
    pub ttft_target_ms: Option<u32>,
    /// What its requests' time per output token should be, if that was said.
    pub tpot_target_ms: Option<u32>,
}

/// Conditions that must all hold. `None` asks for nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Match {
    /// The model that the request names.
    pub model: Option<String>,
    /// Who asks.
    pub tenant: Option<String>,
    /// A header with a value.
    pub header: Option<HeaderMatch>,
    /// How the path begins.
    pub path_prefix: Option<String>,
}

/// A header, and the value it must have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeaderMatch {
    /// In lower case.
    pub name: String,
    /// The whole value.
    pub value: String,
}

/// What a binding may look at of a request.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// As the request names it.
    pub model: &'a str,
    /// Who asks.
    pub tenant: &'a str,
    /// Path of the request.
    pub path: &'a str,
}

impl Match {
    /// Whether it asks for nothing, so that every request would match.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a request matches. `header_is` says whether the header of a name has a value.
    pub fn holds(&self, asked: &Asked<'_>, header_is: impl Fn(&str, &str) -> bool) -> bool {
        let same =
            |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
        let begins = |prefix: &String| asked.path.starts_with(prefix.as_str());
        same(&self.model, asked.model)
            && same(&self.tenant, asked.tenant)
            && self.path_prefix.as_ref().is_none_or(begins)
            && self.header.as_ref().is_none_or(|header| header_is(&header.name, &header.value))
    }
}

/// The first binding that matches a request, by its place. `header_is` says whether the header of a name has a value.
pub fn first(
    bindings: &[Binding],
    asked: &Asked<'_>,
    header_is: impl Fn(&str, &str) -> bool,
) -> Option<usize> {
    bindings.iter().position(|binding| binding.matches.holds(asked, &header_is))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(workload: &str, matches: Match) -> Binding {
        let (workload, policy) = (workload.to_owned(), "p".to_owned());
        Binding { workload, matches, policy, ttft_target_ms: None, tpot_target_ms: None }
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn header(name: &str, value: &str) -> Option<HeaderMatch> {
        Some(HeaderMatch { name: name.to_owned(), value: value.to_owned() })
    }

    fn bindings() -> Vec<Binding> {
        vec![
            binding("batch", Match { header: header("x-workload", "batch"), ..Match::default() }),
            binding(
                "search-chat",
                Match { tenant: some("search"), path_prefix: some("/v1/chat"), ..Match::default() },
            ),
            binding("search", Match { tenant: some("search"), ..Match::default() }),
            binding("small", Match { model: some("small"), ..Match::default() }),
            binding(
                "all-four",
                Match {
                    model: some("big"),
                    tenant: some("ads"),
                    header: header("x-tier", "gold"),
                    path_prefix: some("/v1/completions"),
                },
            ),
        ]
    }

    #[test]
    fn the_first_that_matches_wins() {
        const CHAT: &str = "/v1/chat/completions";
        const TEXT: &str = "/v1/completions";
        let bindings = bindings();
        for (model, tenant, path, headers, expected) in [
            ("big", "other", CHAT, &[][..], None),
            ("big", "other", CHAT, &[("x-workload", "batch")], Some("batch")),
            ("big", "other", CHAT, &[("x-workload", "Batch")], None),
            ("big", "other", CHAT, &[("x-workload", "batch2")], None),
            // Earlier in the file goes before what is more exact.
            ("small", "search", CHAT, &[("x-workload", "batch")], Some("batch")),
            ("small", "search", CHAT, &[], Some("search-chat")),
            ("small", "search", TEXT, &[], Some("search")),
            ("small", "other", TEXT, &[], Some("small")),
            ("smaller", "other", TEXT, &[], None),
            ("big", "ads", TEXT, &[("x-tier", "gold")], Some("all-four")),
            // Every condition must hold.
            ("big", "ads", TEXT, &[("x-tier", "tin")], None),
            ("big", "ads", CHAT, &[("x-tier", "gold")], None),
            ("big", "adsx", TEXT, &[("x-tier", "gold")], None),
            ("bigger", "ads", TEXT, &[("x-tier", "gold")], None),
        ] {
            let header_is = |name: &str, value: &str| headers.contains(&(name, value));
            let found = first(&bindings, &Asked { model, tenant, path }, header_is);
            let found = found.map(|place| bindings[place].workload.as_str());
            assert_eq!(found, expected, "{model} {tenant} {path} {headers:?}");
        }
    }

    #[test]
    fn only_a_match_without_conditions_is_empty() {
        assert!(Match::default().is_empty());
        assert!(bindings().iter().all(|binding| !binding.matches.is_empty()));
    }
}
