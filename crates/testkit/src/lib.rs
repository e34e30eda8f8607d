//! Programs that play tenants, honest ones and cheats, and what watches them from outside.
//!
//! | module | what it holds |
//! |---|---|
//! | [`raw`] | the driver's kernel interface with hand-made parameter blocks, no library between |
//! | [`tenants`] | the programs: one for each wall, the attacks of the threat list, the shapes of processes |
//! | [`conformance`] | what a card and a simulated node must agree on, as a suite that runs against each |
//! | [`stream`] | the calls of a real program as text, and what makes them again |
//! | [`outside`] | who starts them, answers their questions and asks the driver for the truth |

pub mod conformance;
pub mod outside;
pub mod raw;
pub mod stream;
pub mod tenants;

/// One KiB in bytes.
pub const KIB: u64 = 1 << 10;
/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;
/// One GiB in bytes.
pub const GIB: u64 = 1 << 30;
