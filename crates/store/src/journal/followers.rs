//! How long the leader of a group commit waits for followers (decision 0016).

use adit_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Callers that commit again and again, each on a thread of its own, would take turns: while the
/// device writes the commit of one, the transaction of the other opens. So the leader of a commit
/// waits briefly for as many followers as the commit before had.
///
/// A volume has two: one for commits that the first partition leads, one for commits that any worker
/// leads. The numbers are guesses: threads may count past each other.
#[derive(Default)]
pub(crate) struct Followers {
    /// A leader is waiting.
    waited_for: AtomicBool,
    /// Callers that wait for the commit that begins next, its leader included.
    joined: AtomicU32,
    /// Callers of the last commit.
    joined_last: AtomicU32,
    /// Commits left that don't wait, because no follower came; and their number after the next wait
    /// in vain.
    pause: AtomicU32,
    pause_next: AtomicU32,
}

impl Followers {
    /// A caller waits for the commit that begins next.
    pub(crate) fn join(&self) {
        self.joined.fetch_add(1, Ordering::Relaxed);
    }

    /// Callers that wait for the commit that begins next.
    pub(crate) fn joined(&self) -> u32 {
        self.joined.load(Ordering::Relaxed)
    }

    /// The commit begins.
    pub(crate) fn begin(&self) {
        // Of a volume's two, mostly one has any.
        if self.joined() > 0 {
            let joined = self.joined.swap(0, Ordering::Relaxed);
            self.joined_last.store(joined, Ordering::Relaxed);
        }
    }

    /// True while a leader waits.
    pub(crate) fn are_waited_for(&self) -> bool {
        self.waited_for.load(Ordering::Acquire)
    }

    /// A leader waits from now on. False: another one does.
    pub(crate) fn wait_for(&self) -> bool {
        !self.waited_for.swap(true, Ordering::AcqRel)
    }

    /// The leader waits no more.
    pub(crate) fn end_wait(&self) {
        self.waited_for.store(false, Ordering::Release);
    }

    /// Callers that the next commit is expected to have, 1 being its leader alone. `followed`: the
    /// leader was a follower of the commit before.
    pub(crate) fn expected(&self, followed: bool) -> u32 {
        let expected = self.joined_last.load(Ordering::Relaxed) + u32::from(followed);
        match self.pause.load(Ordering::Relaxed) {
            0 => expected.clamp(1, FOLLOWERS_MAX),
            pause => {
                self.pause.store(pause - 1, Ordering::Relaxed);
                1
            }
        }
    }

    /// A leader waits so long at most: 2 µs, and the time of two commits, which its follower and
    /// itself would take one after the other.
    pub(crate) fn patience_ns(latency_us: u64) -> u64 {
        (2000 + 2000 * latency_us).min(PATIENCE_NS_MAX)
    }

    /// Notes whether the expected followers came.
    pub(crate) fn note(&self, came: bool) {
        let next = self.pause_next.load(Ordering::Relaxed);
        if came {
            return self.pause_next.store(next / 2, Ordering::Relaxed);
        }
        self.pause.store(next, Ordering::Relaxed);
        self.pause_next
            .store((2 * next + 1).min(PAUSE_MAX), Ordering::Relaxed);
    }
}

/// More callers arrive by themselves while a commit is in flight.
const FOLLOWERS_MAX: u32 = 4;

/// Waking a thread takes less.
const PATIENCE_NS_MAX: u64 = 200_000;

/// Most commits in a row that don't wait.
const PAUSE_MAX: u32 = 255;
