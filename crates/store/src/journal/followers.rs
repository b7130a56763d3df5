//! How long the leader of a group commit waits for followers (decision 0016).

use std::cell::Cell;

/// Callers that commit again and again, each on a thread of its own, would take turns: while the
/// device writes the commit of one, the transaction of the other opens. So the leader of a commit
/// waits briefly for as many followers as the commit before had.
#[derive(Default)]
pub(crate) struct Followers {
    /// A leader is waiting.
    pub(crate) waited_for: Cell<bool>,
    /// Callers that wait for the commit that begins next, its leader included.
    pub(crate) joined: Cell<u32>,
    /// Callers of the last commit.
    pub(crate) joined_last: Cell<u32>,
    /// Commits left that don't wait, because no follower came; and their number after the next wait
    /// in vain.
    pause: Cell<u32>,
    pause_next: Cell<u32>,
}

impl Followers {
    /// A caller waits for the commit that begins next.
    pub(crate) fn join(&self) {
        self.joined.set(self.joined.get() + 1);
    }

    /// Callers that the next commit is expected to have, 1 being its leader alone. `followed`: the
    /// leader was a follower of the commit before.
    pub(crate) fn expected(&self, followed: bool) -> u32 {
        let expected = self.joined_last.get() + u32::from(followed);
        match self.pause.get() {
            0 => expected.clamp(1, FOLLOWERS_MAX),
            pause => {
                self.pause.set(pause - 1);
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
        if came {
            return self.pause_next.set(self.pause_next.get() / 2);
        }
        self.pause.set(self.pause_next.get());
        let next = 2 * self.pause_next.get() + 1;
        self.pause_next.set(next.min(PAUSE_MAX));
    }
}

/// More callers arrive by themselves while a commit is in flight.
const FOLLOWERS_MAX: u32 = 4;

/// Waking a thread takes less.
const PATIENCE_NS_MAX: u64 = 200_000;

/// Most commits in a row that don't wait.
const PAUSE_MAX: u32 = 255;
