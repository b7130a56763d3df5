//! Locks of byte ranges: each rule of fcntl(2), then random operations against a model and the
//! kernel.

use crate::common::*;
use adit_base::Errno;
use adit_fs::{Fs, LOCKS_MAX, LockMode, LockOwner, OpenFile, OpenFlags, RangeLock};
use adit_reactor::Handle;
use proptest::prelude::*;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use LockMode::{Exclusive, Shared};

const OFD: LockOwner = LockOwner::Descriptor;

const fn posix(id: u64) -> LockOwner {
    let pid = 1000 + id as i32;
    LockOwner::Posix { id, pid }
}

/// A file with descriptors for reading and writing.
struct Locked {
    volume: Volume,
    files: Vec<Arc<OpenFile>>,
}

impl Locked {
    fn new(descriptors: usize) -> Locked {
        let volume = Volume::fresh();
        let files = (0..descriptors)
            .map(|_| volume.open("/f", CREATE).unwrap())
            .collect();
        Locked { volume, files }
    }

    fn set(&self, file: usize, lock: RangeLock) -> Answer<()> {
        let file = &self.files[file];
        self.volume.run(|fs| fs.lock_range(file, &lock, false))
    }

    fn set_waiting(&self, file: usize, lock: RangeLock) -> Answer<()> {
        let file = &self.files[file];
        self.volume.run(|fs| fs.lock_range(file, &lock, true))
    }

    /// A lock that is waited for.
    fn waiting(&self, file: usize, lock: RangeLock) -> Handle<()> {
        let file = self.files[file].clone();
        (self.volume).waiting(async move |fs| fs.lock_range(&file, &lock, true).await)
    }

    /// A lock that is waited for, if another one excludes it.
    fn begun(&self, file: usize, lock: RangeLock) -> Handle<()> {
        let file = self.files[file].clone();
        (self.volume.engine).spawn(move |fs| async move { fs.lock_range(&file, &lock, true).await })
    }

    fn unset(&self, file: usize, owner: LockOwner, offset: u64, len_bytes: u64) -> Answer<()> {
        let file = &self.files[file];
        self.volume
            .run(|fs| fs.unlock_range(file, owner, offset, len_bytes))
    }

    fn test(&self, file: usize, lock: RangeLock) -> Option<RangeLock> {
        let file = &self.files[file];
        self.volume.run(|fs| fs.test_lock(file, &lock)).unwrap()
    }

    /// Everything that is locked, as an owner of nothing sees it.
    fn all(&self) -> Vec<(u64, u64, LockMode)> {
        let mut all = Vec::new();
        let mut from = 0;
        while let Some(lock) = self.test(0, RangeLock::new(posix(u64::MAX), Exclusive, from, 0)) {
            all.push((lock.offset, lock.len_bytes, lock.mode));
            if lock.len_bytes == 0 {
                break;
            }
            from = lock.offset + lock.len_bytes;
        }
        all
    }

    /// Waits for a lock until `free` was called; both must succeed.
    fn waits_until(&self, file: usize, lock: RangeLock, free: impl FnOnce()) {
        let waiter = self.waiting(file, lock);
        free();
        waiter.wait().unwrap();
    }
}

#[test]
fn shared_locks_overlap_and_exclusive_ones_do_not() {
    let locked = Locked::new(2);
    for owners in [[posix(1), posix(2)], [OFD, OFD], [posix(1), OFD]] {
        let [one, other] = owners;
        locked.set(0, RangeLock::new(one, Shared, 0, 10)).unwrap();
        locked.set(1, RangeLock::new(other, Shared, 5, 10)).unwrap();
        assert_eq!(
            locked.set(1, RangeLock::new(other, Exclusive, 9, 1)),
            Err(Errno::AGAIN)
        );
        locked
            .set(1, RangeLock::new(other, Exclusive, 10, 5))
            .unwrap();
        assert_eq!(
            locked.set(0, RangeLock::new(one, Shared, 14, 1)),
            Err(Errno::AGAIN)
        );
        locked
            .set(0, RangeLock::new(one, Exclusive, 15, 1))
            .unwrap();
        locked.unset(0, one, 0, 0).unwrap();
        locked.unset(1, other, 0, 0).unwrap();
        assert_eq!(locked.all(), []);
    }
}

#[test]
fn an_owners_lock_replaces_what_it_overlaps_and_merges_with_what_it_touches() {
    let locked = Locked::new(1);
    let set = |mode, offset, len| {
        locked
            .set(0, RangeLock::new(OFD, mode, offset, len))
            .unwrap()
    };
    set(Shared, 0, 10);
    set(Shared, 10, 10);
    assert_eq!(locked.all(), [(0, 20, Shared)]);
    set(Exclusive, 5, 5);
    assert_eq!(
        locked.all(),
        [(0, 5, Shared), (5, 5, Exclusive), (10, 10, Shared)]
    );
    set(Exclusive, 10, 2);
    assert_eq!(
        locked.all(),
        [(0, 5, Shared), (5, 7, Exclusive), (12, 8, Shared)]
    );
    set(Shared, 3, 10);
    assert_eq!(locked.all(), [(0, 20, Shared)]);
    locked.unset(0, OFD, 8, 4).unwrap();
    assert_eq!(locked.all(), [(0, 8, Shared), (12, 8, Shared)]);
    set(Exclusive, 15, 0);
    assert_eq!(
        locked.all(),
        [(0, 8, Shared), (12, 3, Shared), (15, 0, Exclusive)]
    );
    locked.unset(0, OFD, 100, 0).unwrap();
    assert_eq!(locked.all()[2], (15, 85, Exclusive));
}

#[test]
fn an_upgrade_waits_for_other_sharers_and_keeps_what_it_has() {
    let locked = Locked::new(2);
    locked.set(0, RangeLock::new(OFD, Shared, 0, 1)).unwrap();
    locked.set(1, RangeLock::new(OFD, Shared, 0, 1)).unwrap();
    assert_eq!(
        locked.set(0, RangeLock::new(OFD, Exclusive, 0, 1)),
        Err(Errno::AGAIN)
    );
    locked.waits_until(0, RangeLock::new(OFD, Exclusive, 0, 1), || {
        assert_eq!(
            locked.set(1, RangeLock::new(OFD, Exclusive, 0, 1)),
            Err(Errno::AGAIN)
        );
        locked.unset(1, OFD, 0, 1).unwrap();
    });
    locked.waits_until(1, RangeLock::new(OFD, Shared, 0, 1), || {
        locked.set(0, RangeLock::new(OFD, Shared, 0, 1)).unwrap(); // a downgrade
    });
}

#[test]
fn a_test_tells_who_blocks_where_and_how() {
    let locked = Locked::new(2);
    locked
        .set(0, RangeLock::new(posix(7), Shared, 10, 5))
        .unwrap();
    locked
        .set(0, RangeLock::new(OFD, Exclusive, 20, 0))
        .unwrap();
    let test = |mode, offset| locked.test(1, RangeLock::new(posix(8), mode, offset, 0));
    assert_eq!(
        test(Exclusive, 0),
        Some(RangeLock::new(
            LockOwner::Posix { id: 7, pid: 1007 },
            Shared,
            10,
            5
        ))
    );
    assert_eq!(test(Shared, 0), Some(RangeLock::new(OFD, Exclusive, 20, 0)));
    assert_eq!(
        locked.test(1, RangeLock::new(posix(8), Shared, 0, 20)),
        None
    );
    assert_eq!(
        locked.test(0, RangeLock::new(posix(7), Exclusive, 0, 20)),
        None
    );
}

#[test]
fn closing_a_descriptor_gives_back_its_own_locks_alone() {
    let locked = Locked::new(3);
    locked.set(0, RangeLock::new(OFD, Exclusive, 0, 1)).unwrap();
    locked
        .set(0, RangeLock::new(posix(1), Exclusive, 1, 1))
        .unwrap();
    locked.set(1, RangeLock::new(OFD, Exclusive, 2, 1)).unwrap();
    locked.waits_until(2, RangeLock::new(OFD, Exclusive, 0, 1), || {
        locked.volume.close(&locked.files[0]).unwrap();
    });
    let taken = |offset| locked.set(2, RangeLock::new(OFD, Exclusive, offset, 1));
    assert_eq!(taken(1), Err(Errno::AGAIN));
    assert_eq!(taken(2), Err(Errno::AGAIN));
}

#[test]
fn a_posix_owner_is_released_through_any_descriptor() {
    let locked = Locked::new(2);
    locked
        .set(0, RangeLock::new(posix(1), Exclusive, 0, 1))
        .unwrap();
    locked
        .set(0, RangeLock::new(posix(1), Shared, 7, 1))
        .unwrap();
    locked
        .set(0, RangeLock::new(posix(2), Exclusive, 3, 1))
        .unwrap();
    let other = &locked.files[1];
    locked.waits_until(1, RangeLock::new(posix(3), Exclusive, 7, 1), || {
        let released = locked.volume.run(|fs| fs.release_locks(other, 1));
        released.unwrap();
    });
    assert_eq!(locked.all(), [(3, 1, Exclusive), (7, 1, Exclusive)]);
}

#[test]
fn closing_a_descriptor_ends_its_waiting_with_ebadf() {
    let locked = Locked::new(2);
    locked.set(0, RangeLock::new(OFD, Exclusive, 0, 1)).unwrap();
    let waiter = locked.waiting(1, RangeLock::new(posix(1), Shared, 0, 0));
    locked.volume.close(&locked.files[1]).unwrap();
    assert_eq!(waiter.wait().unwrap_err().errno(), Errno::BADF);
    assert_eq!(
        locked.set(1, RangeLock::new(OFD, Shared, 5, 1)),
        Err(Errno::BADF)
    );
}

#[test]
fn posix_owners_that_would_wait_in_a_circle_get_edeadlk() {
    let locked = Locked::new(1);
    for id in 0..3 {
        let own = RangeLock::new(posix(id), Exclusive, id, 1);
        locked.set(0, own).unwrap();
    }
    // 0 waits for 1, 1 for 2; 2 for 0 would close the circle.
    let wait_for = |id: u64| RangeLock::new(posix(id), Exclusive, (id + 1) % 3, 1);
    let first = locked.waiting(0, wait_for(0));
    let second = locked.waiting(0, wait_for(1));
    // The last of them fails at once, none before it.
    assert_eq!(locked.set_waiting(0, wait_for(2)), Err(Errno::DEADLK));
    locked.unset(0, posix(2), 2, 1).unwrap();
    second.wait().unwrap();
    locked.unset(0, posix(1), 1, 2).unwrap();
    first.wait().unwrap();
}

#[test]
fn a_circle_over_two_files_is_found() {
    let volume = Volume::fresh();
    let one = volume.open("/one", CREATE).unwrap();
    let two = volume.open("/two", CREATE).unwrap();
    let whole = |id| RangeLock::new(posix(id), Exclusive, 0, 0);
    let lock = |file: &OpenFile, id, wait| {
        let lock = whole(id);
        volume.run(|fs: &Fs| fs.lock_range(file, &lock, wait))
    };
    lock(&one, 1, false).unwrap();
    lock(&two, 2, false).unwrap();
    let file = two.clone();
    let waiter = volume.waiting(async move |fs| fs.lock_range(&file, &whole(1), true).await);
    assert_eq!(lock(&one, 2, true), Err(Errno::DEADLK));
    volume.run(|fs| fs.release_locks(&two, 2)).unwrap();
    waiter.wait().unwrap();
}

#[test]
fn a_descriptor_locks_only_in_the_modes_it_was_opened_for() {
    let volume = Volume::fresh();
    volume.touch("/f").unwrap();
    let lock = |flags, mode| {
        let file = volume.open("/f", flags).unwrap();
        let lock = RangeLock::new(OFD, mode, 0, 1);
        let answer = volume.run(|fs| fs.lock_range(&file, &lock, false));
        volume.close(&file).unwrap();
        answer
    };
    assert_eq!(lock(RO, Shared), Ok(()));
    assert_eq!(lock(RO, Exclusive), Err(Errno::BADF));
    assert_eq!(lock(OpenFlags::WRITE_ONLY, Shared), Err(Errno::BADF));
    assert_eq!(lock(OpenFlags::WRITE_ONLY, Exclusive), Ok(()));
    assert_eq!(lock(RW, Shared), Ok(()));
    assert_eq!(lock(RW, Exclusive), Ok(()));
}

#[test]
fn ranges_that_no_file_has_are_refused() {
    let locked = Locked::new(1);
    let end = i64::MAX as u64;
    let set = |offset, len| locked.set(0, RangeLock::new(OFD, Shared, offset, len));
    assert_eq!(set(end + 1, 1), Err(Errno::INVAL));
    assert_eq!(set(0, end + 1), Err(Errno::INVAL));
    assert_eq!(set(1, end), Ok(()));
    assert_eq!(set(2, end), Err(Errno::OVERFLOW));
    assert_eq!(set(end, 2), Err(Errno::OVERFLOW));
    assert_eq!(set(end, 1), Ok(()));
    assert_eq!(set(end, 0), Ok(()));
    assert_eq!(locked.unset(0, OFD, end, 2), Err(Errno::OVERFLOW));
    // The last byte is the end.
    assert_eq!(locked.all(), [(1, 0, Shared)]);
}

#[test]
fn too_many_locks_are_refused_and_can_be_given_back() {
    let locked = Locked::new(1);
    let volume = &locked.volume;
    let file = &locked.files[0];
    let filled = volume.run(|fs| async move {
        for n in 0..LOCKS_MAX as u64 {
            let lock = RangeLock::new(OFD, Shared, 3 * n, 2);
            fs.lock_range(file, &lock, false).await?;
        }
        Ok(())
    });
    filled.unwrap();
    let one_more = RangeLock::new(posix(1), Shared, 0, 1);
    assert_eq!(locked.set(0, one_more), Err(Errno::NOLCK));
    assert_eq!(
        locked.set(0, RangeLock::new(OFD, Exclusive, 1, 1)),
        Err(Errno::NOLCK)
    );
    locked.set(0, RangeLock::new(OFD, Shared, 2, 1)).unwrap(); // joins two
    locked.set(0, one_more).unwrap();
    assert_eq!(locked.unset(0, OFD, 1, 1), Err(Errno::NOLCK));
    locked.unset(0, OFD, 0, 0).unwrap();
    assert_eq!(locked.all(), [(0, 1, Shared)]);
}

#[test]
fn range_locks_and_flock_do_not_see_each_other() {
    use adit_fs::FlockOperation;
    let locked = Locked::new(2);
    let exclusive = FlockOperation::Exclusive { wait: false };
    let flock = |file: usize| {
        let file = &locked.files[file];
        locked.volume.run(|fs| fs.flock(file, exclusive))
    };
    flock(0).unwrap();
    locked.set(1, RangeLock::new(OFD, Exclusive, 0, 0)).unwrap();
    assert_eq!(flock(1), Err(Errno::AGAIN));
}

/// A conversion drops the old lock first, in the kernel too: it is gone however the wait ends. It
/// used to stay if the wait ended before the first look.
#[test]
fn a_flock_that_waited_to_be_another_one_is_none_when_that_ends() {
    use adit_fs::FlockOperation;
    let locked = Locked::new(2);
    for file in &locked.files {
        let shared = FlockOperation::Shared { wait: false };
        locked.volume.run(|fs| fs.flock(file, shared)).unwrap();
    }
    let exclusive = |wait| FlockOperation::Exclusive { wait };
    let [one, other] = &locked.files[..] else {
        unreachable!("two were opened");
    };
    let stop = || Some(Errno::INTR);
    let ended = locked
        .volume
        .run(|fs| fs.flock_until(one, exclusive(true), stop));
    assert_eq!(ended, Err(Errno::INTR));
    locked
        .volume
        .run(|fs| fs.flock(other, exclusive(false)))
        .unwrap();
}

/// Bytes that the random operations lock; the last one stands for the rest of the file.
const BYTES: usize = 12;
const DESCRIPTORS: usize = 3;

#[derive(Clone, Debug)]
struct Step {
    /// 0 to 2: the descriptors themselves; 3 and 4: POSIX owners, over descriptor 0.
    owner: usize,
    mode: Option<LockMode>,
    first: usize,
    /// 0: to the end.
    len: usize,
    ask_only: bool,
}

fn steps(owners: usize) -> impl Strategy<Value = Vec<Step>> {
    let mode = prop_oneof![Just(None), Just(Some(Shared)), Just(Some(Exclusive))];
    let step = (0..owners, mode, 0..BYTES, 0..BYTES, any::<bool>());
    let step = step.prop_map(|(owner, mode, first, len, ask_only)| Step {
        owner,
        mode,
        first,
        len: if first + len >= BYTES { 0 } else { len },
        ask_only,
    });
    proptest::collection::vec(step, 1..60)
}

impl Step {
    fn lock(&self, mode: LockMode) -> (usize, RangeLock) {
        let (file, owner) = match self.owner {
            descriptor @ 0..DESCRIPTORS => (descriptor, OFD),
            other => (0, posix(other as u64)),
        };
        let lock = RangeLock::new(owner, mode, self.first as u64, self.len as u64);
        (file, lock)
    }

    fn bytes(&self) -> std::ops::Range<usize> {
        match self.len {
            0 => self.first..BYTES,
            len => self.first..self.first + len,
        }
    }
}

/// For each owner the mode of each byte.
#[derive(Default)]
struct Model([[Option<LockMode>; BYTES]; 5]);

impl Model {
    /// The byte and owner that are in the way of a lock: lowest run of bytes first.
    fn blocker(&self, step: &Step, mode: LockMode) -> Option<(usize, usize)> {
        let blocks = |owner: usize, byte: usize| match (mode, self.0[owner][byte]) {
            (_, None) => false,
            (Shared, Some(Shared)) => false,
            _ => owner != step.owner,
        };
        let begins = |owner: usize, byte: usize| {
            let run = self.0[owner][..byte].iter().rev();
            byte - run.take_while(|held| **held == self.0[owner][byte]).count()
        };
        (0..5)
            .flat_map(|owner| step.bytes().map(move |byte| (owner, byte)))
            .filter(|(owner, byte)| blocks(*owner, *byte))
            .map(|(owner, byte)| (begins(owner, byte), owner))
            .min()
    }

    /// The lock of an owner that begins at a byte.
    fn lock(&self, owner: usize, first: usize) -> RangeLock {
        let bytes = &self.0[owner][first..];
        let len = bytes.iter().take_while(|held| **held == bytes[0]).count();
        let step = Step {
            owner,
            mode: bytes[0],
            first,
            len: if first + len == BYTES { 0 } else { len },
            ask_only: true,
        };
        step.lock(bytes[0].expect("a lock")).1
    }
}

/// `fcntl` on OFD locks; returns the type of F_OFD_GETLK, or 0 or the errno of F_OFD_SETLK.
fn kernel(file: &std::fs::File, command: libc::c_int, step: &Step) -> Result<libc::c_int, i32> {
    let kind = match step.mode {
        None => libc::F_UNLCK,
        Some(Shared) => libc::F_RDLCK,
        Some(Exclusive) => libc::F_WRLCK,
    };
    // SAFETY: a plain structure of numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (step.first as i64, step.len as i64);
    // SAFETY: a valid descriptor and a structure that lives during the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } {
        0 => Ok(lock.l_type.into()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn random_locks_are_granted_as_a_byte_by_byte_model_says(steps in steps(5)) {
        let locked = Locked::new(DESCRIPTORS);
        let mut model = Model::default();
        for step in steps {
            let Some(mode) = step.mode else {
                let (file, lock) = step.lock(Shared);
                locked.unset(file, lock.owner, lock.offset, lock.len_bytes).unwrap();
                model.0[step.owner][step.bytes()].fill(None);
                continue;
            };
            let (file, lock) = step.lock(mode);
            let blocker = model.blocker(&step, mode);
            if step.ask_only {
                let found = locked.test(file, lock);
                let first = blocker.map(|(first, _)| first as u64);
                prop_assert_eq!(found.map(|lock| lock.offset), first);
                // Of several that begin there any one will do.
                let expected = |owner: usize| model.0[owner][first.unwrap() as usize].is_some()
                    && found == Some(model.lock(owner, first.unwrap() as usize));
                prop_assert!(found.is_none() || (0..5).any(expected), "{:?}", found);
            } else {
                let expected = if blocker.is_none() { Ok(()) } else { Err(Errno::AGAIN) };
                prop_assert_eq!(locked.set(file, lock), expected);
                if blocker.is_none() {
                    model.0[step.owner][step.bytes()].fill(step.mode);
                }
            }
        }
    }

    #[test]
    fn random_locks_are_granted_as_the_kernel_grants_them(steps in steps(DESCRIPTORS)) {
        let locked = Locked::new(DESCRIPTORS);
        let temporary = tempfile::NamedTempFile::new().unwrap();
        let open = || std::fs::File::options().read(true).write(true).open(temporary.path());
        let files: Vec<_> = (0..DESCRIPTORS).map(|_| open().unwrap()).collect();
        for step in steps {
            let (file, lock) = step.lock(step.mode.unwrap_or(Shared));
            if step.mode.is_some() && step.ask_only {
                let there = kernel(&files[file], libc::F_OFD_GETLK, &step).unwrap();
                let blocked = there != libc::F_UNLCK;
                prop_assert_eq!(locked.test(file, lock).is_some(), blocked);
                continue;
            }
            let there = kernel(&files[file], libc::F_OFD_SETLK, &step);
            let here = match step.mode {
                None => locked.unset(file, OFD, lock.offset, lock.len_bytes),
                Some(_) => locked.set(file, lock),
            };
            prop_assert_eq!(here.map_err(|errno| errno.raw()), there.map(drop));
        }
    }
}

/// A POSIX owner, and the lock that it waits for.
struct Waiter {
    owner: usize,
    /// The descriptor through which it waits.
    file: usize,
    lock: RangeLock,
    wait: Handle<()>,
}

/// Owners that wait for locks, and each byte's mode for each owner.
struct Queueing {
    locked: Locked,
    held: Model,
    waiters: Vec<Waiter>,
}

impl Drop for Queueing {
    /// The volume's end waits for all operations.
    fn drop(&mut self) {
        for waiter in &self.waiters {
            let _ = self.locked.volume.close(&self.locked.files[waiter.file]);
        }
    }
}

impl Queueing {
    fn bytes(lock: &RangeLock) -> std::ops::Range<usize> {
        let first = lock.offset as usize;
        match lock.len_bytes {
            0 => first..BYTES,
            len => first..first + len as usize,
        }
    }

    /// Notes the waits that have ended. EDEADLK only where a circle of waits would be closed.
    fn look(&mut self) -> Result<(), TestCaseError> {
        let mut failed = Vec::new();
        let mut at = 0;
        while let Some(waiter) = self.waiters.get_mut(at) {
            let Some(done) = waiter.wait.poll_once() else {
                at += 1;
                continue;
            };
            let waiter = self.waiters.remove(at);
            let bytes = Queueing::bytes(&waiter.lock);
            match done {
                Ok(()) => self.held.0[waiter.owner][bytes].fill(Some(waiter.lock.mode)),
                Err(error) => {
                    prop_assert_eq!(error.errno(), Errno::DEADLK);
                    failed.push((waiter.owner, waiter.lock));
                }
            }
        }
        for (owner, lock) in failed {
            prop_assert!(self.reaches(owner, &lock), "{owner} is in no circle");
        }
        Ok(())
    }

    fn blockers(&self, owner: usize, lock: &RangeLock) -> Vec<usize> {
        let is_blocker = |other: &usize| {
            let held = &self.held.0[*other][Queueing::bytes(lock)];
            *other != owner
                && held
                    .iter()
                    .flatten()
                    .any(|held| *held == LockMode::Exclusive || lock.mode == LockMode::Exclusive)
        };
        (0..self.held.0.len()).filter(is_blocker).collect()
    }

    /// Would the owner wait for itself, directly or through others?
    fn reaches(&self, owner: usize, lock: &RangeLock) -> bool {
        let mut reached = self.blockers(owner, lock);
        let mut next = 0;
        while let Some(at) = reached.get(next).copied() {
            next += 1;
            for waiter in self.waiters.iter().filter(|waiter| waiter.owner == at) {
                for blocker in self.blockers(at, &waiter.lock) {
                    if !reached.contains(&blocker) {
                        reached.push(blocker);
                    }
                }
            }
        }
        reached.contains(&owner)
    }

    /// No owner waits for a free lock, and there is no circle of owners that wait for each other.
    fn check(&self) -> Result<(), TestCaseError> {
        let blockers = |waiter: &Waiter| self.blockers(waiter.owner, &waiter.lock);
        for waiter in &self.waiters {
            prop_assert!(
                !blockers(waiter).is_empty(),
                "{} waits for nobody",
                waiter.owner
            );
        }
        let mut stuck: Vec<usize> = self.waiters.iter().map(|waiter| waiter.owner).collect();
        loop {
            let before = stuck.len();
            let keeps = |waiter: &&Waiter| {
                let among = |of: &usize| stuck.contains(of);
                among(&waiter.owner) && blockers(waiter).iter().all(among)
            };
            stuck = self
                .waiters
                .iter()
                .filter(keeps)
                .map(|waiter| waiter.owner)
                .collect();
            if stuck.len() == before {
                break;
            }
        }
        prop_assert!(stuck.is_empty(), "{stuck:?} wait for each other for ever");
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Each release admits the waiters that it concerns, for any order of locks and waits,
    /// including waits that end in between.
    #[test]
    fn nobody_waits_for_a_lock_that_is_free_or_in_a_circle(steps in steps(5)) {
        let mut queue = Queueing {
            locked: Locked::new(steps.len() + 1),
            held: Model::default(),
            waiters: Vec::new(),
        };
        for (at, step) in steps.iter().enumerate() {
            let owner = step.owner;
            let lock = RangeLock::new(
                posix(owner as u64),
                step.mode.unwrap_or(Shared),
                step.first as u64,
                step.len as u64,
            );
            let waits = queue.waiters.iter().position(|waiter| waiter.owner == owner);
            match (waits, step.mode) {
                // Its wait ends: its descriptor is closed.
                (Some(waits), _) if step.ask_only => {
                    let waiter = queue.waiters.remove(waits);
                    queue.locked.volume.close(&queue.locked.files[waiter.file]).unwrap();
                    let done = waiter.wait.wait();
                    prop_assert_eq!(done.unwrap_err().errno(), Errno::BADF);
                }
                (_, None) => {
                    let unset = queue.locked.unset(0, lock.owner, lock.offset, lock.len_bytes);
                    unset.unwrap();
                    queue.held.0[owner][step.bytes()].fill(None);
                }
                (Some(_), _) => {}
                (None, Some(_)) => {
                    // A descriptor of its own, so that its wait can end alone.
                    let file = at + 1;
                    let wait = queue.locked.begun(file, lock);
                    queue.waiters.push(Waiter { owner, file, lock, wait });
                }
            }
            // Grants follow each other, one a turn.
            for _ in 0..3 * steps.len() {
                queue.look()?;
                queue.locked.volume.run(|_| async { Ok(()) }).unwrap();
            }
            queue.check()?;
        }
    }

    /// With a lock that can't be had at once the one to be converted is gone, as in the kernel: two
    /// that convert in a loop, without waiting, kept each other out for ever.
    #[test]
    fn whole_locks_convert_as_the_kernels_do(
        steps in proptest::collection::vec((0..DESCRIPTORS, 0..3), 1..60)
    ) {
        use adit_fs::FlockOperation;
        let locked = Locked::new(DESCRIPTORS);
        let temporary = tempfile::NamedTempFile::new().unwrap();
        let open = || std::fs::File::options().read(true).write(true).open(temporary.path());
        let files: Vec<_> = (0..DESCRIPTORS).map(|_| open().unwrap()).collect();
        let wait = false;
        for (at, operation) in steps {
            let (here, there) = match operation {
                0 => (FlockOperation::Shared { wait }, libc::LOCK_SH),
                1 => (FlockOperation::Exclusive { wait }, libc::LOCK_EX),
                _ => (FlockOperation::Unlock, libc::LOCK_UN),
            };
            let file = &locked.files[at];
            let here = locked.volume.run(|fs| fs.flock(file, here));
            // SAFETY: a valid descriptor.
            let there = match unsafe { libc::flock(files[at].as_raw_fd(), there | libc::LOCK_NB) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
            };
            prop_assert_eq!(here.map_err(|errno| errno.raw()), there);
        }
    }
}
