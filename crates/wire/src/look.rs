//! What goes over the socket of a look: a session without memory, which can only look.
//!
//! ```text
//! onlooker ── Question: a call about the volume ──► owner
//!          ◄── Reply: its result, or the error ──
//! ```
//! One question is under way at a time. The bytes of the call are those of a
//! [`VolumeCall`](crate::message::Message::VolumeCall) in the area of a slot.

use crate::calls::VolumeCall;
use crate::value::{Value, structs, variants};
use adit_base::Error;
use adit_fs::Credentials;

/// Bound of a question: a path of 4,095 bytes and some numbers.
pub const QUESTION_BYTES_MAX: usize = 4352;
/// Bound of a reply.
pub const REPLY_BYTES_MAX: usize = 64 << 10;
/// Most entries that a look asks for, so that they fit into a reply: each is at most 255 bytes of
/// name and 200 of numbers.
pub const LOOKED_MAX: u32 = 64;

/// A call of a look.
#[derive(PartialEq, Eq, Debug)]
pub struct Question {
    /// Which one.
    pub number: u16,
    /// The user that it acts for, if it is another one than the onlooker, and its arguments.
    pub call: Box<[u8]>,
}

impl Question {
    /// On behalf of the onlooker.
    pub fn new<'a, C: VolumeCall<'a>>(call: &C) -> Question {
        let mut bytes = Vec::with_capacity(256);
        None::<Credentials>.put(&mut bytes);
        call.put(&mut bytes);
        Question {
            number: C::NUMBER,
            call: bytes.into(),
        }
    }
}

/// What it is answered with.
#[derive(Debug)]
pub enum Reply {
    /// It failed.
    Failed(Error),
    /// The bytes of the call's result.
    Done(Box<[u8]>),
}

structs! {
    Question { number, call }
}
variants!(Reply { 0 = Failed(error), 1 = Done(result) });

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::calls::{List, Place};
    use adit_base::Errno;
    use adit_base::random::Prng;
    use adit_fs::{DirEntry, FileKind, ListedEntry, Stat};

    fn list(path: &[u8]) -> List<'_> {
        List {
            place: Place::root(path),
            cookie: u64::MAX,
            entries_max: LOOKED_MAX,
            attributes: true,
        }
    }

    fn listed(entries: usize) -> Vec<ListedEntry> {
        let mut entry = DirEntry::default();
        entry.inode = u64::MAX;
        entry.kind = FileKind::Directory;
        entry.cookie = u64::MAX;
        entry.name = vec![0xff; 255].into();
        let stat = Some(Stat::default());
        vec![ListedEntry { entry, stat }; entries]
    }

    #[test]
    fn the_largest_questions_and_replies_fit() {
        let question = Question::new(&list(&[b'a'; 4095]));
        assert!(question.encode().len() <= QUESTION_BYTES_MAX);
        let entries = listed(LOOKED_MAX as usize).encode();
        let reply = Reply::Done(entries.into());
        assert!(reply.encode().len() <= REPLY_BYTES_MAX);
        let reply = Reply::Failed(Error::with(Errno::IO, "\u{e4}".repeat(100_000)));
        assert!(reply.encode().len() <= REPLY_BYTES_MAX);
    }

    #[test]
    fn a_message_is_what_was_sent_and_a_part_of_it_or_a_change_is_another_or_none() {
        fn again<M: crate::value::OwnedValue>(bytes: &[u8]) -> Option<Vec<u8>> {
            M::decode(bytes).map(|message| message.encode())
        }
        let question = Question::new(&list(b"/a/b")).encode();
        let done = Reply::Done(listed(2).encode().into()).encode();
        let failed = Reply::Failed(Error::with(Errno::NOENT, "words")).encode();
        let mut random = Prng::new(3);
        for bytes in [question, done, failed] {
            let decoded = |bytes: &[u8]| [again::<Question>(bytes), again::<Reply>(bytes)];
            assert!(decoded(&bytes).contains(&Some(bytes.clone())));
            for end in 0..bytes.len() {
                assert_eq!(decoded(&bytes[..end]), [None, None], "{end} bytes");
            }
            for _ in 0..5_000 {
                let mut changed = bytes.clone();
                let at = random.index(changed.len());
                changed[at] = random.next_u64() as u8;
                for same in decoded(&changed).into_iter().flatten() {
                    assert_eq!(same, changed);
                }
            }
        }
    }
}
