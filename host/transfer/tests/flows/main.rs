//! How transfers and holds go, one case after the other: what users of such systems ran into, and how it ends here.

mod aborts;
mod anything;
mod leases;
mod lies;
mod pair;
mod parts;
mod ways;
