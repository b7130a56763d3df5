//! Values as bytes: the encoding of calls and replies.
//!
//! A value is its fields one after the other, numbers little-endian, sequences after their length
//! in 32 bits, an option after a byte 0 or 1, an enum after the byte of its variant.
//!
//! Invariants: decoding accepts exactly the bytes that encoding makes, whatever it is given, and
//! allocates no more than those bytes can fill. A decoded slice lies in the input; nothing is
//! looked at twice.

use adit_base::clock::Timestamp;
use adit_base::{Errno, Error};
use adit_fs::{
    Access, AllocateFlags, BlobId, CheckReport, Credentials, DirEntry, FileKind, FlockOperation,
    Follow, ListedEntry, LockMode, LockOwner, OpenDescriptor, OpenFlags, RangeLock, RenameFlags,
    SetTime, Stat, StatFs,
};
use adit_store::{AppliedUpTo, VolumeInfo, XattrMode};

/// Words of an error beyond this are cut off.
pub(crate) const WORDS_BYTES_MAX: usize = 1024;

/// A value that has bytes.
pub trait Value<'a>: Sized {
    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);

    /// Takes it from the front of the input; None if it isn't there.
    fn take(input: &mut &'a [u8]) -> Option<Self>;

    /// Names and types of a struct's fields, numbers and names of an enum's variants: for the test
    /// that compares docs/reference/protocol.md with the code.
    #[doc(hidden)]
    fn shape() -> Vec<(&'static str, &'static str)> {
        Vec::new()
    }

    /// Its bytes.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        self.put(&mut out);
        out
    }

    /// None unless it is all of the bytes.
    fn decode(mut bytes: &'a [u8]) -> Option<Self> {
        Self::take(&mut bytes).filter(|_| bytes.is_empty())
    }
}

/// Name of the type of a field.
#[doc(hidden)]
pub fn type_of<T, F>(_: fn(&T) -> &F) -> &'static str {
    std::any::type_name::<F>()
}

/// A value that borrows nothing: replies are.
pub trait OwnedValue: for<'a> Value<'a> {}
impl<T: for<'a> Value<'a>> OwnedValue for T {}

macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl Value<'_> for $number {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn take(input: &mut &[u8]) -> Option<Self> {
                let (bytes, rest) = input.split_first_chunk()?;
                *input = rest;
                Some(Self::from_le_bytes(*bytes))
            }
        }
    )* };
}
numbers!(u8, u16, u32, i32, u64, i64);

/// Structs: their fields.
#[macro_export]
macro_rules! structs {
    ($($name:ident { $($field:ident),* $(,)? })*) => { $(
        impl $crate::value::Value<'_> for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::value::Value::put(&self.$field, out);)*
                let _ = out;
            }
            fn take(input: &mut &[u8]) -> Option<Self> {
                let _ = &input;
                Some($name { $($field: $crate::value::Value::take(input)?),* })
            }
            fn shape() -> Vec<(&'static str, &'static str)> {
                vec![$((stringify!($field), $crate::value::type_of(|of: &$name| &of.$field))),*]
            }
        }
    )* };
}
pub use structs;

structs! {
    Timestamp { seconds, nanoseconds }
    ListedEntry { entry, stat }
    BlobId { slot, generation }
}

/// Likewise, of another crate's that may grow; a test compares the lists with what there is.
macro_rules! growing_structs {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        $(
            impl Value<'_> for $name {
                fn put(&self, out: &mut Vec<u8>) {
                    $(self.$field.put(out);)*
                }
                fn take(input: &mut &[u8]) -> Option<Self> {
                    let mut value = $name::default();
                    $(value.$field = Value::take(input)?;)*
                    Some(value)
                }
                fn shape() -> Vec<(&'static str, &'static str)> {
                    vec![$((stringify!($field), type_of(|of: &$name| &of.$field))),*]
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
        block_bytes, total_bytes, free_bytes, available_bytes, inodes, free_inodes, name_bytes_max,
        volume_id, read_only,
    }
    VolumeInfo {
        volume_id, label, volume_bytes, free_bytes, usable_bytes, journal_bytes, journal_live_bytes, cluster_bytes, blobs, epoch,
        created_seconds, cache_bytes, cache_huge_bytes, workers, dirty_bytes, data_checksums, survives, mapping, unsaved,
        failure, lost_path,
    }
    DirEntry { inode, kind, cookie, name }
    OpenDescriptor { cookie, inode, generation, kind, flags, size_bytes, unlinked }
    CheckReport { directories, files, orphans, blobs, problems }
}

impl Value<'_> for () {
    fn put(&self, _: &mut Vec<u8>) {}
    fn take(_: &mut &[u8]) -> Option<Self> {
        Some(())
    }
}

impl Value<'_> for bool {
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

impl Value<'_> for FileKind {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u8).put(out);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        FileKind::from_u8(u8::take(input)?)
    }
}

/// Flags: all bits, also unknown ones. The operation judges them, as that of a caller in the
/// server's own process.
macro_rules! flags {
    ($($name:ident),*) => { $(
        impl Value<'_> for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.bits().put(out);
            }
            fn take(input: &mut &[u8]) -> Option<Self> {
                Some($name::from_bits_retain(u32::take(input)?))
            }
        }
    )* };
}
flags!(OpenFlags, RenameFlags, AllocateFlags, Access);

impl<'a> Value<'a> for &'a [u8] {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self);
    }
    fn take(input: &mut &'a [u8]) -> Option<Self> {
        let len = u32::take(input)? as usize;
        let (bytes, rest) = input.split_at_checked(len)?;
        *input = rest;
        Some(bytes)
    }
}

impl<const N: usize> Value<'_> for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        let (bytes, rest) = input.split_first_chunk()?;
        *input = rest;
        Some(*bytes)
    }
}

impl Value<'_> for AppliedUpTo {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|number| number.put(out));
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        let mut numbers = AppliedUpTo::ALL;
        for number in &mut numbers.0 {
            *number = u64::take(input)?;
        }
        Some(numbers)
    }
}

impl<'a, T: Value<'a>> Value<'a> for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }
    fn take(input: &mut &'a [u8]) -> Option<Self> {
        // Not reserved: the number may be anything, and the items end where the bytes do.
        (0..u32::take(input)?)
            .map(|_| {
                let before = input.len();
                // An item without bytes could be repeated for ever.
                T::take(input).filter(|_| input.len() < before)
            })
            .collect()
    }
}

impl Value<'_> for Box<[u8]> {
    fn put(&self, out: &mut Vec<u8>) {
        let bytes = &**self;
        bytes.put(out);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        <&[u8]>::take(input).map(Box::from)
    }
}

impl Value<'_> for String {
    fn put(&self, out: &mut Vec<u8>) {
        let bytes = self.as_bytes();
        bytes.put(out);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        let bytes = <&[u8]>::take(input)?;
        std::str::from_utf8(bytes).ok().map(str::to_owned)
    }
}

impl<'a, T: Value<'a>> Value<'a> for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|item| item.put(out));
    }
    fn take(input: &mut &'a [u8]) -> Option<Self> {
        if bool::take(input)? {
            Some(Some(T::take(input)?))
        } else {
            Some(None)
        }
    }
}

impl<'a, T: Value<'a>, U: Value<'a>> Value<'a> for (T, U) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(input: &mut &'a [u8]) -> Option<Self> {
        Some((T::take(input)?, U::take(input)?))
    }
}

impl Value<'_> for Error {
    fn put(&self, out: &mut Vec<u8>) {
        self.errno().raw().put(out);
        let words = self.what();
        let mut end = words.len().min(WORDS_BYTES_MAX);
        while !words.is_char_boundary(end) {
            end -= 1;
        }
        let words = &words.as_bytes()[..end];
        words.put(out);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        // Other numbers are none.
        let errno = i32::take(input).filter(|raw| (1..4096).contains(raw))?;
        let words = String::take(input)?;
        Some(if words.is_empty() {
            Error::new(Errno::from_raw(errno))
        } else {
            Error::with(Errno::from_raw(errno), words)
        })
    }
}

impl Value<'_> for Credentials {
    fn put(&self, out: &mut Vec<u8>) {
        self.uid.put(out);
        self.gid.put(out);
        self.groups.to_vec().put(out);
        self.privileged.put(out);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        let (uid, gid) = (u32::take(input)?, u32::take(input)?);
        let groups = Vec::<u32>::take(input)?;
        let mut credentials = Credentials::user(uid, gid, &groups);
        credentials.privileged = bool::take(input)?;
        Some(credentials)
    }
}

/// An enum: the byte of the variant, then its fields.
#[macro_export]
macro_rules! variants {
    ($name:ident { $($number:literal = $variant:ident $({ $($field:ident),* })? $(( $value:ident ))? ),* $(,)? }) => {
        impl $crate::value::Value<'_> for $name {
            #[allow(unreachable_patterns)] // of enums that may grow
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($name::$variant $({ $($field),* })? $(( $value ))? => {
                        let number: u8 = $number;
                        $crate::value::Value::put(&number, out);
                        $($($crate::value::Value::put($field, out);)*)?
                        $($crate::value::Value::put($value, out);)?
                    })*
                    _ => unreachable!("a variant without a number"),
                }
            }
            fn take(input: &mut &[u8]) -> Option<Self> {
                match <u8 as $crate::value::Value>::take(input)? {
                    $($number => {
                        $($(let $field = $crate::value::Value::take(input)?;)*)?
                        $(let $value = $crate::value::Value::take(input)?;)?
                        Some($name::$variant $({ $($field),* })? $(( $value ))?)
                    })*
                    _ => None,
                }
            }
            fn shape() -> Vec<(&'static str, &'static str)> {
                vec![$((
                    stringify!($number),
                    stringify!($variant $({ $($field),* })? $(( $value ))?),
                )),*]
            }
        }
    };
}
pub use variants;

variants!(Follow { 0 = No, 1 = Yes });
variants!(LockMode { 0 = Shared, 1 = Exclusive });
variants!(LockOwner { 0 = Descriptor, 1 = Posix { id, pid } });
variants!(FlockOperation { 0 = Shared { wait }, 1 = Exclusive { wait }, 2 = Unlock });
variants!(SetTime { 0 = Omit, 1 = Now, 2 = To(time) });
variants!(XattrMode { 0 = Any, 1 = Create, 2 = Replace });

impl Value<'_> for RangeLock {
    fn put(&self, out: &mut Vec<u8>) {
        self.owner.put(out);
        self.mode.put(out);
        self.offset.put(out);
        self.len_bytes.put(out);
    }
    fn take(input: &mut &[u8]) -> Option<Self> {
        let (owner, mode) = (Value::take(input)?, Value::take(input)?);
        let (offset, len_bytes) = (Value::take(input)?, Value::take(input)?);
        Some(RangeLock::new(owner, mode, offset, len_bytes))
    }
}
