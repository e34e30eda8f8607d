//! Attacks on a slice, each as a program that a tenant would run (crate testkit), on a simulated node.

mod attacks;
mod branches;
mod hoarders;
mod shapes;
mod stage;
mod threats;
