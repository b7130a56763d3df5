//! Which requests fail, and how.
//!
//! A rule matches by kind and range, lets the first `skip` matches pass, then strikes `times`
//! times. Rules are tried in the order in which they were injected, and the first one that strikes
//! decides; delays are added to it, in either order.

use std::ops::Range;

use adit_base::Errno;

use crate::{Operation, Request};

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOn {
    /// Any request.
    Any,
    /// Reads.
    Read,
    /// Writes, with or without FUA.
    Write,
    /// Flushes.
    Flush,
    /// Flushes and FUA writes.
    Barrier,
    /// Discards and zeroings.
    Discard,
}

/// The fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEffect {
    /// It fails and has no effect; a failed flush or FUA write may have lost the cache's content of
    /// that time.
    Error(Errno),
    /// A write reaches a random subset of its sectors, then fails. Other requests fail as with
    /// `Error`.
    TearAndFail(Errno),
    /// A write reaches a random subset of its sectors and claims success: a broken device.
    TearSilently,
    /// A write or flush claims success without effect: a broken device.
    Lose,
    /// A write lands this many bytes further on (or, at the end of the device, nowhere) and claims
    /// success: a broken device.
    Misdirect {
        /// A multiple of the sector.
        by_bytes: u64,
    },
    /// A read returns its data with one bit changed.
    Corrupt,
    /// In a queued device, the request stays in flight during this many polls. Without effect on an
    /// inline one.
    Delay {
        /// How many calls of `poll` it sits out.
        polls: u32,
    },
}

/// A rule; see the file header. Build it from [`FaultRule::new`] and the setters.
#[derive(Clone, Debug)]
pub struct FaultRule {
    pub(super) on: FaultOn,
    pub(super) effect: FaultEffect,
    pub(super) range_bytes: Option<Range<u64>>,
    pub(super) skip: u64,
    pub(super) times: u64,
}

impl FaultRule {
    /// Strikes every request of a kind, for ever.
    pub fn new(on: FaultOn, effect: FaultEffect) -> FaultRule {
        FaultRule {
            on,
            effect,
            range_bytes: None,
            skip: 0,
            times: u64::MAX,
        }
    }

    /// Only requests that touch this range of the device. A flush touches none.
    #[must_use]
    pub fn within(mut self, range_bytes: Range<u64>) -> FaultRule {
        self.range_bytes = Some(range_bytes);
        self
    }

    /// Only from the nth match on (the first is 0).
    #[must_use]
    pub fn after(mut self, matches: u64) -> FaultRule {
        self.skip = matches;
        self
    }

    /// Limits the number of times; 1 is a transient fault.
    #[must_use]
    pub fn times(mut self, times: u64) -> FaultRule {
        self.times = times;
        self
    }

    pub(super) fn is_delay(&self) -> bool {
        matches!(self.effect, FaultEffect::Delay { .. })
    }

    fn matches(&self, request: &Request) -> bool {
        let kind = match request.operation {
            Operation::Read => FaultOn::Read,
            Operation::Write { .. } => FaultOn::Write,
            Operation::Flush => FaultOn::Flush,
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => FaultOn::Discard,
        };
        let range = request.offset_bytes..request.offset_bytes.saturating_add(request.len_bytes());
        let on = match self.on {
            FaultOn::Any => true,
            FaultOn::Barrier => is_barrier(request),
            on => on == kind,
        };
        on && self
            .range_bytes
            .as_ref()
            .is_none_or(|wanted| wanted.start < range.end && range.start < wanted.end)
    }

    /// The fault of this request, if the rule strikes.
    pub(super) fn strike(&mut self, request: &Request) -> Option<FaultEffect> {
        if self.times == 0 || !self.matches(request) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.times -= 1;
        Some(self.effect)
    }
}

/// A flush, or a write that is one, too.
pub(super) fn is_barrier(request: &Request) -> bool {
    matches!(
        request.operation,
        Operation::Flush | Operation::Write { fua: true }
    )
}
