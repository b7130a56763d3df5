//! Messages that go over a socket, as the other process would send them: an accepted one is encoded
//! as it was sent. Then a call of a look, done by an owner.

use crate::session::fresh_volume;
use crate::volume::at;
use adit_fs::{Credentials, Fs, ListedEntry, OpenDescriptor, Stat, StatFs};
use adit_reactor::Engine;
use adit_server::fuzzing::reply_to_look;
use adit_store::VolumeInfo;
use adit_wire::handshake::{Answer, Greeting, Request};
use adit_wire::look::{Question, REPLY_BYTES_MAX, Reply};
use adit_wire::value::{OwnedValue, Value};
use std::sync::{Arc, OnceLock};

pub(crate) fn target(data: &[u8]) {
    means_what_it_says::<Greeting>(data);
    means_what_it_says::<Request>(data);
    means_what_it_says::<Answer>(data);
    means_what_it_says::<Question>(data);
    if let Some(Reply::Done(result)) = means_what_it_says(data) {
        means_what_it_says::<Stat>(&result);
        means_what_it_says::<Vec<u8>>(&result);
        means_what_it_says::<Vec<ListedEntry>>(&result);
        means_what_it_says::<VolumeInfo>(&result);
        means_what_it_says::<StatFs>(&result);
        means_what_it_says::<Vec<OpenDescriptor>>(&result);
    }
    // A change of its length would leave few of them.
    if let Some((number, call)) = data.split_first_chunk() {
        let number = u16::from_le_bytes(*number);
        let call = call.into();
        look(&Question { number, call });
    }
}

fn means_what_it_says<M: OwnedValue>(data: &[u8]) -> Option<M> {
    let message = M::decode(data)?;
    let again = message.encode();
    assert!(again == data, "another message has the same meaning");
    Some(message)
}

/// Asks the owner of a volume that is the same for all inputs: no look changes it.
fn look(question: &Question) {
    static OWNER: OnceLock<Arc<Engine<Fs>>> = OnceLock::new();
    let owner = OWNER.get_or_init(|| fresh_volume().expect("a volume in memory"));
    let mut own = Credentials::user(7, 7, &[]);
    own.privileged = true;
    let Ok(reply) = reply_to_look(owner, &own, question) else {
        return; // it is no call
    };
    assert!(reply.encode().len() <= REPLY_BYTES_MAX);
    for directory in [&b"/"[..], b"/d"] {
        let list = owner.run(|fs| fs.list(at(directory), 0, 8, false));
        let entries = list.expect("listed").len();
        assert_eq!(entries, 1, "a look has changed a volume");
    }
}
