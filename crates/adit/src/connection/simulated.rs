//! A server in the simulator: this thread asks it for sessions without a socket that has a name.

use adit_base::Result;
use adit_wire::handshake::{Answer, Request};
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// The connection, the answer, and the descriptors that come with it.
pub type Asked = (OwnedFd, Answer, Vec<OwnedFd>);

type Server = Rc<dyn Fn(Request) -> Result<Asked>>;

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// From now on, all of this thread's sessions are asked for so.
pub fn ask_by(ask: impl Fn(Request) -> Result<Asked> + 'static) {
    SERVER.set(Some(Rc::new(ask)));
}

/// Does this thread ask so?
pub(super) fn server() -> Option<Server> {
    // None at the very end of a thread, when its values are gone.
    SERVER.try_with(|server| server.borrow().clone()).ok()?
}
