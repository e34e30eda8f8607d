//! Attacks on what the guard infers: who holds a file, what a process maps, whose client a handle is.

use crate::stage::{Stage, assert_held};

/// Plays the program of that name.
fn attack(name: &str) {
    assert_held(&Stage::new().play(&[name]));
}

// `Tenant::sweep` unmaps what a file still maps before it gives the charge back.
#[test]
fn redteam_a_file_that_a_silent_process_holds_keeps_no_uncharged_memory() {
    attack("attack_hidden_holder");
}

// `audit::maps_of` reads a thread that still runs where the first one has ended.
#[test]
fn redteam_managed_memory_stays_charged_when_the_first_thread_ends() {
    attack("attack_leader_exit_managed");
}

// `Worker::mmap` asks for the pools of the very file; `Worker::uvm_loaded` bounds their size.
#[test]
fn redteam_a_semaphore_pool_hides_no_managed_memory() {
    attack("attack_pool_covers_nothing");
}

// `Files::forget_client` and `Files::add_client`: a handle belongs to the file it was last allocated on.
#[test]
fn redteam_a_client_handle_taken_again_is_not_freed_with_its_first_file() {
    attack("attack_client_handle_again");
}

// `Worker::escape` takes a number only with a size that the driver takes.
#[test]
fn redteam_a_number_without_a_size_does_not_end_the_helper() {
    attack("attack_numbers_without_size");
}

// `Worker::mmap` lets a mapping run only where it could look at the file; `Files::enter`, `Files::watched`, `Callers` and
// `Processes::note` leave descriptors over.
#[test]
fn redteam_a_helper_without_descriptors_charges_all_the_same() {
    assert_held(&Stage::new().play_with_descriptors(128, &["attack_no_descriptors_left"]));
}

// `audit::note_inherited`: what a process has mapped at its first call is not its own.
#[test]
fn redteam_a_forked_child_is_not_judged_by_what_it_inherited() {
    attack("attack_fork_managed");
}

// `Files::cut_inherited` at every mapping that is looked at, whatever its file.
#[test]
fn redteam_an_inherited_mapping_covers_no_other() {
    let played = Stage::new().play(&["attack_fork_replaces_managed"]);
    assert!(played.findings.is_empty(), "{:?}", played.findings);
    assert!(
        played.errors.contains("1 GiB") && played.errors.contains("never charged"),
        "{}",
        played.errors
    );
}

// `Worker::mmap` looks once more whether the process is known.
#[test]
fn redteam_a_process_killed_while_it_maps_leaves_no_charge() {
    attack("attack_killed_while_mapping");
}

// `Worker::still_known` in the order of the client's calls.
#[test]
fn redteam_a_handle_that_changes_while_it_is_named_is_looked_at_again() {
    attack("attack_handle_changes");
}

// `Worker::export` records an export when the driver has made it.
#[test]
fn redteam_a_refused_export_holds_no_memory() {
    attack("attack_refused_export");
}

// `Tenant::note_ended` gives managed memory back when its address space is gone, not when the process is.
#[test]
fn redteam_managed_memory_stays_charged_while_its_address_space_lives() {
    attack("attack_shared_space");
}

// `audit::refresh_managed` looks at the address space that was charged, not at the one that the process has now.
#[test]
fn redteam_managed_memory_stays_charged_when_its_process_executes_another_program() {
    attack("attack_shared_space_exec");
}

// `Spaces::hold` lets go of no address space where something is charged, and `audit::is_mapped_elsewhere`.
#[test]
fn redteam_managed_memory_stays_charged_however_often_another_program_maps() {
    attack("attack_shared_space_more");
}
