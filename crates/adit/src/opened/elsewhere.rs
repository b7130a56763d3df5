//! Work on a thread of its own, where its caller's thread can't wait for it.

use std::mem::ManuallyDrop;

/// Does on a thread of its own what can't be done inside an operation, or on a server's thread.
/// Without a thread it isn't done: the next open recovers.
pub(crate) fn elsewhere(work: impl FnOnce() + Send + 'static) {
    // Without a thread it isn't dropped either: that would close what it has, here.
    let mut work = ManuallyDrop::new(work);
    // SAFETY: taken once, in the thread.
    let work = move || unsafe { ManuallyDrop::take(&mut work)() };
    let spawned = std::thread::Builder::new()
        .name("adit-close".to_owned())
        .spawn(work);
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread to close with");
    }
}
