//! Sessions and connections that do everything that a client of ours doesn't. After each attack
//! another session is served, nothing is left of the attacker, and the volume is sound.
//!
//! `ADIT_ATTACK_MINUTES` makes the random ones long, `ADIT_SEED` makes them others.
//! `ADIT_ATTACK_SHARES` measures for longer what a greedy session leaves to others, and judges it.

mod calls;
mod connections;
mod inheriting;
mod mapped;
mod memory;
mod nodes;
mod resuming;
mod rig;
mod shares;
mod tails;
mod turns;

use rig::{Rig, alone};

#[test]
#[ignore = "is the process that tests attack"]
fn the_server_process() {
    rig::server_process();
}

/// Runs attacks on servers in this process, with one worker and with several, then on one of its
/// own.
fn attack(attacks: &[fn(&Rig)]) {
    let _alone = alone();
    for rig in [Rig::here, Rig::by_several, Rig::there] {
        let rig = rig();
        for attack in attacks {
            attack(&rig);
            rig.is_unharmed();
        }
        rig.end();
    }
}

#[test]
fn words_lengths_and_numbers_that_mean_nothing() {
    attack(&[
        calls::words,
        calls::lengths,
        calls::contents,
        calls::calls_that_there_are_not,
        calls::numbers_of_files,
        calls::numbers_of_other_sessions,
    ]);
}

#[test]
fn arguments_that_are_none_or_other_ones() {
    attack(&[calls::cut_off, calls::mutated]);
}

#[test]
fn pipes_and_sockets_of_others_and_of_none() {
    attack(&[nodes::without_rights]);
}

#[test]
fn appends_in_memory_that_are_none() {
    attack(&[tails::words, tails::many]);
}

#[test]
fn calls_of_sessions_that_go_on() {
    attack(&[resuming::without_a_last_server]);
}

#[test]
fn files_that_are_left_to_another_process() {
    attack(&[inheriting::keys, inheriting::many]);
}

#[test]
fn a_session_goes_on_with_its_own_files_alone() {
    let _alone = alone();
    resuming::with_a_last_server();
    resuming::with_what_others_had();
}

#[test]
fn more_than_a_session_may_have() {
    attack(&[calls::files, calls::owners, calls::pieces]);
}

#[test]
fn locks_that_wait_are_gone_with_their_session() {
    attack(&[calls::waiting_locks, calls::withdrawals]);
}

#[test]
fn memory_that_changes_and_slots_that_are_rung_again() {
    attack(&[
        memory::rung_again,
        memory::scribbled,
        memory::arena_ranges,
        memory::counted_replies,
        memory::never_read,
        memory::punched_and_cut,
        memory::closed_under_way,
    ]);
}

#[test]
fn shared_mappings_of_what_is_not_theirs_and_without_end() {
    attack(&[
        mapped::others_and_none,
        mapped::far_away,
        mapped::its_memory,
        mapped::in_loops,
        mapped::holes,
        mapped::without_end,
    ]);
}

#[test]
fn sessions_that_leave_while_their_operations_run() {
    attack(&[memory::left_in_a_loop]);
}

#[test]
fn threads_that_sleep_where_one_is_expected() {
    attack(&[memory::many_sleepers]);
}

#[test]
fn a_server_is_replaced_in_time_whatever_is_under_way() {
    let _alone = alone();
    resuming::with_copies_under_way();
}

#[test]
fn what_a_session_submitted_is_done_although_it_has_gone() {
    attack(&[memory::submitted_and_gone]);
}

#[test]
fn fresh_memory_is_zero_and_nobody_elses() {
    attack(&[memory::fresh]);
}

#[test]
fn connections_that_never_ask_or_go_away() {
    attack(&[
        connections::silent,
        connections::vanishing,
        connections::foreign,
        connections::shut_down,
        connections::flooding,
    ]);
}

#[test]
fn descriptors_that_come_with_messages() {
    attack(&[connections::descriptors, connections::lingering]);
}

#[test]
fn a_stopped_client() {
    attack(&[connections::stopped]);
}

#[test]
#[ignore = "is the process that a test stops"]
fn the_client_process() {
    connections::client_process();
}

#[test]
fn one_user_cannot_have_all_sessions() {
    attack(&[connections::too_many]);
}

#[test]
fn a_greedy_session_leaves_others_their_share() {
    attack(&[shares::greedy_with_nothing, shares::greedy_with_reads]);
}

#[test]
fn a_long_call_leaves_others_their_share() {
    attack(&[shares::greedy_with_copies, shares::greedy_with_writes]);
}

#[test]
fn no_session_chooses_how_long_others_wait() {
    if cfg!(not(debug_assertions)) {
        return adit_skip::skip("only a build with debug assertions counts steps");
    }
    let _alone = alone();
    let rig = Rig::here();
    let attacks: [fn(&Rig); 9] = [
        turns::locks,
        turns::waiters,
        turns::ends,
        turns::names,
        turns::depth,
        turns::extents,
        turns::content,
        turns::attributes,
        turns::mapped,
    ];
    for attack in attacks {
        turns::begin(&rig);
        attack(&rig);
        rig.is_unharmed();
    }
    rig.end();
}

/// `cargo test --release -p adit-server --test hostile -- --ignored --nocapture speed`
#[test]
#[ignore = "measures time"]
fn speed_beside_long_turns() {
    let _alone = alone();
    let rig = Rig::here();
    turns::times(&rig);
    rig.end();
}
