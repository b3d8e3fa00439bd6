//! Joins a [`Policy`] to the exported WIT interface. What a policy needs of it is [`export!`](crate::export!).

use std::cell::RefCell;
use std::marker::PhantomData;

use crate::bindings::exports::sluice::policy::hooks::Guest;
use crate::{Description, Facts, Lease, Policy, Prefilled, Renewal, Retention, Row, TurnEnd, Verdict};

/// Exports a policy from a `cdylib` crate: `export!(MyPolicy);`.
///
/// Emits nothing but a type check on targets other than wasm32, so that many policies link into one native
/// test program.
#[macro_export]
macro_rules! export {
    ($policy:ty) => {
        const _: () = {
            const fn is_policy<P: $crate::Policy>() {}
            is_policy::<$policy>();
        };

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            ::std::thread_local! {
                static CONFIGURED: $crate::export::Configured<$policy> =
                    const { $crate::export::Configured::new() };
            }

            impl $crate::export::Exported for $policy {
                const NAME: &'static str = env!("CARGO_PKG_NAME");
                const VERSION: &'static str = env!("CARGO_PKG_VERSION");
                const ABOUT: &'static str = env!("CARGO_PKG_DESCRIPTION");

                fn configured<R>(call: impl FnOnce(&$crate::export::Configured<Self>) -> R) -> R {
                    CONFIGURED.with(call)
                }
            }

            type Exporter = $crate::export::Exporter<$policy>;
    $crate::bindings::export_world!(Exporter with_types_in $crate::bindings);
        };
    };
}

/// What [`export!`](crate::export!) knows of a policy beyond the trait.
pub trait Exported: Policy {
    /// Name of the policy's package.
    const NAME: &'static str;
    /// Version of the policy's package.
    const VERSION: &'static str;
    /// Description of the policy's package.
    const ABOUT: &'static str;

    /// Lends the place that holds the configured policy.
    fn configured<R>(call: impl FnOnce(&Configured<Self>) -> R) -> R;
}

/// The configured policy of this instance.
#[derive(Debug)]
pub struct Configured<P>(RefCell<Option<P>>);

impl<P: Policy> Configured<P> {
    /// Nothing configured yet.
    pub const fn new() -> Self {
        Self(RefCell::new(None))
    }

    /// Puts a policy with these settings in the place of what was there; refused settings leave it as it was.
    pub fn configure(&self, settings: &str) -> Result<(), String> {
        let policy = P::configure(settings)?;
        self.0.replace(Some(policy));
        Ok(())
    }

    /// Asks the configured policy.
    ///
    /// # Panics
    /// When nothing was configured: the host configures before it asks, so that is a fault, not an answer.
    pub fn ask<R>(&self, question: impl FnOnce(&P) -> R) -> R {
        match &*self.0.borrow() {
            Some(policy) => question(policy),
            None => panic!("asked before configure"),
        }
    }
}

impl<P: Policy> Default for Configured<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// The exported interface, for one policy.
#[derive(Debug)]
pub struct Exporter<P>(PhantomData<P>);

impl<P: Exported> Guest for Exporter<P> {
    fn describe() -> Description {
        Description {
            name: P::NAME.to_owned(),
            version: P::VERSION.to_owned(),
            about: P::ABOUT.to_owned(),
            settings_schema: P::settings_schema(),
        }
    }

    fn configure(settings: String) -> Result<(), String> {
        P::configured(|place| place.configure(&settings))
    }

    fn route(facts: Facts) -> Verdict {
        P::configured(|place| place.ask(|policy| policy.route(&facts)))
    }

    fn bind_decode(facts: Facts, prefilled: Prefilled) -> Option<Row> {
        P::configured(|place| place.ask(|policy| policy.bind_decode(&facts, &prefilled)))
    }

    fn retain(turn: TurnEnd) -> Retention {
        P::configured(|place| place.ask(|policy| policy.retain(&turn)))
    }

    fn heartbeat(lease: Lease) -> Renewal {
        P::configured(|place| place.ask(|policy| policy.heartbeat(&lease)))
    }
}
