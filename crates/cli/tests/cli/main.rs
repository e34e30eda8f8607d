//! The built binary on simulated nodes: no GPU and no root needed.

mod commands;
mod common;
mod run;
