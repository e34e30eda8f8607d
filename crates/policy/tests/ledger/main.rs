//! The ledger against a model that is too simple to be wrong, and the ways round it that a tenant
//! may try.

mod counts;
mod model;
mod threats;
mod walls;
