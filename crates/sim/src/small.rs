//! All short sequences of operations, crashed before every request, with every subset of few writes
//! kept.
//!
//! The bounded black-box method of CrashMonkey and ACE (Mohan and others, OSDI 2018): most crash
//! bugs that were ever found in file systems need no more than three operations on a few files. The
//! volume has two files, both open, and two directories.

use crate::op::{Name, Numbered, Op};
use crate::oracle::Crash;
use crate::plan::{Ground, Life, Plan};
use crate::run::{Figures, Manner, Violation, run};
use adit_base::simulation::Bug;
use adit_block::FaultConfig;
use adit_fs::{AllocateFlags, OpenFlags, RenameFlags};

const A: Name = Name(0);
const B: Name = Name(1);
const D: Name = Name(3);
const E: Name = Name(4);
const IN_D: Name = Name(5);
const ALSO_IN_D: Name = Name(6);
const IN_E: Name = Name(7);
const DIRECTORY_IN_D: Name = Name(8);

const fn rename(name: Name, to: Name, flags: RenameFlags) -> Op {
    Op::Rename { name, to, flags }
}

/// Writes the file at `A`, which is open, and renames it; `gone` goes.
fn together(to: Name, gone: Name) -> Op {
    Op::Together {
        slot: 0,
        ranges: vec![(0, 100), (4096, 100)],
        name: A,
        to,
        gone,
    }
}

/// The operations that sequences are made of.
pub fn operations() -> Vec<Op> {
    let (keep, punch) = (AllocateFlags::KEEP_SIZE, AllocateFlags::PUNCH_HOLE);
    let plain = RenameFlags::empty();
    vec![
        Op::Append { slot: 0, len: 100 },
        Op::Append { slot: 1, len: 9000 },
        Op::Write {
            slot: 0,
            offset: 0,
            len: 5000,
        },
        Op::Truncate { slot: 0, size: 100 },
        Op::Truncate {
            slot: 0,
            size: 20_000,
        },
        Op::Allocate {
            slot: 0,
            flags: keep | punch,
            offset: 0,
            len: 4096,
        },
        Op::Allocate {
            slot: 0,
            flags: AllocateFlags::ZERO_RANGE,
            offset: 3000,
            len: 9000,
        },
        Op::Atomic {
            slot: 0,
            ranges: vec![(0, 100), (4096, 100)],
            durable: false,
        },
        together(IN_D, B),
        together(B, IN_D),
        Op::Copy {
            from: 0,
            from_offset: 0,
            to: 1,
            to_offset: 4096,
            len: 5000,
        },
        rename(A, B, plain),
        rename(A, IN_D, plain),
        rename(D, E, plain),
        rename(IN_D, IN_E, plain),
        rename(A, B, RenameFlags::EXCHANGE),
        Op::Link {
            name: A,
            to: ALSO_IN_D,
        },
        Op::Unlink { name: A },
        Op::Unlink { name: B },
        Op::Open {
            slot: 2,
            name: IN_D,
            flags: OpenFlags::READ_WRITE | OpenFlags::CREATE,
        },
        Op::Symlink { name: IN_E },
        Op::Mkdir {
            name: DIRECTORY_IN_D,
        },
        Op::Rmdir { name: E },
        Op::SetXattr {
            name: A,
            key: 0,
            len: 300,
        },
        Op::SetMode {
            name: B,
            mode: 0o600,
        },
        Op::Fsync { slot: 0 },
        Op::Fdatasync { slot: 1 },
        Op::FsyncDirectory { name: D },
        Op::SyncAll,
        Op::Checkpoint,
        Op::Grow {
            bytes: crate::ground::VOLUME_BYTES + (1 << 20),
        },
    ]
}

/// How many sequences there are of at most `length` operations.
pub fn count(length: u32) -> u64 {
    let one = operations().len() as u64;
    (1..=length).map(|length| one.pow(length)).sum()
}

/// The kinds of machine that each sequence is tried on: with FUA or not, with checksums of data or
/// not.
pub const MACHINES: [(bool, bool); 3] = [(true, false), (false, false), (true, true)];

/// Sequence number `index`, shorter ones first, on one of the [`MACHINES`].
pub fn plan(index: u64, (fua, checksums): (bool, bool)) -> Plan {
    let operations = operations();
    let one = operations.len() as u64;
    let (mut rest, mut length) = (index, 1);
    while rest >= one.pow(length) {
        rest -= one.pow(length);
        length += 1;
    }
    let open = |slot, name| Op::Open {
        slot,
        name,
        flags: OpenFlags::READ_WRITE,
    };
    let mut ops = vec![open(0, A), open(1, B)];
    for _ in 0..length {
        ops.push(operations[(rest % one) as usize].clone());
        rest /= one;
    }
    let ops = (1..).zip(ops).map(|(number, op)| Numbered { number, op });
    Plan {
        seed: index,
        tasks: 1,
        ground: Ground::Small,
        checksums,
        device: FaultConfig {
            size_bytes: crate::ground::VOLUME_BYTES,
            fua,
            ..FaultConfig::default()
        },
        latency_us: 0,
        partitions: 1,
        apart: false,
        commits_in_flight: Some(1),
        shared: false,
        lives: vec![Life {
            tasks: vec![ops.collect()],
            troubles: Vec::new(),
            lie: None,
            crashes_one_in: 1,
            end: Crash::PowerCut,
            turns: u64::MAX,
        }],
    }
}

/// Carries out sequence number `index`.
pub fn try_sequence(
    index: u64,
    machine: (bool, bool),
    planted: Option<Bug>,
) -> Result<Figures, Box<Violation>> {
    let manner = Manner {
        dense: true,
        exhaustive: true,
        planted,
    };
    run(&plan(index, machine), manner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sequence_has_one_number() {
        let ops = |index| {
            let plan = plan(index, MACHINES[0]);
            let ops = plan.lives[0].tasks[0].iter();
            ops.skip(2)
                .map(|op| format!("{:?}", op.op))
                .collect::<Vec<_>>()
        };
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..count(2) {
            assert!(seen.insert(ops(index)), "{index}");
        }
        assert!(seen.iter().all(|sequence| sequence.len() <= 2));
        assert_eq!(ops(count(2)).len(), 3);
    }
}
