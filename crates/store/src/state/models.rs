//! Models of partitions that share the pages of a volume (`cargo xtask models`).

use super::reservations::{RESERVE_PAGES, Reservations};
use adit_base::sync::model::Wrong::Skipped;
use adit_base::sync::model::{Bug, check, spawn};
use std::sync::Arc;

/// Pages that are free, of which `promised` are promised.
fn shared(free: u64, promised: u64) -> Arc<Reservations> {
    let reservations = Reservations::default();
    reservations.add(promised);
    reservations.share(free);
    Arc::new(reservations)
}

/// Asks in two threads; returns the answers.
fn in_two<T: Send + 'static>(
    reservations: &Arc<Reservations>,
    first: impl Fn(&Reservations) -> T,
    second: impl Fn(&Reservations) -> T + Send + 'static,
) -> (T, T) {
    let other = reservations.clone();
    let other = spawn(move || second(&other));
    let answer = first(reservations);
    (answer, other.join().expect("a thread"))
}

/// True if exactly so many pages can be claimed at most.
fn is_left(reservations: &Reservations, pages: u64) -> bool {
    !reservations.claim(pages + 1, false) && reservations.claim(pages, false)
}

#[test]
fn the_last_page_is_promised_or_claimed_once() {
    check(20, || {
        let reservations = shared(RESERVE_PAGES + 1, 0);
        let claims = |reservations: &Reservations| reservations.claim(1, false);
        let promises = |reservations: &Reservations| reservations.promise(1, true);
        let (claimed, promised) = in_two(&reservations, claims, promises);
        // A promise that is about to be refused keeps nothing here.
        assert!(claimed != promised, "nobody has it, or both");
        assert_eq!(reservations.pages(), u64::from(promised));
        match promised {
            true => reservations.end(1),
            false => reservations.note(1),
        }
        assert!(is_left(&reservations, 1), "a page is lost, or there twice");
    });
}

#[test]
fn promises_of_several_partitions_keep_the_pages_of_their_nodes() {
    check(20, || {
        // The second one needs the page of a node: there is one each 128 pages.
        let reservations = shared(126 + RESERVE_PAGES + 2, 126);
        let promises = |reservations: &Reservations| reservations.promise(1, true);
        let (first, second) = in_two(&reservations, promises, promises);
        assert!(first != second, "one has the page that is left");
    });
}

#[test]
fn pages_that_get_their_places_are_missing_nowhere() {
    check(20, || {
        let reservations = shared(10 + RESERVE_PAGES + 1, 10);
        // As `Transaction::apply` does.
        let takes = |reservations: &Reservations| {
            let promised = reservations.fulfil(10);
            let change = promised as i64 - 10;
            if change != 0 {
                reservations.note(change);
            }
            true
        };
        let claims = |reservations: &Reservations| reservations.claim(1, false);
        let (_, claimed) = in_two(&reservations, takes, claims);
        assert!(claimed, "the page beside the promised ones is not there");
        assert!(is_left(&reservations, 0));
    });
}

#[test]
fn what_is_freed_and_what_is_promised_no_more_can_be_claimed() {
    check(20, || {
        let reservations = shared(10 + RESERVE_PAGES, 10);
        let ends = |reservations: &Reservations| reservations.end(10);
        let frees = |reservations: &Reservations| reservations.note(5);
        in_two(&reservations, ends, frees);
        assert!(is_left(&reservations, 15), "pages are lost, or there twice");
    });
}

#[test]
fn deleting_takes_what_is_kept_back_and_no_more() {
    check(20, || {
        let reservations = shared(RESERVE_PAGES, 0);
        let deletes = |reservations: &Reservations| reservations.claim(RESERVE_PAGES - 1, true);
        let (first, second) = in_two(&reservations, deletes, deletes);
        assert!(first != second, "the reserve is there once");
    });
}

const FILE: &str = "store/src/state/reservations.rs";

#[test]
fn planted_a_page_that_two_partitions_take_is_found() {
    let model = "state::models::the_last_page_is_promised_or_claimed_once";
    Bug::planted(Skipped, FILE, "fn take", "compare_exchange_weak").found_by(model);
}

#[test]
fn planted_a_refused_promise_that_stays_is_found() {
    let model = "state::models::the_last_page_is_promised_or_claimed_once";
    Bug::planted(Skipped, FILE, "if !is_there", "fetch_sub").found_by(model);
}

#[test]
fn planted_nodes_that_another_partition_does_not_see_are_found() {
    let model = "state::models::promises_of_several_partitions_keep_the_pages_of_their_nodes";
    Bug::planted(Skipped, FILE, "fn promise", "fetch_add").found_by(model);
}

#[test]
fn planted_an_end_that_gives_no_page_back_is_found() {
    let model = "state::models::what_is_freed_and_what_is_promised_no_more_can_be_claimed";
    Bug::planted(Skipped, FILE, "fn note", "fetch_add").found_by(model);
}
