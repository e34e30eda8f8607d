//! Attacks on a slice, each as a program that a tenant would run (crate testkit), on a simulated node.

#[path = "../cli/common.rs"]
#[expect(dead_code, reason = "shared with the tests of the commands")]
mod common;
#[path = "../cli/time.rs"]
#[expect(dead_code, reason = "shared with the faults of the scheduler")]
mod time;

mod attacks;
mod beyond;
mod branches;
mod fuzz;
mod hoarders;
mod killed;
mod shapes;
mod shares;
mod stage;
mod threats;
mod threats_more;
