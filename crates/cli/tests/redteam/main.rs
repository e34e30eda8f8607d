//! Attacks on a slice, each as a program that a tenant would run (crate testkit), on a simulated node.

mod attacks;
mod beyond;
mod branches;
mod fuzz;
mod hoarders;
mod killed;
mod shapes;
mod stage;
mod threats;
mod threats_more;
