//! Which threads of this process are a server's.

use std::cell::Cell;

thread_local! {
    static IS_SERVER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Is this thread one of a server in this process? It can't wait for the server's end. It completes
/// operations of the program, too, and calls it back.
pub fn is_server_thread() -> bool {
    IS_SERVER_THREAD.get()
}

/// From now on this thread is one of a server's.
pub(crate) fn begin_server_thread() {
    IS_SERVER_THREAD.set(true);
}
