//! The decisions of gpuslice: amounts and sizes, who holds which device memory, what the driver
//! really takes for an allocation, how many objects and calls a tenant may have, how a
//! card's time is divided, and which requests a node can grant. Plain data and integers: no I/O, no clock, no threads, no unsafe.
#![forbid(unsafe_code)]

pub mod admission;
pub mod budget;
pub mod ledger;
pub mod objects;
pub mod rounding;
pub mod share;
pub mod units;
