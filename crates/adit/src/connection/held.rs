//! The files, locks and shared mappings that a session has in its server. It takes the same in the
//! next one.

use adit_fs::{BlobId, Credentials, FlockOperation, LockMode, LockOwner, OpenFlags, RangeLock};
use adit_wire::calls::*;
use adit_wire::value::Value;
use std::collections::BTreeSet;

/// The last byte that a file can have, as `fcntl` counts.
const LAST_BYTE: u64 = i64::MAX as u64;

/// Places of files beyond those of any server.
const PLACES_MAX: u32 = 1 << 16;

/// An open file.
#[derive(Clone, Debug)]
pub(super) struct HeldFile {
    pub(super) opened: Opened,
    /// The user for whom it was opened, if another one than the session's.
    pub(super) who: Option<Credentials>,
    pub(super) flock: Option<LockMode>,
    /// The range that the server's memory holds, as offset and end.
    pub(super) mapped: Vec<(u64, u64)>,
}

impl HeldFile {
    /// Adds a range; those that touch become one.
    fn note_mapped(&mut self, mut begin: u64, mut end: u64) {
        self.mapped.retain(|&(first, last)| {
            let apart = last < begin || end < first;
            if !apart {
                (begin, end) = (begin.min(first), end.max(last));
            }
            apart
        });
        self.mapped.push((begin, end));
    }
}

/// A locked range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HeldRange {
    id: BlobId,
    /// The descriptor that has it; None: a POSIX owner.
    file: Option<u64>,
    owner: LockOwner,
    mode: LockMode,
    first: u64,
    last: u64,
}

/// Ranges that a call may release.
#[derive(Default, Debug)]
pub(super) struct Released(Vec<HeldRange>);

impl HeldRange {
    /// What of other ranges lies in this one and is its owner's.
    fn parts(self, ranges: &[HeldRange]) -> impl Iterator<Item = HeldRange> {
        let is_own = move |range: &&HeldRange| {
            range.id == self.id && range.file == self.file && is_same(range.owner, self.owner)
        };
        let overlaps =
            move |range: &&HeldRange| range.last >= self.first && self.last >= range.first;
        let part = move |range: &HeldRange| HeldRange {
            first: range.first.max(self.first),
            last: range.last.min(self.last),
            ..*range
        };
        ranges.iter().filter(is_own).filter(overlaps).map(part)
    }
}

/// All of it.
#[derive(Default, Debug)]
pub(super) struct Held {
    /// By the place that is the lower half of a file's number: places are few and used again.
    files: Vec<Option<HeldFile>>,
    ranges: Vec<HeldRange>,
    /// Files that the session had, and that the program has not closed.
    lost: BTreeSet<u64>,
}

impl Held {
    pub(super) fn open(&mut self, opened: Opened, who: Option<Credentials>) {
        let file = HeldFile {
            opened,
            who,
            flock: None,
            mapped: Vec::new(),
        };
        let place = place(opened.file);
        if self.files.len() <= place {
            self.files.resize(place + 1, None);
        }
        self.files[place] = Some(file);
    }

    /// A file is opened again with this token, for the session's user.
    pub(super) fn renew(&mut self, number: u64, token: u64) {
        if let Some(held) = self.file_mut(number) {
            (held.opened.token, held.who) = (token, None);
        }
    }

    /// In a forked child: the locks are its parent's.
    pub(super) fn keep_only_files(&mut self) {
        self.ranges.clear();
        for file in self.files.iter_mut().flatten() {
            file.flock = None;
        }
    }

    fn file(&self, number: u64) -> Option<&HeldFile> {
        let held = self.files.get(place(number))?.as_ref();
        held.filter(|held| held.opened.file == number)
    }

    fn file_mut(&mut self, number: u64) -> Option<&mut HeldFile> {
        let held = self.files.get_mut(place(number))?.as_mut();
        held.filter(|held| held.opened.file == number)
    }

    /// A file is closed, and what it had locked is free.
    pub(super) fn close(&mut self, number: u64) {
        self.lost.remove(&number);
        if self.file(number).is_none() {
            return;
        }
        let Some(closed) = self.files[place(number)].take() else {
            return;
        };
        if self.ranges.is_empty() {
            return;
        }
        let id = closed.opened.id;
        // Of an inode that nobody has open all locks go.
        let is_open = self.files().any(|file| file.opened.id == id);
        self.ranges
            .retain(|range| range.file != Some(number) && (range.id != id || is_open));
    }

    /// The session has a file no more, though the program has not closed it.
    pub(super) fn lose(&mut self, number: u64) {
        if self.file(number).is_some() {
            self.close(number);
            self.lost.insert(number);
        }
    }

    /// Has the program such files?
    pub(super) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &HeldFile> {
        self.files.iter().flatten()
    }

    /// A call about an open file begins that may release locks. From its effect on, before its
    /// reply, another session may have them; so the next server is not asked for them. Answers the
    /// ranges that it has again if the call fails.
    pub(super) fn begin(&mut self, number: u16, file: u64, call: &[u8]) -> Released {
        let mut released = Released::default();
        let Some(held) = self.file_mut(file) else {
            return released;
        };
        let id = held.opened.id;
        match number {
            Flock::NUMBER => {
                held.flock = match (held.flock, Flock::decode(call).map(|call| call.operation)) {
                    (Some(_), Some(FlockOperation::Shared { .. })) => Some(LockMode::Shared),
                    // A conversion first releases what it has.
                    (mode, Some(FlockOperation::Exclusive { .. })) => {
                        mode.filter(|mode| *mode == LockMode::Exclusive)
                    }
                    _ => None,
                };
            }
            LockRange::NUMBER => {
                if let Some(LockRange { lock, .. }) = LockRange::decode(call)
                    && lock.mode == LockMode::Shared
                {
                    let before = self.ranges.clone();
                    let range = self.free(id, file, lock.owner, lock.offset, lock.len_bytes);
                    released.0 = range.parts(&before).collect();
                    let shared = released.0.iter().map(|part| HeldRange {
                        mode: LockMode::Shared,
                        ..*part
                    });
                    self.ranges.extend(shared);
                }
            }
            UnlockRange::NUMBER => {
                if let Some(call) = UnlockRange::decode(call) {
                    let before = self.ranges.clone();
                    let range = self.free(id, file, call.owner, call.offset, call.len_bytes);
                    released.0 = range.parts(&before).collect();
                }
            }
            ReleaseLocks::NUMBER => self.note(number, file, call),
            _ => {}
        }
        released
    }

    /// The call has failed.
    pub(super) fn take_back(&mut self, file: u64, released: Released) {
        if self.file(file).is_none() {
            return;
        }
        for part in released.0 {
            let len_bytes = match part.last {
                LAST_BYTE => 0,
                last => last - part.first + 1,
            };
            self.free(part.id, file, part.owner, part.first, len_bytes);
            self.ranges.push(part);
        }
    }

    /// A call about an open file was done.
    pub(super) fn note(&mut self, number: u16, file: u64, call: &[u8]) {
        let Some(held) = self.file_mut(file) else {
            return;
        };
        let id = held.opened.id;
        match number {
            Flock::NUMBER => {
                held.flock = match Flock::decode(call).map(|call| call.operation) {
                    Some(FlockOperation::Shared { .. }) => Some(LockMode::Shared),
                    Some(FlockOperation::Exclusive { .. }) => Some(LockMode::Exclusive),
                    _ => None,
                };
            }
            Map::NUMBER => {
                if let Some(Map { offset, len_bytes }) = Map::decode(call) {
                    held.note_mapped(offset, offset.saturating_add(len_bytes));
                }
            }
            Unmap::NUMBER => held.mapped.clear(),
            LockRange::NUMBER => {
                if let Some(LockRange { lock, .. }) = LockRange::decode(call) {
                    let range = self.free(id, file, lock.owner, lock.offset, lock.len_bytes);
                    self.ranges.push(HeldRange {
                        mode: lock.mode,
                        ..range
                    });
                }
            }
            UnlockRange::NUMBER => {
                if let Some(call) = UnlockRange::decode(call) {
                    self.free(id, file, call.owner, call.offset, call.len_bytes);
                }
            }
            ReleaseLocks::NUMBER => {
                if let Some(ReleaseLocks { owner_id }) = ReleaseLocks::decode(call) {
                    let is_of =
                        |owner| matches!(owner, LockOwner::Posix { id, .. } if id == owner_id);
                    self.ranges
                        .retain(|range| range.id != id || !is_of(range.owner));
                }
            }
            _ => {}
        }
    }

    /// Takes a range from what an owner has; answers it.
    fn free(
        &mut self,
        id: BlobId,
        file: u64,
        owner: LockOwner,
        offset: u64,
        len: u64,
    ) -> HeldRange {
        let last = match len {
            0 => LAST_BYTE,
            len => offset.saturating_add(len - 1).min(LAST_BYTE),
        };
        let free = HeldRange {
            id,
            file: (owner == LockOwner::Descriptor).then_some(file),
            owner,
            mode: LockMode::Shared,
            first: offset,
            last,
        };
        let mut left = Vec::with_capacity(self.ranges.len() + 1);
        for range in self.ranges.drain(..) {
            let same = range.id == id && range.file == free.file && is_same(range.owner, owner);
            if !same || range.last < free.first || free.last < range.first {
                left.push(range);
                continue;
            }
            if range.first < free.first {
                let last = free.first - 1;
                left.push(HeldRange { last, ..range });
            }
            if range.last > free.last {
                let first = free.last + 1;
                left.push(HeldRange { first, ..range });
            }
        }
        self.ranges = left;
        free
    }

    /// The locked ranges.
    pub(super) fn locks(&self) -> Vec<HeldLock> {
        self.ranges.iter().map(|range| self.lock(range)).collect()
    }

    /// The ranges that a call was to release, as locks.
    pub(super) fn locks_of(&self, released: &Released) -> Vec<HeldLock> {
        released.0.iter().map(|range| self.lock(range)).collect()
    }

    fn lock(&self, range: &HeldRange) -> HeldLock {
        let same_inode = |file: &&HeldFile| file.opened.id == range.id;
        let serves = |file: &&HeldFile| match range.mode {
            _ if file.opened.flags.contains(OpenFlags::PATH) => false,
            LockMode::Shared => file.opened.flags.readable(),
            _ => file.opened.flags.writable(),
        };
        let all = || self.files().filter(same_inode);
        let any = || all().find(serves).map(|file| file.opened.file);
        let len_bytes = match range.last {
            LAST_BYTE => 0,
            last => last - range.first + 1,
        };
        HeldLock {
            lock: RangeLock::new(range.owner, range.mode, range.first, len_bytes),
            through: range.file.or_else(any),
            files: match range.file {
                Some(file) => vec![file],
                None => all().map(|file| file.opened.file).collect(),
            },
        }
    }
}

/// A locked range, and what it is about.
#[derive(Clone, Debug)]
pub(super) struct HeldLock {
    pub(super) lock: RangeLock,
    /// A descriptor through which it can be locked.
    pub(super) through: Option<u64>,
    /// The descriptors that rely on it.
    pub(super) files: Vec<u64>,
}

/// The place of a file in the table. A server of ours has 4096 of them.
fn place(number: u64) -> usize {
    (number as u32 % PLACES_MAX) as usize
}

fn is_same(one: LockOwner, other: LockOwner) -> bool {
    match (one, other) {
        (LockOwner::Posix { id, .. }, LockOwner::Posix { id: other, .. }) => id == other,
        (LockOwner::Descriptor, LockOwner::Descriptor) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_base::random::Prng;
    use adit_fs::FileKind;
    use std::collections::BTreeMap;

    const BYTES: u64 = 16;

    fn opened(file: u64, slot: u64, flags: OpenFlags) -> Opened {
        let id = BlobId {
            slot,
            generation: 1,
        };
        let kind = FileKind::File;
        Opened {
            file,
            id,
            flags,
            kind,
            token: 0,
        }
    }

    /// Locks as bytes: (inode, descriptor or owner, byte) to mode.
    type Model = BTreeMap<(u64, Option<u64>, u64, u64), LockMode>;

    fn bytes(held: &Held) -> Model {
        let mut model = Model::new();
        for HeldLock { lock, through, .. } in held.locks() {
            let file = through.expect("a descriptor");
            let slot = held.file(file).expect("open").opened.id.slot;
            let last = match lock.len_bytes {
                0 => BYTES,
                len => lock.offset + len,
            };
            let (of, owner) = match lock.owner {
                LockOwner::Descriptor => (Some(file), 0),
                LockOwner::Posix { id, .. } => (None, id),
                _ => unreachable!("there are two kinds"),
            };
            for byte in lock.offset..last.min(BYTES) {
                let before = model.insert((slot, of, owner, byte), lock.mode);
                assert_eq!(before, None, "an owner has a byte once");
            }
        }
        model
    }

    #[test]
    fn what_is_locked_is_what_was_locked_last() {
        let mut random = Prng::new(1);
        for _ in 0..50 {
            let (mut held, mut model) = (Held::default(), Model::new());
            for file in 0..4 {
                held.open(opened(file, file / 2, OpenFlags::READ_WRITE), None);
            }
            for _ in 0..200 {
                let file = random.below(4);
                let slot = file / 2;
                let (offset, len) = (random.below(BYTES), random.below(BYTES));
                let end = if len == 0 {
                    BYTES
                } else {
                    (offset + len).min(BYTES)
                };
                let (owner, of, number) = match random.below(2) {
                    0 => (LockOwner::Descriptor, Some(file), 0),
                    _ => {
                        let id = random.below(2) + 1;
                        let pid = random.below(9) as i32;
                        (LockOwner::Posix { id, pid }, None, id)
                    }
                };
                let range = (offset..end).map(|byte| (slot, of, number, byte));
                match random.below(8) {
                    0 => {
                        let call = ReleaseLocks { owner_id: 1 };
                        held.note(ReleaseLocks::NUMBER, file, &call.encode());
                        model.retain(|key, _| !(key.0 == slot && key.1.is_none() && key.2 == 1));
                    }
                    1 | 2 => {
                        let call = UnlockRange {
                            owner,
                            offset,
                            len_bytes: len,
                        };
                        held.note(UnlockRange::NUMBER, file, &call.encode());
                        range.for_each(|key| {
                            model.remove(&key);
                        });
                    }
                    _ => {
                        let mode = match random.below(2) {
                            0 => LockMode::Shared,
                            _ => LockMode::Exclusive,
                        };
                        let lock = RangeLock::new(owner, mode, offset, len);
                        let call = LockRange { lock, wait: false };
                        held.note(LockRange::NUMBER, file, &call.encode());
                        range.for_each(|key| {
                            model.insert(key, mode);
                        });
                    }
                }
                assert_eq!(bytes(&held), model);
            }
            // A descriptor takes its own along; the last one of an inode all.
            held.close(0);
            model.retain(|key, _| key.1 != Some(0));
            assert_eq!(bytes(&held), model);
            held.close(1);
            model.retain(|key, _| key.0 != 0);
            assert_eq!(bytes(&held), model);
        }
    }

    /// A lock that is being released may be another session's before the reply is there. Once a
    /// session asked the next server for it all the same, and the other one lost it, with its file;
    /// or lost its own file, if it came second.
    #[test]
    fn what_is_being_released_is_not_asked_for_again() {
        let mut held = Held::default();
        held.open(opened(1, 5, OpenFlags::READ_WRITE), None);
        let flock = |operation| Flock { operation }.encode();
        let exclusive = flock(FlockOperation::Exclusive { wait: true });
        let shared = flock(FlockOperation::Shared { wait: true });
        let mode = |held: &Held| held.file(1).expect("open").flock;
        held.begin(Flock::NUMBER, 1, &exclusive);
        assert_eq!(mode(&held), None, "it has none yet");
        held.note(Flock::NUMBER, 1, &exclusive);
        held.begin(Flock::NUMBER, 1, &shared);
        assert_eq!(mode(&held), Some(LockMode::Shared));
        held.begin(Flock::NUMBER, 1, &exclusive);
        assert_eq!(mode(&held), None, "waiting releases it");
        held.note(Flock::NUMBER, 1, &shared);
        let at_once = flock(FlockOperation::Exclusive { wait: false });
        held.begin(Flock::NUMBER, 1, &at_once);
        assert_eq!(mode(&held), None, "a conversion releases it first");
        held.begin(Flock::NUMBER, 1, &flock(FlockOperation::Unlock));
        assert_eq!(mode(&held), None);

        let owner = LockOwner::Posix { id: 1, pid: 1 };
        let lock = |mode, offset, len| LockRange {
            lock: RangeLock::new(owner, mode, offset, len),
            wait: false,
        };
        held.note(
            LockRange::NUMBER,
            1,
            &lock(LockMode::Exclusive, 0, 8).encode(),
        );
        let all = bytes(&held);
        let unlock = UnlockRange {
            owner,
            offset: 2,
            len_bytes: 2,
        };
        let calls = [
            (UnlockRange::NUMBER, unlock.encode(), 6),
            (LockRange::NUMBER, lock(LockMode::Shared, 6, 4).encode(), 8),
        ];
        for (number, call, left) in calls {
            let released = held.begin(number, 1, &call);
            let exclusive = |mode: &&LockMode| **mode == LockMode::Exclusive;
            assert_eq!(
                bytes(&held).len(),
                left,
                "no byte is locked before the reply"
            );
            assert_eq!(bytes(&held).values().filter(exclusive).count(), 6);
            held.take_back(1, released);
            assert_eq!(bytes(&held), all, "the call has failed");
        }
    }

    #[test]
    fn a_file_is_lost_until_the_program_closes_it() {
        let mut held = Held::default();
        for number in [1, 2, 3] {
            held.open(opened(number, 5, OpenFlags::READ_WRITE), None);
        }
        held.close(3);
        held.lose(3);
        assert!(!held.has_lost(), "the program has closed it");
        held.lose(1);
        held.lose(2);
        assert_eq!(held.files().count(), 0);
        held.close(1);
        assert!(held.has_lost());
        // In its place there is another file.
        let next = 2 + u64::from(PLACES_MAX);
        held.open(opened(next, 5, OpenFlags::READ_WRITE), None);
        held.close(2);
        assert!(!held.has_lost() && held.file(next).is_some());
    }

    #[test]
    fn a_lock_is_taken_through_a_descriptor_that_may() {
        let mut held = Held::default();
        held.open(opened(1, 5, OpenFlags::empty()), None);
        held.open(opened(2, 5, OpenFlags::WRITE_ONLY), None);
        let owner = LockOwner::Posix { id: 1, pid: 1 };
        for (mode, offset) in [(LockMode::Shared, 0), (LockMode::Exclusive, 5)] {
            let lock = RangeLock::new(owner, mode, offset, 1);
            held.note(
                LockRange::NUMBER,
                2,
                &LockRange { lock, wait: true }.encode(),
            );
        }
        let through: Vec<u64> = held.locks().iter().filter_map(|of| of.through).collect();
        assert_eq!(through, [1, 2]);
        let operation = FlockOperation::Exclusive { wait: true };
        held.note(Flock::NUMBER, 1, &Flock { operation }.encode());
        assert_eq!(held.file(1).expect("open").flock, Some(LockMode::Exclusive));
        let operation = FlockOperation::Unlock;
        held.note(Flock::NUMBER, 1, &Flock { operation }.encode());
        assert_eq!(held.file(1).expect("open").flock, None);
    }
}
