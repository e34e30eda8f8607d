//! The functions of the driver API, by subject. Each takes what the C interface hands over, asks the rest of the
//! library and gives back a status number. `exports.rs` says which symbol is which function.
//!
//! Where a function works on a stream, `PER_THREAD` says what the default stream is: the context's or the thread's.

pub mod context;
pub mod device;
pub mod entry;
pub mod graph;
pub mod ipc;
pub mod memory;
pub mod module;
pub mod pool;
pub mod stream;
pub mod transfer;
pub mod virtual_memory;
