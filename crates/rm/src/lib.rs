//! NVIDIA's kernel interface as data: layouts by driver branch, every ioctl, UVM call, class and control, and
//! what the guard decides about each. No behaviour lives here, and nothing here needs `unsafe`.
//!
//! Start with [`table`] (what an entry says), then [`Abi`] (one driver branch), then the entries themselves.
//!
//! | module | what it holds |
//! |---|---|
//! | [`layout`] | sizes and field offsets of parameter blocks, the same on every branch |
//! | [`varying`] | offsets that are not |
//! | [`nr`], [`uvm`], [`class`], [`ctrl`], [`timeline`] | numbers, by name |
//! | `escapes`, `uvm_calls`, `classes`, `controls` | the entries of branch 580, one row each |
//! | `branches` | what each branch changes, and its releases |
//! | [`abi`] | look-ups: which driver has which entries |
//!
//! A number that has no entry is refused: what a tenant may call is listed, never what it may not.

#![forbid(unsafe_code)]

#[macro_use]
mod row;

pub mod abi;
mod branches;
pub mod class;
mod classes;
mod controls;
pub mod ctrl;
mod escapes;
pub mod layout;
pub mod nr;
pub mod table;
pub mod timeline;
pub mod uvm;
mod uvm_calls;
pub mod varying;

pub use abi::{Abi, Found, UnknownBranch, branches, for_driver};
pub use escapes::UNSIZED_ESCAPES;
pub use table::*;
