//! Operations of a volume that a poller begins together.

use adit_reactor::Prepared;

/// Operations of a volume that begin together, by worker.
#[derive(Debug)]
pub(crate) struct Begun(Box<[Vec<Prepared>]>);

impl Begun {
    /// None yet, of so many workers.
    pub(crate) fn new(workers: usize) -> Begun {
        Begun((0..workers).map(|_| Vec::new()).collect())
    }

    /// Adds one of a worker's.
    #[inline]
    pub(crate) fn add(&mut self, worker: u32, operation: Prepared) {
        self.0[worker as usize].push(operation);
    }

    /// Takes a worker's.
    #[inline]
    pub(crate) fn take(&mut self, worker: u32) -> impl Iterator<Item = Prepared> + '_ {
        self.0[worker as usize].drain(..)
    }

    /// Has this worker any?
    #[inline]
    pub(crate) fn has(&self, worker: u32) -> bool {
        !self.0[worker as usize].is_empty()
    }

    /// Has no worker any?
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }
}
