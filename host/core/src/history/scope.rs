//! What conversations never cross.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Digest;
use super::digest;

/// What must be equal, all of it, before anything of a conversation is looked at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Scope {
    /// Who pays.
    pub tenant: String,
    /// Served model name.
    pub model: String,
    /// What is laid over the model, if anything is: its KV is another.
    pub adapter: Option<String>,
    /// Keeps apart what one tenant wants apart.
    pub salt: Option<String>,
    /// Path: chat and completions render prompts differently.
    pub endpoint: Cow<'static, str>,
}

impl Scope {
    /// Where the chains of this scope begin: no digest of one scope is one of another.
    pub fn seed(&self) -> Digest {
        let mut hasher = digest::Hasher::of(b'c');
        for text in [&*self.tenant, &*self.model, &*self.endpoint] {
            hasher.counted(text.as_bytes());
        }
        for text in [&self.adapter, &self.salt] {
            hasher.bytes(&[u8::from(text.is_some())]);
            hasher.counted(text.as_deref().unwrap_or_default().as_bytes());
        }
        hasher.digest()
    }
}

/// Which conversation of its scope.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Conversation {
    /// The client's own name for it.
    Named(Arc<str>),
    /// By its history: a line of [`super::lines`].
    Derived(Digest),
}

/// A conversation's exact key. The scope's text is compared, not a digest of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConversationKey {
    /// What it never crosses. Shared, since a key stands in several tables.
    pub scope: Arc<Scope>,
    /// Which one of those.
    pub conversation: Conversation,
}

/// All that clients choose freely. Models, adapters and endpoints are few, and hashing their texts would be half of a look-up's
/// hashing.
impl Hash for ConversationKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.scope.tenant, &self.scope.salt, &self.conversation).hash(state);
    }
}

impl ConversationKey {
    /// A conversation that the client names.
    pub fn named(scope: &Arc<Scope>, name: impl Into<Arc<str>>) -> Self {
        Self { scope: scope.clone(), conversation: Conversation::Named(name.into()) }
    }

    /// A conversation that is known by its history.
    pub fn derived(scope: &Arc<Scope>, line: Digest) -> Self {
        Self { scope: scope.clone(), conversation: Conversation::Derived(line) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(
        tenant: &str,
        model: &str,
        adapter: Option<&str>,
        salt: Option<&str>,
        endpoint: &'static str,
    ) -> Scope {
        Scope {
            tenant: tenant.to_owned(),
            model: model.to_owned(),
            adapter: adapter.map(str::to_owned),
            salt: salt.map(str::to_owned),
            endpoint: Cow::Borrowed(endpoint),
        }
    }

    #[test]
    fn each_part_of_a_scope_sets_it_apart() {
        let scopes = [
            scope("t", "m", None, None, "/v1/chat/completions"),
            scope("t", "m", None, None, "/v1/completions"),
            scope("tm", "", None, None, "/v1/completions"),
            scope("", "tm", None, None, "/v1/completions"),
            scope("t", "m", Some(""), None, "/v1/completions"),
            scope("t", "m", None, Some(""), "/v1/completions"),
            scope("t", "m", Some("x"), None, "/v1/completions"),
            scope("t", "m", None, Some("x"), "/v1/completions"),
            scope("t", "m", Some("x"), Some("x"), "/v1/completions"),
        ];
        let seeds: std::collections::BTreeSet<_> = scopes.iter().map(Scope::seed).collect();
        assert_eq!(seeds.len(), scopes.len());
        let keys: std::collections::BTreeSet<_> =
            scopes.iter().map(|scope| ConversationKey::named(&Arc::new(scope.clone()), "c")).collect();
        assert_eq!(keys.len(), scopes.len());
    }

    #[test]
    fn equal_keys_hash_alike_whoever_shares_their_scope() {
        let key = |model| {
            let scope = scope("t", model, None, Some("s"), "/v1/completions");
            ConversationKey::named(&Arc::new(scope), "c")
        };
        let keys = [key("m"), key("m"), key("n")];
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), 2);
    }

    #[test]
    fn a_name_is_never_taken_for_a_digest() {
        let scope = Arc::new(scope("t", "m", None, None, "/v1/completions"));
        let digest = scope.seed();
        let named = ConversationKey::named(&scope, format!("{digest:?}"));
        assert_ne!(named, ConversationKey::derived(&scope, digest));
    }
}
