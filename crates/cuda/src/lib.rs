//! The CUDA driver API and NVML as one table: function names, exported symbols, which symbol a version of the API
//! means ([`resolve`]), and the status numbers. No behaviour lives here.
//!
//! [`driver`] and [`nvml`] hold the names, [`status`] the numbers. The two generated lists are also macros
//! ([`for_each_driver_symbol`] and [`for_each_nvml_symbol`]), for whoever has to make one item per symbol.

#![forbid(unsafe_code)]

pub mod driver;
pub mod nvml;
pub mod status;

pub use driver::{Absent, Flags, Function, Version, find, resolve};
