//! POSIX lock owners that wait, and the cycles among them that would never end.

use super::inode::Inode;
use super::locks::{Holder, Lock};
use adit_base::{Errno, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The locks for which POSIX owners wait, of all inodes: a cycle among them would never end. Locks
/// of descriptors are not followed, as on Linux: a descriptor has no single process that waits.
#[derive(Default)]
pub(crate) struct Waits {
    waiting: RefCell<Vec<(u64, Rc<Inode>, Lock)>>,
    next_ticket: Cell<u64>,
}

/// An owner that waits until this is dropped.
pub(crate) struct Waiting<'a>(&'a Waits, u64);

impl Waits {
    /// EDEADLK if an owner that `wanted` would wait for waits, directly or through others, for the
    /// holder of `wanted`.
    pub(crate) fn begin(&self, inode: &Rc<Inode>, wanted: Lock) -> Result<Waiting<'_>> {
        let mut waiting = self.waiting.borrow_mut();
        if let Holder::Posix { id, .. } = wanted.holder {
            let mut reached = Vec::new();
            reach(&mut reached, inode, &wanted);
            let mut next = 0;
            while let Some(owner) = reached.get(next).copied() {
                if owner == id {
                    return Err(Errno::DEADLK.into());
                }
                for (_, inode, wanted) in waiting.iter() {
                    if matches!(wanted.holder, Holder::Posix { id, .. } if id == owner) {
                        reach(&mut reached, inode, wanted);
                    }
                }
                next += 1;
            }
        }
        let ticket = self.next_ticket.replace(self.next_ticket.get() + 1);
        waiting.push((ticket, inode.clone(), wanted));
        Ok(Waiting(self, ticket))
    }
}

/// Adds the POSIX owners that `wanted` waits for.
fn reach(reached: &mut Vec<u64>, inode: &Inode, wanted: &Lock) {
    let held = inode.locks.ranges.0.borrow();
    for blocker in held.iter().filter(|held| held.excludes(wanted)) {
        if let Holder::Posix { id, .. } = blocker.holder
            && !reached.contains(&id)
        {
            reached.push(id);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Waiting(waits, ticket) = self;
        let mut waiting = waits.waiting.borrow_mut();
        waiting.retain(|(of, ..)| of != ticket);
    }
}
