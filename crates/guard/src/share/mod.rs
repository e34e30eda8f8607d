//! Compute shares: the levers that act on the GPU's own scheduler, the sensor that reads who ran, and the node's
//! scheduler between them.
//!
//! `policy::share` decides; here is what carries it out. A tenant's helper knows its channel groups and pulls the levers
//! ([`levers`]); one process of the node reads the context-switch timeline ([`timeline`]), or asks who is on the card where
//! there is none ([`sampled`]), and plans ([`scheduler`]). They speak through memory that both map ([`board`]), so that either can die at any instruction and the other finds
//! everything that was agreed.

pub mod board;
pub mod levers;
mod numbers;
pub mod sampled;
pub mod scheduler;
pub(crate) mod shared;
pub mod start;
pub mod timeline;
