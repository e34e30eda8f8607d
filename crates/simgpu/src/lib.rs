//! A GPU in software: the kernel side of the driver (the resource manager, RM) as a process of its own.
//!
//! A program's `libcuda.so.1` (crate simcuda) opens device nodes, makes ioctls and submits work through
//! [`client`]; [`server`] is the process behind the socket. What an ioctl does is in the private module `resman`,
//! which is faithful to the driver where a wall of the guard depends on it: who may use a client handle, what keeps
//! memory alive, who may stop whose channels. Everything an ioctl carries is checked; no request can end the server.

pub mod client;
pub mod proto;
mod resman;
pub mod server;
pub mod spec;
pub mod usage;
mod wire;
pub mod work;

/// Version of the driver that a simulated node behaves like unless its name says otherwise.
pub const DRIVER_VERSION: &str = "580.159.04";

/// The kernel interface that a simulated driver of this version has: that of its branch, and of [`DRIVER_VERSION`]'s
/// where nobody knows its branch.
///
/// # Panics
/// Never: the branch of [`DRIVER_VERSION`] is known.
pub fn abi_of(version: &str) -> &'static rm::Abi {
    rm::for_driver(version)
        .or_else(|_| rm::for_driver(DRIVER_VERSION))
        .map(|found| found.abi)
        .expect("the simulated driver is of a known branch")
}

/// Name of the environment variable that holds the path of the server's socket.
pub const SOCKET_VARIABLE: &str = "GPUSLICE_SIM";
