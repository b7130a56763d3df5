//! The judge, judged: histories that never happened, one of each kind of violation, and beside each
//! what is just right.

use super::ledger::{Before, How, Ledger, Pending, Wrong};
use super::stamp::Stamps;
use std::ops::Range;

const CELL: usize = 64;
const STAMPS: Stamps = Stamps {
    seed: 1,
    cell_bytes: CELL,
};

/// Two files of four pages.
fn ledger() -> Ledger {
    Ledger::new(STAMPS, 4096, &[256, 256], 3, 16)
}

fn begin(ledger: &Ledger, thread: usize, cells: Range<u32>, how: How) -> Pending {
    ledger.begin(thread, 0, cells, how).expect("room")
}

/// Begins and ends; what it has written.
fn done(ledger: &Ledger, cells: Range<u32>, how: How) -> Vec<u8> {
    let op = begin(ledger, 0, cells, how);
    let bytes = written(ledger, &op, 1);
    ledger.end(op);
    bytes
}

/// The bytes of the first cells of an operation.
fn written(ledger: &Ledger, op: &Pending, cells: usize) -> Vec<u8> {
    let mut bytes = vec![0; cells * CELL];
    ledger.stamps.fill(op.id, 0, &mut bytes);
    bytes
}

fn judged(ledger: &Ledger, before: &Before, bytes: &[u8]) -> Option<Wrong> {
    let judged = ledger.judge(before, bytes).err()?;
    assert!(
        judged.text.contains("seed 1") && judged.text.contains("cell"),
        "{}",
        judged.text
    );
    Some(judged.wrong)
}

const ZERO: [u8; CELL] = [0; CELL];

#[test]
fn what_was_superseded_before_the_read_began_is_stale() {
    let ledger = ledger();
    let old = done(&ledger, 5..6, How::Write);
    let before = ledger.before_read(0, 5..6);
    let newer = begin(&ledger, 1, 5..6, How::Write);
    let new = written(&ledger, &newer, 1);
    // While it goes on, and when it has ended after the read began, both are right.
    assert_eq!(judged(&ledger, &before, &old), None);
    assert_eq!(judged(&ledger, &before, &new), None);
    ledger.end(newer);
    assert_eq!(judged(&ledger, &before, &old), None);
    let before = ledger.before_read(0, 5..6);
    assert_eq!(judged(&ledger, &before, &new), None);
    assert_eq!(judged(&ledger, &before, &old), Some(Wrong::Stale));
}

#[test]
fn of_two_writes_that_met_either_may_have_been_the_last() {
    let ledger = ledger();
    let (a, b) = (
        begin(&ledger, 0, 5..6, How::Write),
        begin(&ledger, 1, 5..6, How::Write),
    );
    let (of_a, of_b) = (written(&ledger, &a, 1), written(&ledger, &b, 1));
    ledger.end(b);
    ledger.end(a);
    let before = ledger.before_read(0, 5..6);
    assert_eq!(judged(&ledger, &before, &of_a), None);
    // Nobody knows yet, but whoever reads later has to find the same.
    assert_eq!(judged(&ledger, &before, &of_b), None);
    // One cell may not be both: the cache doesn't mix.
    let torn = [&of_a[..32], &of_b[32..]].concat();
    assert_eq!(judged(&ledger, &before, &torn), Some(Wrong::Torn));
}

#[test]
fn what_a_read_has_found_no_later_read_may_miss() {
    let ledger = ledger();
    let old = done(&ledger, 5..6, How::Write);
    let newer = begin(&ledger, 1, 5..6, How::Write);
    let new = written(&ledger, &newer, 1);
    let before = ledger.before_read(0, 5..6);
    assert_eq!(judged(&ledger, &before, &new), None);
    assert_eq!(judged(&ledger, &before, &old), None, "the reads met");
    let later = ledger.before_read(0, 5..6);
    assert_eq!(judged(&ledger, &later, &old), Some(Wrong::Stale));
    // A write in place isn't done everywhere at once.
    let in_place = begin(&ledger, 2, 5..6, How::InPlace);
    let newest = written(&ledger, &in_place, 1);
    assert_eq!(judged(&ledger, &later, &newest), None);
    assert_eq!(judged(&ledger, &ledger.before_read(0, 5..6), &new), None);
}

#[test]
fn zeroes_are_right_only_where_something_zeroed() {
    let ledger = ledger();
    assert_eq!(judged(&ledger, &ledger.before_read(0, 5..6), &ZERO), None);
    let bytes = done(&ledger, 5..6, How::Write);
    let before = ledger.before_read(0, 5..6);
    assert_eq!(judged(&ledger, &before, &ZERO), Some(Wrong::Zeroes));
    for how in [How::Zero, How::SetLen] {
        let punched = begin(&ledger, 1, 4..8, how);
        assert_eq!(judged(&ledger, &before, &ZERO), None);
        assert_eq!(judged(&ledger, &before, &bytes), None);
        ledger.end(punched);
        let before = ledger.before_read(0, 5..6);
        assert_eq!(judged(&ledger, &before, &ZERO), None);
        assert_eq!(judged(&ledger, &before, &bytes), Some(Wrong::Stale));
        // Written again: the old zeroes are over.
        done(&ledger, 5..6, How::Write);
        let before = ledger.before_read(0, 5..6);
        assert_eq!(judged(&ledger, &before, &ZERO), Some(Wrong::Zeroes));
    }
}

#[test]
fn bytes_belong_to_one_place_of_one_file() {
    let ledger = ledger();
    let op = begin(&ledger, 0, 5..7, How::Write);
    let bytes = written(&ledger, &op, 2);
    ledger.end(op);
    assert_eq!(judged(&ledger, &ledger.before_read(0, 5..7), &bytes), None);
    for (file, cell) in [(0, 6), (0, 4), (1, 5), (0, 100)] {
        let before = ledger.before_read(file, cell..cell + 1);
        assert_eq!(
            judged(&ledger, &before, &bytes[..CELL]),
            Some(Wrong::Misplaced)
        );
    }
    // Half a cell further, and the second cell in place of the first.
    let before = ledger.before_read(0, 5..6);
    assert_eq!(
        judged(&ledger, &before, &bytes[16..16 + CELL]),
        Some(Wrong::Garbage)
    );
    assert_eq!(
        judged(&ledger, &before, &bytes[CELL..]),
        Some(Wrong::Misplaced)
    );
    assert_eq!(judged(&ledger, &before, &[7; CELL]), Some(Wrong::Garbage));
    let of_another_run = Stamps { seed: 2, ..STAMPS };
    let mut other = ZERO;
    let op = begin(&ledger, 0, 5..6, How::Write);
    of_another_run.fill(op.id, 0, &mut other);
    assert_eq!(judged(&ledger, &before, &other), Some(Wrong::Garbage));
}

#[test]
fn what_has_not_begun_is_not_found() {
    let (ledger, other) = (ledger(), self::ledger());
    let op = begin(&other, 2, 5..6, How::Write);
    let bytes = written(&other, &op, 1);
    let before = ledger.before_read(0, 5..6);
    assert_eq!(judged(&ledger, &before, &bytes), Some(Wrong::Unbegun));
}

#[test]
fn a_device_may_mix_only_writes_in_place_that_met() {
    let ledger = ledger();
    let mix = |a: &[u8], b: &[u8]| [&a[..16], &b[16..48], &a[48..]].concat();
    let old = done(&ledger, 5..6, How::InPlace);
    let before = ledger.before_read(0, 5..6);
    let op = begin(&ledger, 1, 5..6, How::InPlace);
    let new = written(&ledger, &op, 1);
    // While it goes on. What was there may be zeroes, if anything zeroed it.
    assert_eq!(judged(&ledger, &before, &mix(&old, &new)), None);
    assert_eq!(
        judged(&ledger, &before, &mix(&ZERO, &new)),
        Some(Wrong::Zeroes)
    );
    ledger.end(op);
    assert_eq!(
        judged(&ledger, &before, &mix(&old, &new)),
        None,
        "it met the read"
    );
    let before = ledger.before_read(0, 5..6);
    assert_eq!(
        judged(&ledger, &before, &mix(&old, &new)),
        Some(Wrong::Stale)
    );
    // Two of them, for ever; one and a write through the cache, which waits for it, never.
    for (how, wrong) in [(How::InPlace, None), (How::Write, Some(Wrong::Torn))] {
        let ledger = self::ledger();
        let (a, b) = (
            begin(&ledger, 0, 5..6, How::InPlace),
            begin(&ledger, 1, 5..6, how),
        );
        let mixed = mix(&written(&ledger, &a, 1), &written(&ledger, &b, 1));
        ledger.end(a);
        ledger.end(b);
        let before = ledger.before_read(0, 5..6);
        assert_eq!(judged(&ledger, &before, &mixed), wrong);
    }
}

#[test]
fn of_an_atomic_write_a_page_shows_all_or_nothing() {
    let ledger = ledger();
    let old = done(&ledger, 5..6, How::Write);
    let op = begin(&ledger, 1, 5..70, How::Atomic);
    let new = written(&ledger, &op, 65);
    let before = ledger.before_read(0, 5..70);
    assert_eq!(judged(&ledger, &before, &new), None);
    // The second page is another one.
    let mut bytes = new.clone();
    bytes[59 * CELL..].fill(0);
    assert_eq!(judged(&ledger, &before, &bytes), None);
    bytes[58 * CELL..].fill(0);
    assert_eq!(judged(&ledger, &before, &bytes), Some(Wrong::HalfAtomic));
    bytes = new.clone();
    bytes[..CELL].copy_from_slice(&old);
    assert_eq!(judged(&ledger, &before, &bytes), Some(Wrong::HalfAtomic));
    // What met it may be on top.
    let other = begin(&ledger, 2, 7..8, How::Write);
    let mut bytes = new;
    bytes[2 * CELL..3 * CELL].copy_from_slice(&written(&ledger, &other, 1));
    assert_eq!(judged(&ledger, &before, &bytes), None);
}

#[test]
fn an_append_is_found_at_one_place_only() {
    let ledger = ledger();
    let op = begin(&ledger, 0, 0..2, How::Append);
    let bytes = written(&ledger, &op, 2);
    assert_eq!(judged(&ledger, &ledger.before_read(0, 8..10), &bytes), None);
    let elsewhere = ledger.before_read(0, 9..10);
    assert_eq!(
        judged(&ledger, &elsewhere, &bytes[..CELL]),
        Some(Wrong::Misplaced)
    );
    let error = ledger
        .end_append(op, 9)
        .expect_err("it was found elsewhere");
    assert_eq!(error.wrong, Wrong::Misplaced);
}

#[test]
fn what_has_settled_stays_until_it_is_written() {
    let mut ledger = ledger();
    let mut content = done(&ledger, 0..1, How::Write);
    content.extend(ZERO);
    assert_eq!(ledger.settle(0, &content).expect("right"), []);
    ledger.next_round();
    let before = ledger.before_read(0, 0..2);
    assert_eq!(judged(&ledger, &before, &content), None);
    assert_eq!(
        judged(&ledger, &before, &[0; 2 * CELL]),
        Some(Wrong::Zeroes)
    );
    let new = done(&ledger, 0..1, How::Write);
    assert_eq!(
        judged(&ledger, &before, &content),
        None,
        "the write met the read"
    );
    let before = ledger.before_read(0, 0..2);
    assert_eq!(judged(&ledger, &before, &content), Some(Wrong::Stale));
    assert_eq!(
        judged(&ledger, &before, &[new, ZERO.to_vec()].concat()),
        None
    );
    // It is lost at the end of a round.
    assert_eq!(
        ledger.settle(0, &content).expect_err("stale").wrong,
        Wrong::Stale
    );
    assert_eq!(
        ledger.settle(0, &[]).expect_err("gone").wrong,
        Wrong::Zeroes
    );
}
