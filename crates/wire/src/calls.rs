//! The calls: every operation of the file system as a value, with its arguments and its reply.
//!
//! A client makes one of these for each method of its interface. In a process that has the volume
//! open, `adit-server`'s `perform` runs it on the file system; a connected process sends it, and
//! the server runs the same code. Reading, writing and syncing an open file are not here: they are
//! [messages](crate::message) of their own.
//!
//! Numbers are never reused for another meaning; a changed call gets a new number.

use crate::value::{OwnedValue, Value, structs};
use adit_fs::{
    Access, AllocateFlags, At, BlobId, CheckReport, Credentials, DirEntry, FileKind,
    FlockOperation, Follow, ListedEntry, LockOwner, OpenDescriptor, OpenFlags, RangeLock,
    RenameFlags, SetTime, StatFs,
};
use adit_store::{VolumeInfo, XattrMode};

/// A path and where it begins, without its user: the session knows that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place<'a> {
    /// The directory in which a relative path begins; None: the root.
    pub start: Option<BlobId>,
    /// The path; None: `start` itself, by its number.
    pub path: Option<&'a [u8]>,
    /// See [`At::links_below`].
    pub links_below: &'a [u8],
}

impl<'a> Place<'a> {
    /// A path from the root.
    pub fn root(path: &'a [u8]) -> Place<'a> {
        Place {
            start: None,
            path: Some(path),
            links_below: &[],
        }
    }

    /// For the file system, on behalf of a user.
    pub fn at(self, who: &'a Credentials) -> At<'a> {
        let at = match (self.start, self.path) {
            (None, path) => At::root(who, path.unwrap_or(b"/")),
            (Some(start), Some(path)) => At::inside(who, start, path),
            (Some(start), None) => At::inode(who, start),
        };
        at.links_below(self.links_below)
    }
}

impl<'a> From<At<'a>> for Place<'a> {
    fn from(at: At<'a>) -> Place<'a> {
        Place {
            start: at.start(),
            path: at.path(),
            links_below: at.below(),
        }
    }
}

impl<'a> Value<'a> for Place<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        self.start.put(out);
        self.path.put(out);
        self.links_below.put(out);
    }
    fn take(input: &mut &'a [u8]) -> Option<Self> {
        Some(Place {
            start: Value::take(input)?,
            path: Value::take(input)?,
            links_below: Value::take(input)?,
        })
    }
}

/// A call about the volume, or about what a path names.
pub trait VolumeCall<'a>: Value<'a> {
    /// Its number.
    const NUMBER: u16;
    /// What it is answered with.
    type Reply: OwnedValue + Send + 'static;

    /// The places that it names.
    fn places(&self) -> [Option<Place<'a>>; 2] {
        [None, None]
    }
}

/// A call about an open file.
pub trait FileCall<'a>: Value<'a> {
    /// Its number.
    const NUMBER: u16;
    /// What it is answered with.
    type Reply: OwnedValue + Send + 'static;
}

/// A call, for the test that compares docs/format/wire.md with the code.
#[cfg(all(test, not(loom)))]
pub(crate) struct Form {
    pub(crate) number: u16,
    pub(crate) name: &'static str,
    /// Names and types of the arguments.
    pub(crate) arguments: &'static [(&'static str, &'static str)],
    pub(crate) reply: &'static str,
}

macro_rules! calls {
    ($kind:ident $forms:ident: $(
        $(#[$doc:meta])*
        $number:literal = $name:ident $(<$life:lifetime>)? {
            $($field:ident: $type:ty),* $(,)?
        } $(at $($place:ident)+)? => $reply:ty;
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, PartialEq, Eq, Debug)]
            #[allow(missing_docs)] // its fields are the arguments of the operation
            pub struct $name $(<$life>)? {
                $(pub $field: $type,)*
            }

            impl<'a> Value<'a> for calls!(@type $name $($life)?) {
                #[inline]
                fn put(&self, out: &mut Vec<u8>) {
                    $(self.$field.put(out);)*
                    let _ = out;
                }
                #[inline]
                fn take(input: &mut &'a [u8]) -> Option<Self> {
                    let _ = &input;
                    Some($name { $($field: Value::take(input)?,)* })
                }
            }

            impl<'a> $kind<'a> for calls!(@type $name $($life)?) {
                const NUMBER: u16 = $number;
                type Reply = $reply;
                $(calls!(@places $($place)+);)?
            }
        )*

        #[cfg(all(test, not(loom)))]
        pub(crate) const $forms: &[Form] = &[$(Form {
            number: $number,
            name: stringify!($name),
            arguments: &[$((stringify!($field), stringify!($type))),*],
            reply: stringify!($reply),
        }),*];

        #[cfg(test)]
        const _: () = {
            // Numbers ascend, so none is used twice.
            let numbers: &[u16] = &[$($number),*];
            let mut at = 1;
            while at < numbers.len() {
                assert!(numbers[at - 1] < numbers[at]);
                at += 1;
            }
        };
    };
    (@type $name:ident $life:lifetime) => { $name<'a> };
    (@type $name:ident) => { $name };
    (@places $first:ident) => {
        fn places(&self) -> [Option<Place<'a>>; 2] {
            [Some(self.$first), None]
        }
    };
    (@places $first:ident $second:ident) => {
        fn places(&self) -> [Option<Place<'a>>; 2] {
            [Some(self.$first), Some(self.$second)]
        }
    };
}

calls! { VolumeCall VOLUME_CALLS:
    /// Attributes.
    1 = Stat<'a> { place: Place<'a>, follow: Follow } at place => adit_fs::Stat;
    /// Checks rights.
    2 = CheckAccess<'a> { place: Place<'a>, follow: Follow, wanted: Access } at place => ();
    /// Sets the size.
    3 = Truncate<'a> { place: Place<'a>, size_bytes: u64 } at place => ();
    /// Removes a name of a file.
    4 = Unlink<'a> { place: Place<'a> } at place => ();
    /// Removes an empty directory.
    5 = RemoveDirectory<'a> { place: Place<'a> } at place => ();
    /// Renames.
    6 = Rename<'a> { from: Place<'a>, to: Place<'a>, flags: RenameFlags } at from to => ();
    /// Gives a file another name.
    7 = Link<'a> { existing: Place<'a>, follow: Follow, place: Place<'a> } at existing place => adit_fs::Stat;
    /// Makes a directory.
    8 = MakeDirectory<'a> { place: Place<'a>, mode: u32 } at place => adit_fs::Stat;
    /// Makes a pipe, socket, device node or empty file.
    9 = MakeNode<'a> { place: Place<'a>, kind: FileKind, mode: u32, device: u64 } at place => adit_fs::Stat;
    /// Makes a symbolic link.
    10 = MakeSymlink<'a> { target: &'a [u8], place: Place<'a> } at place => adit_fs::Stat;
    /// The target of a symbolic link.
    11 = ReadLink<'a> { place: Place<'a> } at place => Vec<u8>;
    /// Sets the permission bits.
    12 = SetMode<'a> { place: Place<'a>, follow: Follow, mode: u32 } at place => ();
    /// Sets owner and group.
    13 = SetOwner<'a> { place: Place<'a>, follow: Follow, uid: Option<u32>, gid: Option<u32> } at place => ();
    /// Sets the times of last access and last change.
    14 = SetTimes<'a> { place: Place<'a>, follow: Follow, accessed: SetTime, modified: SetTime } at place => ();
    /// The value of an extended attribute.
    15 = GetXattr<'a> { place: Place<'a>, follow: Follow, name: &'a [u8] } at place => Vec<u8>;
    /// Sets an extended attribute.
    16 = SetXattr<'a> { place: Place<'a>, follow: Follow, name: &'a [u8], value: &'a [u8], mode: XattrMode } at place => ();
    /// Removes an extended attribute.
    17 = RemoveXattr<'a> { place: Place<'a>, follow: Follow, name: &'a [u8] } at place => ();
    /// Names of the extended attributes.
    18 = ListXattrs<'a> { place: Place<'a>, follow: Follow } at place => Vec<Vec<u8>>;
    /// Entries of a directory behind a cookie.
    19 = List<'a> { place: Place<'a>, cookie: u64, entries_max: u32, attributes: bool } at place => Vec<ListedEntry>;
    /// Sizes, counters and parameters.
    20 = Info {} => VolumeInfo;
    /// Space and identity.
    21 = Space {} => StatFs;
    /// Makes everything durable.
    22 = SyncAll {} => ();
    /// Open descriptors behind a cookie.
    23 = OpenDescriptors { cookie: u64, max: u32 } => Vec<OpenDescriptor>;
    /// Makes an empty blob.
    24 = CreateBlob {} => BlobId;
    /// Deletes a blob.
    25 = DeleteBlob { id: BlobId } => ();
    /// Blobs without names, from a slot on.
    26 = Blobs { from_slot: u64, max: u32 } => Vec<BlobId>;
    /// Makes the volume larger.
    27 = Grow { size_bytes: u64 } => ();
    /// Most bytes of an atomic write.
    28 = AtomicBytesMax {} => u64;
    /// Checks the consistency of all metadata.
    29 = Check {} => CheckReport;
    /// Opens what a path names.
    30 = Open<'a> { place: Place<'a>, flags: OpenFlags, mode: u32 } at place => Opened;
    /// Opens a blob.
    31 = OpenBlob { id: BlobId, flags: OpenFlags } => Opened;
    /// Reads data from a place on, about so many bytes, to notice what the device lost.
    32 = Scrub { slot: u64, page: u32, bytes_max: u64, only_reads: bool } => ScrubStep;
    /// Opens again what the session had open in a server that has ended, under the number that it
    /// had there. Only while a session resumes, as the three behind it.
    33 = Reopen { file: u64, id: BlobId, flags: OpenFlags, kind: FileKind, token: u64 } => ();
    /// The session has everything again. Answered when other sessions may change something, too.
    34 = EndResuming {} => ();
    /// The server's sessions, and which of its pollers work.
    35 = Sessions {} => ServerState;
    /// Moves a session to another poller.
    36 = MoveSession { number: u64, poller: u32 } => ();
    /// Opens a file that is new, or truncated, writes its content, and then does as fsync.
    37 = CreateAndSync<'a> { place: Place<'a>, flags: OpenFlags, mode: u32, content: &'a [u8] } at place => Opened;
    /// A message of a slot of this session waits for no lock any more. Its own reply says whether
    /// it has the lock.
    38 = Withdraw { slot: u32, message: u64 } => ();
    /// Gives the volume another label.
    39 = SetLabel<'a> { label: &'a [u8] } => ();
}

calls! { FileCall FILE_CALLS:
    /// Attributes.
    101 = FileStat {} => adit_fs::Stat;
    /// Sets the size.
    102 = SetSize { size_bytes: u64 } => ();
    /// fallocate.
    103 = Allocate { flags: AllocateFlags, offset: u64, len_bytes: u64 } => ();
    /// flock.
    104 = Flock { operation: FlockOperation } => ();
    /// Locks a range of bytes.
    105 = LockRange { lock: RangeLock, wait: bool } => ();
    /// Unlocks a range of bytes.
    106 = UnlockRange { owner: LockOwner, offset: u64, len_bytes: u64 } => ();
    /// A conflicting lock.
    107 = TestLock { lock: RangeLock } => Option<RangeLock>;
    /// Releases all locks of a POSIX owner.
    108 = ReleaseLocks { owner_id: u64 } => ();
    /// Sets the permission bits.
    109 = SetFileMode { mode: u32 } => ();
    /// Sets owner and group.
    110 = SetFileOwner { uid: Option<u32>, gid: Option<u32> } => ();
    /// Sets the times of last access and last change.
    111 = SetFileTimes { accessed: SetTime, modified: SetTime } => ();
    /// The value of an extended attribute.
    112 = GetFileXattr<'a> { name: &'a [u8] } => Vec<u8>;
    /// Sets an extended attribute.
    113 = SetFileXattr<'a> { name: &'a [u8], value: &'a [u8], mode: XattrMode } => ();
    /// Removes an extended attribute.
    114 = RemoveFileXattr<'a> { name: &'a [u8] } => ();
    /// Names of the extended attributes.
    115 = ListFileXattrs {} => Vec<Vec<u8>>;
    /// Position of the next data.
    116 = NextData { offset: u64 } => u64;
    /// Position of the next hole.
    117 = NextHole { offset: u64 } => u64;
    /// Starts to write dirty data to the device.
    118 = StartWriteBack {} => ();
    /// Entries of the open directory behind a cookie, in so many bytes of names.
    119 = ReadDirectory { cookie: u64, names_bytes: u32 } => Vec<DirEntry>;
    /// Writes ranges, all or none.
    120 = WriteAtomic<'a> { ranges: Vec<(u64, &'a [u8])>, sync: bool } => ();
    /// Copies a range to another open file of the session.
    121 = CopyRange { offset: u64, to: u64, to_offset: u64, len_bytes: u64 } => u64;
    /// Closes the file.
    122 = Close {} => ();
    /// Was this append of the last server's done? If not, nothing of it is left. Only while a
    /// session resumes in the time of grace.
    124 = SettleAppend { offset: u64, len_bytes: u64 } => bool;
    /// The memory of the file's shared mappings has this range, and the descriptor holds it.
    125 = Map { offset: u64, len_bytes: u64 } => ();
    /// Writes the stores to shared mappings to the file.
    126 = FlushMapped {} => ();
    /// The descriptor holds the memory no more.
    127 = Unmap {} => ();
    /// The file gets a tail, to which the session appends without messages.
    128 = BeginTail {} => ();
    /// The token with which *this* session opens the file again in the next server. It may have the
    /// file from another user's.
    129 = Renew {} => u64;
}

/// An opened file, as a session knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Its number: a place in the session's table, and how often that was used.
    pub file: u64,
    /// The blob that holds it.
    pub id: BlobId,
    /// How it was opened.
    pub flags: OpenFlags,
    /// Its kind.
    pub kind: FileKind,
    /// With which the session opens it again in the next server.
    pub token: u64,
}

/// A server, for its operator.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ServerState {
    /// Its process.
    pub pid: u32,
    /// Its pollers; the first of them work, as many as the load needs.
    pub pollers: u32,
    /// Pollers that work.
    pub running: u32,
    /// Its sessions, on all its volumes.
    pub sessions: Vec<SessionState>,
}

/// A session, for the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionState {
    /// Tells sessions of the server apart.
    pub number: u64,
    /// Process at the other end, if it has a number here.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
    /// Name of the volume.
    pub volume: String,
    /// Files that it has open.
    pub files: u32,
    /// The poller that has it now, from 0 on.
    pub poller: u32,
    /// Messages that it had done.
    pub served: u64,
    /// Is it the one that asks?
    pub is_own: bool,
}

/// What a step of a scrub found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ScrubStep {
    /// Bytes of data read.
    pub bytes: u64,
    /// Bytes among them that had no checksum.
    pub unchecked_bytes: u64,
    /// About the bytes of data on the volume.
    pub total_bytes: u64,
    /// Data that is lost.
    pub damages: Vec<LostData>,
    /// Damages beyond those listed.
    pub damages_omitted: u64,
    /// Slot and page at which the next step begins; None: this was the last one.
    pub next: Option<(u64, u32)>,
}

/// A range of lost data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostData {
    /// Inode number.
    pub inode: u64,
    /// A path of the file, if it has one.
    pub path: Option<Vec<u8>>,
    /// First lost byte of the file.
    pub offset: u64,
    /// Number of bytes.
    pub len_bytes: u64,
    /// The first page of the device.
    pub page: u64,
    /// What is wrong.
    pub what: String,
}

structs! {
    Opened { file, id, flags, kind, token }
    ServerState { pid, pollers, running, sessions }
    SessionState { number, pid, uid, volume, files, poller, served, is_own }
    ScrubStep { bytes, unchecked_bytes, total_bytes, damages, damages_omitted, next }
    LostData { inode, path, offset, len_bytes, page, what }
}
