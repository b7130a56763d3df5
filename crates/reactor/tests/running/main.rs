//! What callers, handles and the keeper promise, on devices that execute inline and on ones that complete later.

mod background;
mod calls;
mod collecting;
mod common;
mod ending;
mod failures;
mod handles;
mod left_behind;
mod sync;
mod wakers;
