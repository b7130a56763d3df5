//! What another process sends, for `crates/fuzz`.

use adit_base::Result;
use adit_fs::{Credentials, Fs};
use adit_reactor::Engine;
use adit_wire::look::{Question, Reply};

/// Does the call of a look.
pub fn reply_to_look(engine: &Engine<Fs>, own: &Credentials, question: &Question) -> Result<Reply> {
    crate::looks::reply(engine, own, question)
}
