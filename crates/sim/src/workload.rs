//! What applications do: random mixes, and the habits of database engines.

use crate::op::{NAMED, NAMES, Name, Numbered, Op, SLOTS};
use adit_base::random::Prng;
use adit_fs::{AllocateFlags, OpenFlags, RenameFlags};

/// Operations of one task in one life.
pub fn draw(random: &mut Prng, number: &mut u32) -> Vec<Numbered> {
    let mut pen = Pen {
        random: random.split(),
        ops: Vec::new(),
    };
    let habits: [fn(&mut Pen); 14] = [
        Pen::mix,
        Pen::mix,
        Pen::mix,
        Pen::log,
        Pen::replace,
        Pen::rollback_journal,
        Pen::batch_atomic,
        Pen::manifest,
        Pen::delete_while_open,
        Pen::many_files,
        Pen::fill,
        Pen::direct_over_journaled,
        Pen::checkpoints,
        Pen::reuse,
    ];
    let rounds = 1 + pen.random.below(3);
    for _ in 0..rounds {
        let habit = *pen.random.pick(&habits);
        habit(&mut pen);
    }
    // Behind the others, so that what else a seed means stays.
    if pen.random.chance(1, 5) {
        pen.recycle();
    }
    if pen.random.chance(1, 5) {
        pen.buffer_pool();
    }
    if pen.random.chance(1, 6) {
        pen.cached_pages();
    }
    if pen.random.chance(1, 4) {
        pen.synced_pages();
    }
    pen.numbered(number)
}

/// Operations that follow those of [`draw`]: a database that syncs sets of pages.
pub fn draw_page_sets(random: &mut Prng, number: &mut u32) -> Vec<Numbered> {
    let mut pen = Pen {
        random: random.split(),
        ops: Vec::new(),
    };
    pen.page_sets();
    pen.numbered(number)
}

struct Pen {
    random: Prng,
    ops: Vec<Op>,
}

const CREATE: OpenFlags = OpenFlags::READ_WRITE.union(OpenFlags::CREATE);
const CREATE_EMPTY: OpenFlags = CREATE.union(OpenFlags::TRUNCATE);
const CREATE_DIRECT: OpenFlags = CREATE.union(OpenFlags::DIRECT);

impl Pen {
    fn numbered(self, number: &mut u32) -> Vec<Numbered> {
        let next = |op| {
            *number += 1;
            Numbered {
                number: *number,
                op,
            }
        };
        self.ops.into_iter().map(next).collect()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn slot(&mut self) -> usize {
        self.random.index(SLOTS)
    }

    fn name(&mut self) -> Name {
        Name(self.below(NAMED.into()) as u8)
    }

    /// A place or length near the borders of granules, sectors and pages.
    fn offset(&mut self) -> u64 {
        let unit = *self.random.pick(&[1, 64, 512, 4096, 4096, 16384]);
        let at = unit * self.below(1 + 70_000 / unit / 2);
        match self.below(4) {
            0 => at.saturating_sub(1 + self.below(10)),
            _ => at,
        }
    }

    fn len(&mut self) -> u64 {
        match self.below(10) {
            0..=3 => 1 + self.below(200),
            4..=5 => 4096,
            6 => 4096 * (1 + self.below(4)),
            7 => 1 + self.below(5000),
            8 => 1 + self.below(20_000),
            _ => 1 + self.below(100_000),
        }
    }

    fn open_flags(&mut self) -> OpenFlags {
        let mut flags = OpenFlags::READ_WRITE;
        for (flag, times, of) in [
            (OpenFlags::CREATE, 4, 5),
            (OpenFlags::EXCLUSIVE, 1, 12),
            (OpenFlags::TRUNCATE, 1, 6),
            (OpenFlags::APPEND, 1, 8),
            (OpenFlags::DIRECT, 1, 8),
            (OpenFlags::DSYNC, 1, 10),
        ] {
            flags.set(flag, self.random.chance(times, of));
        }
        flags
    }

    fn rename_flags(&mut self) -> RenameFlags {
        let (exclusive, exchange) = (self.random.chance(1, 8), self.random.chance(1, 8));
        match (exclusive, exchange) {
            (_, true) => RenameFlags::EXCHANGE,
            (true, false) => RenameFlags::NO_REPLACE,
            (false, false) => RenameFlags::empty(),
        }
    }

    fn write(&mut self, slot: usize, offset: u64, len: u64) {
        self.ops.push(Op::Write { slot, offset, len });
    }

    fn rename(&mut self, name: Name, to: Name) {
        let flags = RenameFlags::empty();
        self.ops.push(Op::Rename { name, to, flags });
    }

    /// An operation `times` of `of` times.
    fn sometimes(&mut self, times: u64, of: u64, op: Op) {
        if self.random.chance(times, of) {
            self.ops.push(op);
        }
    }

    /// Everything, at random.
    fn mix(&mut self) {
        for _ in 0..8 + self.below(40) {
            let op = self.any();
            self.ops.push(op);
        }
    }

    fn any(&mut self) -> Op {
        let slot = self.slot();
        match self.below(100) {
            0..=13 => Op::Open {
                slot,
                name: self.name(),
                flags: self.open_flags(),
            },
            14..=16 => Op::Close { slot },
            17..=30 => Op::Write {
                slot,
                offset: self.offset(),
                len: self.len(),
            },
            31..=38 => Op::Append {
                slot,
                len: self.len(),
            },
            39..=43 => self.atomic(slot),
            44..=48 => Op::Truncate {
                slot,
                size: self.offset(),
            },
            49..=52 => Op::Allocate {
                slot,
                flags: *self.random.pick(&[
                    AllocateFlags::empty(),
                    AllocateFlags::KEEP_SIZE,
                    AllocateFlags::KEEP_SIZE | AllocateFlags::PUNCH_HOLE,
                    AllocateFlags::ZERO_RANGE,
                ]),
                offset: self.offset(),
                len: self.len(),
            },
            53..=54 => Op::Copy {
                from: slot,
                from_offset: self.offset(),
                to: self.slot(),
                to_offset: self.offset(),
                len: self.len(),
            },
            55..=58 => Op::Read {
                slot,
                offset: self.offset(),
                len: self.len(),
            },
            59..=65 => Op::Fsync { slot },
            66..=69 => Op::Fdatasync { slot },
            70 => Op::FsyncDirectory { name: self.name() },
            71 => Op::SyncAll,
            72 => Op::Checkpoint,
            73..=77 => Op::Mkdir {
                name: Name(*self.random.pick(&[3, 3, 4, 4, 8, 8, 0])),
            },
            78..=79 => Op::Rmdir { name: self.name() },
            80..=83 => Op::Unlink { name: self.name() },
            84..=85 => Op::Link {
                name: self.name(),
                to: self.name(),
            },
            86..=92 => Op::Rename {
                name: self.name(),
                to: self.name(),
                flags: self.rename_flags(),
            },
            93 => Op::Symlink { name: self.name() },
            94..=95 => Op::SetMode {
                name: self.name(),
                mode: *self.random.pick(&[0o600, 0o644, 0o755, 0o4711]),
            },
            96..=97 => Op::SetXattr {
                name: self.name(),
                key: self.below(4) as u8,
                len: *self.random.pick(&[0, 5, 40, 300, 2000]),
            },
            98 => Op::RemoveXattr {
                name: self.name(),
                key: self.below(4) as u8,
            },
            _ => Op::Idle {
                ms: *self.random.pick(&[1, 100, 6000, 12_000]),
            },
        }
    }

    fn atomic(&mut self, slot: usize) -> Op {
        let mut ranges = Vec::new();
        for _ in 0..1 + self.below(4) {
            let offset = self.offset();
            let len = 1 + self.below(6000);
            // One after the other, so that it is clear what is there afterwards.
            if ranges
                .iter()
                .all(|(at, n)| offset + len <= *at || at + n <= offset)
            {
                ranges.push((offset, len));
            }
        }
        Op::Atomic {
            slot,
            ranges,
            durable: self.random.chance(1, 2),
        }
    }

    fn open(&mut self, slot: usize, name: Name, flags: OpenFlags) {
        self.ops.push(Op::Open { slot, name, flags });
    }

    /// A write-ahead log: append, sync, append, sync; then a new one.
    fn log(&mut self) {
        let (slot, name) = (self.slot(), self.name());
        let mut flags = CREATE;
        flags.set(OpenFlags::APPEND, self.random.chance(1, 2));
        self.open(slot, name, flags);
        self.ops.push(Op::Fsync { slot });
        if self.random.chance(1, 3) {
            let flags = if self.random.chance(1, 2) {
                AllocateFlags::KEEP_SIZE
            } else {
                AllocateFlags::empty()
            };
            self.ops.push(Op::Allocate {
                slot,
                flags,
                offset: 0,
                len: 60_000,
            });
        }
        let record = *self.random.pick(&[100, 100, 517, 4096]);
        for _ in 0..5 + self.below(40) {
            let len = record + self.below(30);
            self.ops.push(Op::Append { slot, len });
            self.sometimes(4, 5, Op::Fdatasync { slot });
        }
    }

    /// A log that is zeroed and written anew where it is; what was synced of the old one is
    /// readable until the zeroes are.
    fn recycle(&mut self) {
        let (slot, name) = (self.slot(), self.name());
        self.open(slot, name, CREATE);
        let pages = 10 + self.below(20);
        let len = pages * 4096;
        for _ in 0..1 + self.below(4) {
            self.write(slot, 0, len);
            self.sometimes(3, 4, Op::Fdatasync { slot });
            let from = self.below(pages / 2) * 4096;
            self.ops.push(Op::Allocate {
                slot,
                flags: AllocateFlags::ZERO_RANGE,
                offset: from,
                len: len - from,
            });
            self.sometimes(1, 4, Op::Fdatasync { slot });
        }
    }

    /// A database that changes a few pages again and again through the cache, in small parts, and
    /// syncs now and then.
    fn cached_pages(&mut self) {
        let (slot, name) = (self.slot(), self.name());
        self.open(slot, name, CREATE);
        let pages = 1 + self.below(3);
        self.write(slot, 0, pages * 4096);
        self.ops.push(Op::Fsync { slot });
        for _ in 0..1 + self.below(3) {
            for _ in 0..6 + self.below(14) {
                let len = 1 + self.below(200);
                let offset = self.below(pages * 4096 - len);
                self.write(slot, offset, len);
            }
            self.sometimes(1, 4, Op::Append { slot, len: 100 });
            self.sometimes(3, 4, Op::Fdatasync { slot });
        }
    }

    /// A database that overwrites pages and syncs after each. Now and then the file grows, or gets
    /// other rights or another name, or one of the directories above it moves.
    fn synced_pages(&mut self) {
        let slot = self.slot();
        let (outer, inner, elsewhere, name) = (Name(3), Name(8), Name(4), Name(9));
        self.ops.push(Op::Mkdir { name: outer });
        self.ops.push(Op::Mkdir { name: inner });
        let flags = *self.random.pick(&[CREATE, CREATE, CREATE_DIRECT]);
        self.open(slot, name, flags);
        let pages = 1 + self.below(3);
        self.write(slot, 0, pages * 4096);
        self.ops.push(Op::Fsync { slot });
        for _ in 0..10 + self.below(40) {
            let offset = 4096 * self.below(pages);
            match flags.contains(OpenFlags::DIRECT) {
                true => self.write(slot, offset, 4096),
                false => {
                    let (within, len) = (self.below(3900), 1 + self.below(190));
                    self.write(slot, offset + within, len);
                }
            }
            let op = match self.below(24) {
                0 => Op::Append { slot, len: 100 },
                1 => Op::SetMode { name, mode: 0o600 },
                2 => Op::SetMode { name, mode: 0o644 },
                3 => Op::Checkpoint,
                4..=5 => Op::Rename {
                    name: inner,
                    to: elsewhere,
                    flags: RenameFlags::empty(),
                },
                6 => Op::Rename {
                    name: elsewhere,
                    to: inner,
                    flags: RenameFlags::empty(),
                },
                7 => Op::Idle { ms: 6000 },
                8..=9 => Op::Link { name, to: Name(6) },
                10 => Op::Unlink { name: Name(6) },
                _ => Op::Fdatasync { slot },
            };
            self.ops.push(op);
            self.sometimes(2, 3, Op::Fdatasync { slot });
        }
    }

    /// A database that overwrites several pages of a file with holes, and syncs them together. A
    /// thread takes some of them home, and leaves to the worker those in holes and in other
    /// extents.
    fn page_sets(&mut self) {
        let (slot, name) = (self.slot(), Name(self.below(3) as u8));
        self.open(slot, name, CREATE);
        let pages = 6 + self.below(12);
        self.write(slot, 0, pages * 4096);
        if self.random.chance(1, 2) {
            // Pages that were never written.
            let size = (pages + 4) * 4096;
            self.ops.push(Op::Truncate { slot, size });
        }
        self.ops.push(Op::Fsync { slot });
        for _ in 0..3 + self.below(8) {
            // A thread takes no page home that has live bytes.
            self.sometimes(3, 4, Op::Checkpoint);
            let hole = 3 + self.below(pages + 1);
            if hole < pages && self.random.chance(2, 3) {
                let flags = AllocateFlags::KEEP_SIZE | AllocateFlags::PUNCH_HOLE;
                let (offset, len) = (hole * 4096, 4096);
                self.ops.push(Op::Allocate {
                    slot,
                    flags,
                    offset,
                    len,
                });
            }
            // The worker publishes the extent of this page, and leaves the next sync to a thread.
            let page = self.below(hole.min(pages));
            self.write(slot, page * 4096, 100);
            self.ops.push(Op::Fdatasync { slot });
            let mut set = vec![self.below(hole)];
            for _ in 0..1 + self.below(4) {
                let page = match self.below(6) {
                    0..=1 => set[set.len() - 1] + 1,
                    2 => self.below(pages + 4),
                    _ => self.below(hole),
                };
                set.push(page);
            }
            if self.random.chance(2, 3) {
                set.push(hole);
            }
            // Repeatedly, so that the worker grants the writes.
            for _ in 0..1 + self.below(4) {
                for page in &set {
                    let (within, len) = (self.below(3900), 1 + self.below(190));
                    self.write(slot, page * 4096 + within, len);
                }
            }
            self.sometimes(1, 12, Op::SetMode { name, mode: 0o600 });
            self.sometimes(1, 12, Op::Idle { ms: 6000 });
            self.ops.push(Op::Fdatasync { slot });
        }
    }

    /// A database that writes its pages directly: where they are, many of them, some in part, now
    /// and then a sync, of it or of another file; somebody looks at it through the cache, it grows
    /// and shrinks.
    fn buffer_pool(&mut self) {
        let (slot, name) = (self.slot(), self.name());
        self.open(slot, name, CREATE_DIRECT);
        let other = (slot + 1) % SLOTS;
        let other_name = if self.random.chance(1, 3) {
            name
        } else {
            self.name()
        };
        self.open(other, other_name, CREATE);
        let pages = 4 + self.below(12);
        self.write(slot, 0, pages * 4096);
        for _ in 0..10 + self.below(40) {
            let page = self.below(pages);
            let (offset, len) = (
                page * 4096,
                (1 + self.below(3).min(pages - page - 1)) * 4096,
            );
            let op = match self.below(24) {
                0..=2 => Op::Fdatasync { slot },
                9..=11 => Op::Fdatasync { slot: other },
                3 => Op::SyncAll,
                4 => Op::Read {
                    slot: other,
                    offset,
                    len,
                },
                5 => Op::Write {
                    slot: other,
                    offset: offset + 10,
                    len: 100,
                },
                6 if self.random.chance(1, 3) => Op::Truncate { slot, size: offset },
                7 => Op::Append { slot: other, len },
                8 => Op::Checkpoint,
                blocks @ 12..=15 => Op::Write {
                    slot,
                    offset: offset + blocks % 8 * 512,
                    len: len - 7 * 512,
                },
                _ => Op::Write { slot, offset, len },
            };
            self.ops.push(op);
        }
    }

    /// Write a new file, sync it, rename it over the old one, sync the directory; sometimes without
    /// the syncs.
    fn replace(&mut self) {
        let (slot, from, to) = (self.slot(), self.name(), self.name());
        for _ in 0..1 + self.below(6) {
            self.open(slot, from, CREATE_EMPTY);
            let len = self.len();
            self.write(slot, 0, len);
            self.sometimes(1, 2, Op::Fsync { slot });
            self.rename(from, to);
            self.sometimes(1, 3, Op::SyncAll);
        }
    }

    /// SQLite with a rollback journal: journal, sync, database, sync, journal away.
    fn rollback_journal(&mut self) {
        let (database, journal) = (Name(0), Name(1));
        self.open(0, database, CREATE);
        for _ in 0..2 + self.below(6) {
            self.open(1, journal, CREATE_EMPTY);
            let pages = 1 + self.below(4);
            self.ops.push(Op::Write {
                slot: 1,
                offset: 0,
                len: 512,
            });
            self.ops.push(Op::Write {
                slot: 1,
                offset: 512,
                len: pages * 4104,
            });
            self.ops.push(Op::Fdatasync { slot: 1 });
            for _ in 0..pages {
                let offset = self.below(16) * 4096;
                self.ops.push(Op::Write {
                    slot: 0,
                    offset,
                    len: 4096,
                });
            }
            self.ops.push(Op::Fdatasync { slot: 0 });
            match self.below(3) {
                0 => self.ops.push(Op::Truncate { slot: 1, size: 0 }),
                1 => self.ops.push(Op::Write {
                    slot: 1,
                    offset: 0,
                    len: 28,
                }),
                _ => self.ops.push(Op::Unlink { name: journal }),
            }
        }
    }

    /// SQLite with batch-atomic writes: a commit is one of them.
    fn batch_atomic(&mut self) {
        self.open(2, Name(2), CREATE);
        for _ in 0..2 + self.below(10) {
            let mut ranges: Vec<(u64, u64)> = Vec::new();
            for _ in 0..1 + self.below(6) {
                let offset = self.below(20) * 4096;
                if ranges.iter().all(|(at, _)| *at != offset) {
                    ranges.push((offset, 4096));
                }
            }
            let durable = self.random.chance(3, 4);
            self.ops.push(Op::Atomic {
                slot: 2,
                ranges,
                durable,
            });
            if self.random.chance(1, 6) {
                let offset = self.below(20) * 4096;
                self.ops.push(Op::Write {
                    slot: 2,
                    offset,
                    len: 4096,
                });
            }
        }
    }

    /// RocksDB: a new MANIFEST, then CURRENT, written aside and renamed to point to it.
    fn manifest(&mut self) {
        let (manifest, other, current, aside) = (Name(10), Name(11), Name(5), Name(6));
        self.ops.push(Op::Mkdir { name: Name(3) });
        for round in 0..2 + self.below(3) {
            let name = if round % 2 == 0 { manifest } else { other };
            self.open(0, name, CREATE_EMPTY);
            for _ in 0..1 + self.below(4) {
                let len = 50 + self.below(300);
                self.ops.push(Op::Append { slot: 0, len });
                self.ops.push(Op::Fsync { slot: 0 });
            }
            self.open(1, aside, CREATE_EMPTY);
            self.ops.push(Op::Append { slot: 1, len: 16 });
            self.ops.push(Op::Fsync { slot: 1 });
            self.ops.push(Op::Close { slot: 1 });
            self.rename(aside, current);
            self.ops.push(Op::FsyncDirectory { name: Name(3) });
            let old = if round % 2 == 0 { other } else { manifest };
            self.ops.push(Op::Unlink { name: old });
        }
    }

    /// Files that are deleted and used.
    fn delete_while_open(&mut self) {
        for _ in 0..2 + self.below(4) {
            let (slot, name) = (self.slot(), self.name());
            self.open(slot, name, CREATE);
            let len = self.len();
            self.write(slot, 0, len);
            self.sometimes(1, 2, Op::Fsync { slot });
            self.ops.push(Op::Unlink { name });
            let (offset, len) = (self.offset(), self.len());
            self.write(slot, offset, len);
            self.ops.push(Op::Read { slot, offset, len });
            self.sometimes(1, 2, Op::Fsync { slot });
            self.sometimes(1, 2, Op::Close { slot });
        }
    }

    /// Many small files.
    fn many_files(&mut self) {
        let count = 5 + self.below(u64::from(NAMES - NAMED) - 5) as u8;
        for index in 0..count {
            let (slot, name) = (self.slot(), Name(NAMED + index));
            self.open(slot, name, CREATE);
            let len = 1 + self.below(3000);
            self.ops.push(Op::Append { slot, len });
            self.sometimes(1, 10, Op::Fsync { slot });
        }
        for index in 0..count {
            if self.random.chance(1, 2) {
                self.ops.push(Op::Unlink {
                    name: Name(NAMED + index),
                });
            }
        }
    }

    /// More than fits, where little is left; then less.
    fn fill(&mut self) {
        for index in 0..3 + self.below(5) as u8 {
            let (slot, name) = (self.slot(), Name(NAMED + index));
            self.open(slot, name, CREATE);
            for _ in 0..1 + self.below(4) {
                let len = 20_000 + self.below(100_000);
                self.ops.push(Op::Append { slot, len });
            }
            self.sometimes(1, 2, Op::Fsync { slot });
        }
        for index in 0..8 {
            if self.random.chance(2, 3) {
                self.ops.push(Op::Unlink {
                    name: Name(NAMED + index),
                });
            }
        }
        for slot in 0..SLOTS {
            self.ops.push(Op::Close { slot });
        }
        self.sometimes(1, 2, Op::SyncAll);
    }

    /// Pages with journaled bytes are freed, and others want them at once.
    fn reuse(&mut self) {
        for round in 0..3 + self.below(6) as u8 {
            let (old, new) = (Name(NAMED + round % 3), Name(NAMED + 3 + round % 4));
            self.open(0, old, CREATE);
            for _ in 0..1 + self.below(5) {
                let len = 1 + self.below(900);
                self.ops.push(Op::Append { slot: 0, len });
                self.ops.push(Op::Fdatasync { slot: 0 });
            }
            self.ops.push(Op::Close { slot: 0 });
            self.ops.push(Op::Unlink { name: old });
            self.sometimes(1, 2, Op::Checkpoint);
            self.open(1, new, CREATE_EMPTY);
            let len = 4096 * (1 + self.below(12));
            self.ops.push(Op::Append { slot: 1, len });
            self.ops.push(Op::Fsync { slot: 1 });
        }
    }

    /// Names come and go, and checkpoints take them home at the wrong moment.
    fn checkpoints(&mut self) {
        for round in 0..4 + self.below(12) {
            for _ in 0..1 + self.below(5) {
                let name = Name(NAMED + self.below(12) as u8);
                match self.below(6) {
                    0..=1 => {
                        self.open(3, name, CREATE);
                        let len = 1 + self.below(9000);
                        self.ops.push(Op::Append { slot: 3, len });
                    }
                    2 => self.ops.push(Op::Mkdir { name }),
                    3 => self.ops.push(Op::Rmdir { name }),
                    4 => self.ops.push(Op::SetXattr {
                        name,
                        key: round as u8 % 3,
                        len: 2000,
                    }),
                    _ => self.ops.push(Op::Unlink { name }),
                }
            }
            match self.below(4) {
                0..=1 => self.ops.push(Op::Checkpoint),
                2 => self.ops.push(Op::Fsync { slot: 3 }),
                _ => {}
            }
        }
    }

    /// Small synced appends, which go through the journal, and direct writes over them.
    fn direct_over_journaled(&mut self) {
        let name = self.name();
        self.open(0, name, CREATE);
        self.open(1, name, CREATE_DIRECT);
        for _ in 0..3 + self.below(10) {
            match self.below(6) {
                0..=1 => {
                    let len = 1 + self.below(300);
                    self.ops.push(Op::Append { slot: 0, len });
                    self.ops.push(Op::Fdatasync { slot: 0 });
                }
                2 => {
                    let offset = self.below(4) * 4096;
                    self.ops.push(Op::Write {
                        slot: 1,
                        offset,
                        len: 4096,
                    });
                }
                3 => {
                    let (offset, len) = (self.below(9000), 1 + self.below(200));
                    self.ops.push(Op::Write {
                        slot: 0,
                        offset,
                        len,
                    });
                }
                4 => self.ops.push(Op::Fdatasync { slot: 1 }),
                _ => {
                    let offset = self.below(4) * 4096;
                    self.ops.push(Op::Read {
                        slot: 1,
                        offset,
                        len: 4096,
                    });
                }
            }
        }
    }
}
