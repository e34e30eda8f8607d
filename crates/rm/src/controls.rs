//! The controls of branch 580, by the class that takes them.
//!
//! Names and sizes are those of the public headers. A control that is not here is answered `NOT_SUPPORTED`: what is
//! allowed is listed, as many controls that any process may call act on the whole device or on other clients.

pub(crate) mod client;
pub(crate) mod device;
pub(crate) mod engine;
pub(crate) mod firmware;
pub(crate) mod subdevice;
