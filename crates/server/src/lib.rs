//! Serving volumes to other processes: sessions over shared memory.
//!
//! ```text
//! connection ─► door ─► listener ─► Session ─► a poller's turn ─► serve: message → operation
//!                                                                     └► perform (of Fs) ─► reply
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`Server`] | volumes, a socket, pollers: how they begin and end |
//! | [`Looks`] | sessions without memory, which only look: of any process that has a volume open |
//! | `door` | connections, and what they ask for |
//! | `listener` | a server's socket, and its answers |
//! | [`Nodes`] | the host's pipes and sockets behind those of a volume |
//! | `notices` | which messages about peers go to the log |
//! | `session`, `files`, `collected` | a connected process: rights, memory, open files, pieces of large writes |
//! | `poller`, `post` | the thread that takes messages and drives the volumes, and what others have of it |
//! | `crowd` | whether threads wait for a core |
//! | `balance`, `counts` | which poller has which session, and what the policy knows of them |
//! | `inheritance` | what a session leaves to a forked process |
//! | `owner` | what the process that serves its own volume leaves to one |
//! | `resume` | going on with the sessions of a server that has ended |
//! | `rights` | what a session may ask for |
//! | `serve`, `begun` | from a message to its operation |
//! | [`perform`] | calls on a file system, for this and for an embedded volume |
//! | `stepped` | a server whose steps the simulator takes |
//! | `volume` | a volume, and what is under way on it |
//!
//! docs/decisions/0026 has the reasons, docs/reference/protocol.md the protocol.

mod balance;
mod begun;
mod collected;
mod counts;
mod crowd;
mod door;
mod files;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod inheritance;
mod listener;
mod looks;
mod mappings;
mod nodes;
mod notices;
mod owner;
pub mod perform;
mod poller;
mod post;
mod resume;
mod rights;
mod serve;
mod server;
mod session;
#[cfg(feature = "internal")]
mod stepped;
mod thread;
mod volume;

pub use files::Tabled;
pub use looks::Looks;
pub use nodes::{Asker, Nodes, id_of};
pub use owner::Offer;
pub use server::{ServeOptions, Server};
#[cfg(feature = "internal")]
#[doc(hidden)]
pub use stepped::{Cutter, SteppedServer};
pub use thread::is_server_thread;
