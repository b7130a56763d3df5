//! What goes over the socket: requests, answers, and their bytes.
//!
//! A value is its fields one after the other, numbers little-endian, sequences after their length
//! in 32 bits. Invariant: decoding accepts exactly what encoding makes, whatever the bytes are, and
//! allocates no more than they can fill.

use adit_base::clock::Timestamp;
use adit_base::{Errno, Error};
use adit_fs::{DirEntry, FileKind, ListedEntry, OpenDescriptor, OpenFlags, Stat, StatFs};
use adit_store::VolumeInfo;

/// Changes with every change of a message.
pub(super) const VERSION: u32 = 4;
const MAGIC: [u8; 4] = *b"adit";

/// Bound of a request: a path of 4095 bytes and some numbers.
pub(super) const REQUEST_BYTES_MAX: usize = 4352;
/// Bound of an answer.
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Most entries in an answer; each is at most 255 bytes of name and 200 of numbers.
pub(super) const ENTRIES_MAX: usize = 64;
/// Words of an error beyond this are cut off.
const WORDS_BYTES_MAX: usize = 1024;

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

/// A value that has bytes.
pub(super) trait Message: Sized {
    fn put(&self, out: &mut Vec<u8>);
    /// Takes it from the front; None if it isn't there.
    fn take(input: &mut &[u8]) -> Option<Self>;

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// None unless it is all of the bytes.
    fn decode(mut bytes: &[u8]) -> Option<Self> {
        Self::take(&mut bytes).filter(|_| bytes.is_empty())
    }
}

macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl Message for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(input: &mut &[u8]) -> Option<Self> {
                let (bytes, rest) = input.split_first_chunk()?;
                *input = rest;
                Some(Self::from_le_bytes(*bytes))
            }
        }
    )* };
}
numbers!(u8, u32, i32, u64, i64);

macro_rules! structs {
    ($($name:ident { $($field:ident),* $(,)? })*) => { $(
        impl Message for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
            fn take(input: &mut &[u8]) -> Option<Self> {
                Some($name { $($field: Message::take(input)?),* })
            }
        }
    )* };
}
structs! {
    Hello { magic, version }
    Timestamp { seconds, nanoseconds }
    ListedEntry { entry, stat }
}

/// Likewise, of another crate's that may grow; a test compares the lists with what there is.
macro_rules! growing_structs {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        $(
            impl Message for $name {
                fn put(&self, out: &mut Vec<u8>) {
                    $(self.$field.put(out);)*
                }
                fn take(input: &mut &[u8]) -> Option<Self> {
                    let mut value = $name::default();
                    $(value.$field = Message::take(input)?;)*
                    Some(value)
                }
            }
        )*

        #[test]
        fn every_field_is_sent() {
            $(
                let shown = format!("{:#?}", $name::default());
                let fields = shown.lines().filter_map(|line| line.strip_prefix("    "));
                let fields = fields.filter(|field| !field.starts_with([' ', '}', ']', ')']));
                let names = fields.map(|field| field.split(':').next().unwrap_or(field));
                assert_eq!(names.collect::<Vec<_>>(), [$(stringify!($field)),*]);
            )*
        }
    };
}
growing_structs! {
    Stat {
        inode, generation, kind, mode, links, uid, gid, rdev, size_bytes, allocated_bytes, io_bytes,
        accessed, modified, changed, created,
    }
    StatFs {
        block_bytes, total_bytes, free_bytes, inodes, free_inodes, name_bytes_max, volume_id, read_only,
    }
    VolumeInfo {
        volume_id, label, volume_bytes, free_bytes, usable_bytes, journal_bytes, journal_live_bytes, cluster_bytes, blobs, epoch,
        created_seconds, cache_bytes, cache_huge_bytes, dirty_bytes, data_checksums, mapping, unsaved,
        failure,
    }
    DirEntry { inode, kind, cookie, name }
    OpenDescriptor { cookie, inode, generation, kind, flags, size_bytes, unlinked }
}

impl Message for bool {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(*self).put(out);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        match u8::take(input)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Message for FileKind {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u8).put(out);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        FileKind::from_u8(u8::take(input)?)
    }
}

impl Message for OpenFlags {
    fn put(&self, out: &mut Vec<u8>) {
        self.bits().put(out);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        Some(OpenFlags::from_bits_retain(u32::take(input)?))
    }
}

impl<const N: usize> Message for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        let (bytes, rest) = input.split_first_chunk()?;
        *input = rest;
        Some(*bytes)
    }
}

impl<T: Message> Message for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        // Not reserved: the number may be anything, and the items end where the bytes do.
        (0..u32::take(input)?).map(|_| T::take(input)).collect()
    }
}

impl Message for Box<[u8]> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        Vec::take(input).map(Vec::into_boxed_slice)
    }
}

impl Message for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        String::from_utf8(Vec::take(input)?).ok()
    }
}

impl<T: Message> Message for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|item| item.put(out));
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        match bool::take(input)? {
            true => Some(Some(T::take(input)?)),
            false => Some(None),
        }
    }
}

impl Message for Error {
    fn put(&self, out: &mut Vec<u8>) {
        self.errno().raw().put(out);
        let words = self.what();
        let mut end = words.len().min(WORDS_BYTES_MAX);
        while !words.is_char_boundary(end) {
            end -= 1;
        }
        words[..end].to_owned().put(out);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        // Other numbers are none.
        let errno = i32::take(input).filter(|raw| (1..4096).contains(raw))?;
        Some(Error::with(Errno::from_raw(errno), String::take(input)?))
    }
}

/// An enum: the number of the variant, then its fields.
macro_rules! variants {
    ($name:ident { $($number:literal = $variant:ident $({ $($field:ident),* })? $(( $value:ident ))? ),* $(,)? }) => {
        impl Message for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($name::$variant $({ $($field),* })? $(( $value ))? => {
                        let number: u8 = $number;
                        number.put(out);
                        $($($field.put(out);)*)?
                        $($value.put(out);)?
                    })*
                }
            }
            fn take(input: &mut &[u8]) -> Option<Self> {
                match u8::take(input)? {
                    $($number => {
                        $($(let $field = Message::take(input)?;)*)?
                        $(let $value = Message::take(input)?;)?
                        Some($name::$variant $({ $($field),* })? $(( $value ))?)
                    })*
                    _ => None,
                }
            }
        }
    };
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
