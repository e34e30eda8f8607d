//! Enforcement from outside the tenant.
//!
//! A tenant's calls to the NVIDIA driver are notified by a seccomp filter ([`filter`], [`listener`]), taken by its
//! helper process ([`helper`]) and executed there on a copy ([`mediator`]), with every byte of device memory in a
//! ledger (`policy::ledger`). What the tenant is told about memory is its slice. [`audit`] compares the ledger with what
//! the kernel and the driver say; [`registry`] keeps the quotas of one node within its cards.

mod ahead;
pub mod audit;
mod auditor;
pub mod backend;
mod block;
mod bpf;
mod btf;
pub mod budget;
mod caller;
pub mod cgroup;
pub mod device_wall;
mod files;
pub mod filter;
pub mod helper;
pub mod limits;
pub mod listener;
pub mod mediator;
pub mod privilege;
pub mod procfs;
mod procmap;
pub mod registry;
pub mod rmcall;
mod sandbox;
pub mod share;
mod spaces;
mod stay;
pub mod supervisor;
pub mod sys;
pub mod tenant;
pub mod trace;
pub mod unknown;
mod wall_program;
pub mod workers;
