//! POSIX lock owners that wait, and the cycles among them that would never end.

use super::inode::Inode;
use super::locks::{Holder, Lock};
use adit_base::{Errno, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What POSIX owners wait for, of all inodes: a cycle among them would never end. Locks of descriptors aren't
/// followed, as on Linux: they belong to nobody who could be said to wait.
#[derive(Default)]
pub(crate) struct Waits {
    waiting: RefCell<Vec<(u64, Rc<Inode>, Lock)>>,
    next_ticket: Cell<u64>,
}

/// Somebody waits until this is dropped.
pub(crate) struct Waiting<'a>(&'a Waits, u64);

impl Waits {
    /// EDEADLK when somebody whom `wanted` would wait for waits, over whatever detours, for its holder.
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
