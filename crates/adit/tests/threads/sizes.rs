//! The judge of sizes, after a round: what a file's size can have been while threads set and
//! extended it.
//!
//! The size at a moment is that of the last operation that set it, or more if a write has reached
//! further since. So it is no less than what one of the possibly last ones has set, or writes that
//! surely came after it have reached; and no more than the most that any of these, or writes that
//! may have come after them, could make of it.

/// What an operation does to a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Set(u32),
    AtLeast(u32),
}

/// An operation; one that didn't end has `u64::MAX` there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeOp {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) change: Change,
}

/// At some moment of an interval, the size was one of these.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) file: usize,
    pub(crate) thread: usize,
    pub(crate) from: u64,
    pub(crate) until: u64,
    pub(crate) least: u32,
    pub(crate) most: u32,
}

impl Seen {
    /// Whether that can be. One of the operations is the setting of a size before all others.
    pub(crate) fn judge(&self, ops: &[SizeOp]) -> Result<(), String> {
        let begun = || ops.iter().filter(|op| op.begin < self.until);
        let sets = || {
            begun().filter_map(|op| match op.change {
                Change::Set(size) => Some((op, size)),
                Change::AtLeast(_) => None,
            })
        };
        let reached = |behind: u64, by: fn(&SizeOp, u64, u64) -> bool| {
            let reached = begun().filter_map(move |op| match op.change {
                Change::AtLeast(size) if by(op, behind, self.from) => Some(size),
                _ => None,
            });
            reached.max().unwrap_or(0)
        };
        let superseded_by = (sets().filter(|(op, _)| op.end <= self.from))
            .map(|(op, _)| op.begin)
            .max()
            .unwrap_or(0);
        let last = || sets().filter(|(op, _)| op.end >= superseded_by);
        let least = last()
            .map(|(set, size)| {
                size.max(reached(set.end, |op, end, from| {
                    op.begin > end && op.end <= from
                }))
            })
            .min()
            .unwrap_or(0);
        let first_begun = last().map(|(op, _)| op.begin).min().unwrap_or(0);
        let most = last()
            .map(|(_, size)| size)
            .max()
            .unwrap_or(0)
            .max(reached(first_begun, |op, begin, _| op.end >= begin));
        match self.least <= most && least <= self.most {
            true => Ok(()),
            false => Err(format!(
                "thread {} saw a size of {} to {} between {} and {}, which can only have been {least} to {most}",
                self.thread, self.least, self.most, self.from, self.until
            )),
        }
    }
}

#[test]
fn a_size_is_between_what_was_surely_and_what_was_possibly_reached() {
    let op = |begin, end, change| SizeOp { begin, end, change };
    let ops = [
        op(0, 0, Change::Set(10)),
        op(10, 20, Change::AtLeast(50)),
        op(30, 40, Change::Set(5)),
        op(35, 60, Change::AtLeast(20)),
        op(50, 70, Change::AtLeast(12)),
        op(100, u64::MAX, Change::Set(0)),
    ];
    let can_be = |from, until, size: u32| {
        let seen = Seen {
            file: 0,
            thread: 0,
            from,
            until,
            least: size,
            most: size,
        };
        seen.judge(&ops).is_ok()
    };
    let sizes = |from, until| {
        (0..60)
            .filter(|size| can_be(from, until, *size))
            .collect::<Vec<_>>()
    };
    // Before anything: as it was.
    assert_eq!(sizes(1, 5), [10]);
    // While the first write goes on, and after it.
    assert_eq!(
        (sizes(5, 15).first(), sizes(5, 15).last()),
        (Some(&10), Some(&50))
    );
    assert_eq!(sizes(21, 25), [50]);
    // While it is cut.
    assert_eq!(
        (sizes(31, 32).first(), sizes(31, 32).last()),
        (Some(&5), Some(&50))
    );
    // A write that met the cut may count or not; one that came after it does when it has ended.
    assert_eq!(
        (sizes(45, 48).first(), sizes(45, 48).last()),
        (Some(&5), Some(&20))
    );
    assert_eq!(
        (sizes(80, 90).first(), sizes(80, 90).last()),
        (Some(&12), Some(&20))
    );
    // A cut that never ended.
    assert_eq!(sizes(110, 120).first(), Some(&0));
}
