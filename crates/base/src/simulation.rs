//! A simulated world for a thread: a clock, random numbers, and planted bugs.
//!
//! With the feature `simulation`, which only the simulator and its tests turn on, a thread in a
//! [`World`] sees a clock that advances only on command (or when the thread would sleep), and
//! random identifiers from a seed. Without the feature all of this is constant, and costs nothing.
//!
//! *Planted bugs* test the simulator: the code breaks a rule on demand, and the simulator has to
//! detect it. All of them are listed here.

use crate::labels::labels;

labels! {
    /// A bug that can be planted.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[allow(missing_docs, reason = "the names are the documentation; `Bug::story` has the rest")]
    Bug: &'static str {
        SkippedFlush = "an fsync doesn't flush what it wrote home",
        CommitBeforeData = "the journal write doesn't wait for the data that its records map",
        EarlyReuse = "a freed page is given out again before its free is durable",
        LostRename = "a rename over a file doesn't write the source's data first",
        UncheckedTornPage = "recovery takes journal pages without checking them",
        IgnoredFlushError = "a failed flush counts as done",
        RecoveryStopsEarly = "recovery leaves out the last transaction",
        RecoveryReadsTooFar = "recovery applies what is there of a transaction with a hole",
        TailBeforeHome = "a checkpoint doesn't flush before it moves the tail",
        UnflushedTail = "ring space is judged by a tail that isn't durable yet",
        LiveBytesOverwritten = "a page with live bytes is written home by an fsync",
        MetadataHomeEarly =
            "a checkpoint writes pages home as they are, not as they were committed",
        ForgottenPending = "a takeover forgets what a dead process had not sealed",
        ReserveAtTakeover = "a takeover of accepted data respects the reserve for deleting",
        StaleChecksum = "data that moves keeps the checksums of the places it moves to",
        UnverifiedRead = "data is read without a look at its checksum",
        ForgottenUnsettled =
            "a superblock moves the tail past data without a checksum and doesn't say so",
        ZeroedOverwritten =
            "zeroed pages are written over before it is durable that they are zeroed",
        OneSuperblock = "the tail moves when one of the superblocks says so",
        UnnotedOverwrite =
            "a sync doesn't hear of bytes of a dirty page that were overwritten past the worker",
        UnlistedOverwrite =
            "a thread's sync doesn't hear of bytes that were overwritten past the worker",
        UnowedSync = "a thread's sync doesn't hear of a transaction or a new size",
        UnflushedSync = "a thread's sync doesn't flush",
        UnboundSync = "a thread's sync doesn't wait for the move of a directory",
        UnnotedHome =
            "the worker doesn't flush pages that a thread's sync took home before it gave up",
        CleanOverwritten = "a page that is clean is overwritten past the worker",
        UnnotedDirectWrite = "an fsync doesn't hear of a direct write past the worker",
        HastyBarrier =
            "a flush is believed though a durable write beside it fails, or the other way round",
        HorizonPassesHole =
            "a commit counts as durable though one before it is still on its way",
        PartialCut = "a commit leaves out what one of the partitions has in it",
        FoldedTwice = "what a partition has taken and freed is counted twice",
        ForgottenLedger =
            "a takeover forgets what other partitions have taken and freed since the last commit",
        EarlyGrowth = "a volume uses pages that its superblocks don't promise",
        StrangersMapping = "a copy takes over what belongs to another image",
        OlderImage = "a mapping is taken over by an image that is older than it",
        UnreadableMapping = "a mapping that can't be used is passed over",
        LivingOwner = "a volume is opened although another process has it open",
        ClosedBelieved = "a superblock that says closed is believed though a later one is lost",
        ForgedName = "a name that anybody can give keeps the owner out",
        LookTakesOver = "a look deletes the mapping that it saw",
        UnlistedMappings = "mappings that can't be listed are taken for none",
        UnkeptSurvival = "an opening goes on without a mapping though survival was required",
        UntrustedMaker =
            "a mapping is taken over though the user who made it may not write the image",
        ForgottenDirectory =
            "an opening doesn't look where the superblock says that the memory lies",
        PartialTakeover =
            "a killed opening's copy counts as the whole though what it copied is out of sight",
        UnclaimedOpening = "an opening whose memory survives nothing keeps nobody away",
        UnboundedJournalData = "data goes through the journal however much it is",
        UncountedAhead = "other threads don't hear that a blob is ahead of its slot",
        UnaskedGranule = "a transaction changes a granule that it didn't ask for",
        ForgottenMessage =
            "a message that was taken and has not begun is forgotten when another one comes",
        LostReply = "a session that waited for others to come back isn't told that they have",
        RepeatedMessage = "a message is sent again though its server had applied it",
        RepeatedAppend = "an append is sent again though its server had done it",
        UnnotedTransaction = "a server doesn't note the transaction of a message",
        SurvivingLock = "locks of ranges survive the session of their owner",
        ForgottenLock = "a session doesn't lock again what it had locked in the last server",
        RelockedRelease =
            "a session asks the next server for a lock again that it was releasing in the last one",
        LookTakesNumber =
            "a transaction that changes nothing counts as the one that a message is done by",
        HastyGrace = "a server waits for no session of the last one",
        HastyOrphans =
            "a server deletes files without names before the sessions of the last one are back",
        StaleMapped = "a session believes a frame of the server's cache whatever it holds by now",
        BelievedDead =
            "a server takes over a dead one's cache, and doesn't say there that it is not believed",
        UnflushedClaim =
            "the end of the grace forgets what was stored to mappings that nobody goes on with",
        UnflushedEnd = "a session's end doesn't write what it stored to a mapping to the file",
        HastyMemory =
            "memory of a mapping goes with the first session that goes on with it and ends",
        FilledAgain = "a server forgets which pages of a mapping's memory the last one had filled",
        ForgottenTail = "an opening forgets what was appended in memory before",
        RepeatedTail = "an opening appends again what was absorbed of a tail",
        UnabsorbedEnd = "a tail ends without the bytes that nobody has absorbed",
        BelievedAppend = "an append counts as done though its tail had ended before",
        UnsyncedCreate = "a file that is made and synced in one message isn't synced",
        UnabsorbedSync = "a sync doesn't write what was appended in memory",
        ForgottenHeir = "the next server knows no process that has not come for what was left to it",
        ForgottenReturn =
            "a session that has everything again and no reply to that asks as if it had not been back",
        ReadLost = "a session reads a file in the server's cache that it has lost",
        GrantedWithdrawn = "a wait for a lock that is withdrawn when it has the lock ends without it",
    }
}

impl Bug {
    /// The effect of the bug.
    pub fn story(self) -> &'static str {
        self.label()
    }

    /// Those of the protocol between sessions and servers; all others are of a volume.
    pub const OF_SESSIONS: [Bug; 27] = [
        Bug::ForgottenMessage,
        Bug::LostReply,
        Bug::RepeatedMessage,
        Bug::RepeatedAppend,
        Bug::UnnotedTransaction,
        Bug::SurvivingLock,
        Bug::ForgottenLock,
        Bug::RelockedRelease,
        Bug::LookTakesNumber,
        Bug::HastyGrace,
        Bug::HastyOrphans,
        Bug::StaleMapped,
        Bug::BelievedDead,
        Bug::UnflushedClaim,
        Bug::UnflushedEnd,
        Bug::HastyMemory,
        Bug::FilledAgain,
        Bug::ForgottenReturn,
        Bug::ForgottenTail,
        Bug::RepeatedTail,
        Bug::UnabsorbedEnd,
        Bug::BelievedAppend,
        Bug::UnsyncedCreate,
        Bug::UnabsorbedSync,
        Bug::ForgottenHeir,
        Bug::ReadLost,
        Bug::GrantedWithdrawn,
    ];
}

/// Whether a bug is planted in this thread's world. Never, without the feature.
#[inline(always)]
pub fn planted(_bug: Bug) -> bool {
    #[cfg(feature = "simulation")]
    return world::planted(_bug);
    #[cfg(not(feature = "simulation"))]
    false
}

/// A call of the host that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Host {
    /// Listing the directory of mappings.
    ListMappings,
    /// Opening a mapping that another process made.
    ReadMapping,
    /// Making one.
    MakeMapping,
}

/// The error of the call in this thread's world, if it is to fail. None without the feature.
#[inline(always)]
pub fn host_error(_host: Host) -> Option<crate::Errno> {
    #[cfg(feature = "simulation")]
    return world::host_error(_host);
    #[cfg(not(feature = "simulation"))]
    None
}

/// The simulated monotonic clock in ns, if there is one.
#[inline(always)]
pub(crate) fn now_ns() -> Option<u64> {
    #[cfg(feature = "simulation")]
    return world::now_ns();
    #[cfg(not(feature = "simulation"))]
    None
}

/// True if this thread is in a simulated world.
#[inline(always)]
pub fn is_simulated() -> bool {
    now_ns().is_some()
}

/// Fills in random bytes from the seed; false: there is no seed.
#[inline(always)]
pub(crate) fn fill(_bytes: &mut [u8]) -> bool {
    #[cfg(feature = "simulation")]
    return world::fill(_bytes);
    #[cfg(not(feature = "simulation"))]
    false
}

/// Instead of sleeping until `deadline_ns` (None: until woken), lets simulated time pass; false:
/// there is no simulated clock, so sleep. Panics where only another thread could end the sleep,
/// since a simulated world has no other thread.
#[inline(always)]
pub fn sleep(_deadline_ns: Option<u64>) -> bool {
    #[cfg(feature = "simulation")]
    return world::sleep(_deadline_ns);
    #[cfg(not(feature = "simulation"))]
    false
}

/// In place of a sleep that another thread ends, runs the work that such a thread would do, for
/// some µs of simulated time. False: the world has none.
#[inline(always)]
pub fn run_others() -> bool {
    #[cfg(feature = "simulation")]
    return world::run_others();
    #[cfg(not(feature = "simulation"))]
    false
}

/// True one time in `count`, as the world draws: something may turn out as it rarely does. Never,
/// without the feature.
#[inline(always)]
pub fn one_in(_count: u8) -> bool {
    #[cfg(feature = "simulation")]
    return world::one_in(_count);
    #[cfg(not(feature = "simulation"))]
    false
}

/// A point where a thread waits for another process, or can be killed: the world runs its next
/// step. False: there is no such world, so wait as usual.
#[inline(always)]
pub fn pause() -> bool {
    #[cfg(feature = "simulation")]
    return world::pause();
    #[cfg(not(feature = "simulation"))]
    false
}

#[cfg(feature = "simulation")]
pub use world::{World, at_sleeps};

#[cfg(feature = "simulation")]
mod world {
    use super::{Bug, Host};
    use crate::Errno;
    use crate::random::Prng;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    /// Runs at a point of a thread.
    type Call = Rc<dyn Fn()>;

    thread_local! {
        static NOW_NS: Cell<u64> = const { Cell::new(0) };
        static RANDOM: RefCell<Option<Prng>> = const { RefCell::new(None) };
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
        static HOST: Cell<Option<(Host, Errno)>> = const { Cell::new(None) };
        static PAUSE: RefCell<Option<Call>> = const { RefCell::new(None) };
        static SLEEP: RefCell<Option<Call>> = const { RefCell::new(None) };
    }

    /// From now on this is called where the thread would sleep until another one wakes it: the
    /// world's other workers have no thread of their own. None: there are none.
    pub fn at_sleeps(call: Option<Rc<dyn Fn()>>) {
        SLEEP.set(call);
    }

    /// Keeps this thread in a simulated world. There is one a thread at most.
    #[derive(Debug)]
    pub struct World(());

    impl World {
        /// Begins one. Its time begins at one second.
        pub fn begin(seed: u64, planted: Option<Bug>) -> World {
            NOW_NS.set(1_000_000_000);
            RANDOM.set(Some(Prng::new(seed)));
            PLANTED.set(planted);
            World(())
        }

        /// From now on a call of the host fails, or none does.
        pub fn host_fails(&self, how: Option<(Host, Errno)>) {
            HOST.set(how);
        }

        /// From now on this is called at each [`pause`](super::pause) of the thread.
        pub fn at_pauses(&self, call: impl Fn() + 'static) {
            PAUSE.set(Some(Rc::new(call)));
        }

        /// Lets time pass.
        pub fn pass(&self, duration_ns: u64) {
            NOW_NS.set(NOW_NS.get() + duration_ns);
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            NOW_NS.set(0);
            RANDOM.set(None);
            PLANTED.set(None);
            HOST.set(None);
            PAUSE.set(None);
            SLEEP.set(None);
        }
    }

    pub(super) fn pause() -> bool {
        // Programs do work at their very end, when the thread's values are gone.
        let call = PAUSE.try_with(|call| call.borrow().clone()).ok().flatten();
        call.map(|call| call()).is_some()
    }

    pub(super) fn run_others() -> bool {
        let call = SLEEP.with_borrow(Clone::clone);
        if let Some(call) = &call {
            NOW_NS.set(NOW_NS.get() + 20_000);
            call();
        }
        call.is_some()
    }

    pub(super) fn host_error(host: Host) -> Option<Errno> {
        HOST.get()
            .filter(|(which, _)| *which == host)
            .map(|(_, errno)| errno)
    }

    pub(super) fn planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    pub(super) fn now_ns() -> Option<u64> {
        let now = NOW_NS.get();
        // A task that polls the clock for a point in time gets there.
        (now != 0).then(|| {
            NOW_NS.set(now + 100);
            now
        })
    }

    pub(super) fn fill(bytes: &mut [u8]) -> bool {
        RANDOM
            .with_borrow_mut(|random| random.as_mut().map(|random| random.fill(bytes)))
            .is_some()
    }

    pub(super) fn one_in(count: u8) -> bool {
        let mut drawn = [0];
        fill(&mut drawn) && drawn[0].is_multiple_of(count)
    }

    pub(super) fn sleep(deadline_ns: Option<u64>) -> bool {
        let now = NOW_NS.get();
        if now == 0 {
            return false;
        }
        let deadline_ns =
            deadline_ns.expect("a simulated thread sleeps, and nobody is there to wake it");
        NOW_NS.set(now.max(deadline_ns));
        true
    }
}
