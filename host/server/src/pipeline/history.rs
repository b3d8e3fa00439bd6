//! Step 2, its costly part: the digests of a request's history, by which its conversation is found.

use std::sync::Arc;

use sluice_core::history::chain::Chain;
use sluice_core::history::scope::{ConversationKey, Scope};

use crate::app::App;
use crate::http::error::ApiError;
use crate::off_loop;
use crate::request::{ClientRequest, OwnedRequest};
use crate::tenants::Caller;

/// What of a request its conversation is found by.
#[derive(Debug, Default)]
pub(super) struct History {
    scope: Option<Arc<Scope>>,
    /// Where its pool keeps turns. A history that is too long, or none, has none.
    pub chain: Option<Chain>,
}

/// Where a request belongs.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// The conversation that its turn belongs to.
    pub to: Option<ConversationKey>,
    /// The one that it goes on from.
    pub from: Option<ConversationKey>,
}

impl History {
    /// Digests a request's history, a long one off the event loop.
    pub async fn read(
        app: &App,
        caller: &Caller,
        request: OwnedRequest,
    ) -> Result<(OwnedRequest, Self), ApiError> {
        let asked = request.borrow_dependent();
        // A model that nobody serves has no conversations: its name is the client's invention.
        let Some(pool) = app.fleet.pool(&asked.model) else { return Ok((request, Self::default())) };
        let keeps_turns = pool.config.mode.keeps_turns();
        if !keeps_turns && asked.conversation.is_none() {
            return Ok((request, Self::default()));
        }
        let scope = app.sessions.scope(scope(app, caller, asked));
        let bytes = asked.prompt_text().len();
        let chain_of = |request: &OwnedRequest, scope: &Scope| request.borrow_dependent().history(scope).ok();
        let (request, chain) = match (keeps_turns, off_loop::is_short(bytes)) {
            (false, _) => (request, None),
            (true, true) => {
                let chain = chain_of(&request, &scope);
                (request, chain)
            }
            (true, false) => {
                let scope = scope.clone();
                let work = move || {
                    let chain = chain_of(&request, &scope);
                    (request, chain)
                };
                // Boxed: few requests are long, and all would carry its state.
                Box::pin(off_loop::run(bytes, work)).await?
            }
        };
        Ok((request, Self { scope: Some(scope), chain }))
    }

    /// The conversation that the client names, else the one that the history is of.
    pub fn place(&self, app: &App, named: Option<&str>) -> Place {
        let Some(scope) = &self.scope else { return Place::default() };
        if let Some(name) = named {
            let key = ConversationKey::named(scope, name);
            return Place { to: Some(key.clone()), from: Some(key) };
        }
        let Some(chain) = &self.chain else { return Place::default() };
        let found = app.sessions.find(chain);
        let key = |line| ConversationKey::derived(scope, line);
        Place { to: Some(key(found.to)), from: found.from.map(key) }
    }
}

/// What the request's conversation never crosses.
fn scope(app: &App, caller: &Caller, request: &ClientRequest<'_>) -> Scope {
    Scope {
        tenant: caller.name.to_string(),
        model: request.model.clone(),
        // An adapter is a served model by a name of its own.
        adapter: None,
        salt: app.tenants.salt(caller, &request.model),
        endpoint: request.endpoint.path().into(),
    }
}
