//! Requests and answers of live inspection. Their bytes: `adit_wire::value`.

use adit_base::Error;
use adit_fs::{ListedEntry, OpenDescriptor, Stat, StatFs};
use adit_store::VolumeInfo;
use adit_wire::value::{structs, variants};

/// Changes with every change of a message.
pub(super) const VERSION: u32 = 4;
const MAGIC: [u8; 4] = *b"adit";

/// Bound of a request: a path of 4095 bytes and some numbers.
pub(super) const REQUEST_BYTES_MAX: usize = 4352;
/// Bound of an answer.
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Most entries in an answer; each is at most 255 bytes of name and 200 of numbers.
pub(super) const ENTRIES_MAX: usize = 64;

/// What begins a session, from either side.
#[derive(Debug, PartialEq)]
pub(super) struct Hello {
    magic: [u8; 4],
    pub(super) version: u32,
}

impl Hello {
    pub(super) fn ours() -> Hello {
        Hello {
            magic: MAGIC,
            version: VERSION,
        }
    }

    /// Is it one at all, of whatever version?
    pub(super) fn is_adit(&self) -> bool {
        self.magic == MAGIC
    }
}

/// The owner's first message; it speaks first, so that a refusal is heard.
#[derive(Debug, PartialEq)]
pub(super) enum Greeting {
    Refused(Error),
    Hello(Hello),
}

/// What is asked. Nothing here changes anything, or refers to an earlier request.
#[derive(Debug, PartialEq)]
pub(crate) enum Request {
    /// Attributes of what a path names.
    Stat {
        path: Vec<u8>,
        follow: bool,
    },
    /// Entries of a directory behind a cookie.
    List {
        path: Vec<u8>,
        cookie: u64,
        attributes: bool,
    },
    /// What a symbolic link says.
    ReadLink {
        path: Vec<u8>,
    },
    Info,
    StatFs,
    /// Open descriptors behind a cookie.
    Open {
        cookie: u64,
    },
}

/// What is answered.
#[derive(Debug)]
pub(crate) enum Answer {
    Failed(Error),
    Stat(Stat),
    List(Vec<ListedEntry>),
    ReadLink(Vec<u8>),
    Info(VolumeInfo),
    StatFs(StatFs),
    Open(Vec<OpenDescriptor>),
}

structs! {
    Hello { magic, version }
}
variants!(Greeting {
    0 = Refused(error),
    1 = Hello(hello),
});
variants!(Request {
    1 = Stat { path, follow },
    2 = List { path, cookie, attributes },
    3 = Info,
    4 = StatFs,
    5 = Open { cookie },
    6 = ReadLink { path },
});
variants!(Answer {
    0 = Failed(error),
    1 = Stat(stat),
    2 = List(entries),
    3 = Info(info),
    4 = StatFs(statfs),
    5 = Open(descriptors),
    6 = ReadLink(target),
});
