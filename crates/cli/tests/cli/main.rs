//! The built binary on simulated nodes: no GPU and no root needed.

mod cases;
mod commands;
mod common;
mod compute;
mod cuda;
mod run;
mod setup;
