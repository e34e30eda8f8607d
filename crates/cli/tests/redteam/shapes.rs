//! Shapes of processes in a slice: each behaves as it does natively, and charges follow who holds what.

use crate::stage::{Stage, assert_held};

/// Plays the program of that name.
fn shape(name: &str) {
    assert_held(&Stage::new().play(&[name]));
}

#[test]
fn fork_gives_the_child_a_client_of_its_own() {
    shape("shape_fork");
}

#[test]
fn vfork_and_exec() {
    shape("shape_vfork_exec");
}

#[test]
fn exec_with_an_inherited_file_keeps_the_charge() {
    shape("shape_exec");
}

#[test]
fn threads_with_clients_of_their_own() {
    shape("shape_threads");
}

#[test]
fn a_threads_own_descriptor_table_is_the_one_that_counts() {
    shape("shape_own_table");
}

#[test]
fn exit_returns_the_charge() {
    shape("shape_exit");
}

#[test]
fn kill_returns_the_charge_within_two_seconds() {
    shape("shape_kill");
}

#[test]
fn a_duplicated_descriptor_keeps_the_client() {
    shape("shape_dup");
}

#[test]
fn a_descriptor_handed_on_keeps_the_client() {
    shape("shape_scm_rights");
}

#[test]
fn the_first_threads_end_is_not_the_processes() {
    shape("shape_leader_exit");
}

#[test]
fn signals_at_one_kilohertz_double_nothing() {
    shape("signals_no_double_charge");
}
