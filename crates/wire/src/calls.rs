//! The calls: every operation of the file system as a value, with its arguments and its reply.
//!
//! A client makes one of these for each method of its interface. In a process that has the volume
//! open, `adit-server`'s `perform` runs it on the file system; a connected process sends it, and
//! the server runs the same code. Reading, writing and syncing an open file are not here: they are
//! [messages](crate::message) of their own.
//!
//! Numbers are never reused for another meaning; a changed call gets a new number.
//!
//! The table below has a row for each call. Behind its reply stand four words:
//!
//! | word | |
//! |---|---|
//! | `looks`, `opens`, `as_opened`, `changes` | its [`Class`] |
//! | `all`, `administrators` | the users that may send it |
//! | `again`, `nothing`, `attributes`, `own` | its reply after the server's end: [`WhenDone`] |
//! | `performed`, `special` | a server performs it as an embedded volume does, or has a function for it |

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

/// Does a call change the volume?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// It changes nothing.
    Looks,
    /// It opens a file: its flags say whether it changes anything.
    Opens,
    /// It is about an open file, and does what that was opened for.
    AsOpened,
    /// It changes something.
    Changes,
}

/// The reply to a call that a server has done, if it ended before it replied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenDone {
    /// The next server does it again, which does no harm.
    Again,
    /// Nothing. Done again, it would fail.
    Nothing,
    /// The attributes of the file that it has made. Done again, it would fail.
    Attributes,
    /// The client has code of its own for it.
    Own,
}

/// What a call does with what a session holds: files, locks, shared mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhatIsHeld {
    /// Nothing.
    Stays,
    /// It takes or releases locks, or a mapping.
    Changes,
    /// It takes a lock or a mapping. A session that goes on with one of the last server gets back
    /// by it what that held.
    Reclaims,
    /// Only a session that goes on with one of the last server may send it.
    Restores,
}

impl WhatIsHeld {
    /// Does the call change the locks or mappings of a session?
    pub const fn changes(self) -> bool {
        matches!(self, WhatIsHeld::Changes | WhatIsHeld::Reclaims)
    }

    /// May a session send the call before it has everything again?
    pub const fn may_resume(self) -> bool {
        matches!(self, WhatIsHeld::Reclaims | WhatIsHeld::Restores)
    }
}

/// What is known of a call by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its number.
    pub number: u16,
    /// Its name.
    pub name: &'static str,
    /// Does it change the volume?
    pub class: Class,
    /// What it does with what a session holds.
    pub held: WhatIsHeld,
}

/// The row of a call; None: there is no call of this number.
pub fn row(number: u16) -> Option<&'static Row> {
    let mut rows = VOLUME_ROWS.iter().chain(FILE_ROWS);
    rows.find(|row| row.number == number)
}

/// A call about the volume, or about what a path names.
pub trait VolumeCall<'a>: Value<'a> {
    /// Its number.
    const NUMBER: u16;
    /// Does it change the volume?
    const CLASS: Class;
    /// Only root and the server's own user may send it.
    const ADMINISTERS: bool;
    /// Its reply if it was done already.
    const WHEN_DONE: WhenDone;
    /// What it does with what a session holds.
    const HELD: WhatIsHeld;
    /// What it is answered with.
    type Reply: OwnedValue + Send + 'static;

    /// The places that it names.
    fn places(&self) -> [Option<Place<'a>>; 2] {
        [None, None]
    }

    /// The blob without a name that it changes.
    fn blob(&self) -> Option<BlobId> {
        None
    }

    /// The same, to be changed to other ways to them.
    fn places_mut(&mut self) -> [Option<&mut Place<'a>>; 2] {
        [None, None]
    }
}

/// A call about an open file.
pub trait FileCall<'a>: Value<'a> {
    /// Its number.
    const NUMBER: u16;
    /// Does it change the volume?
    const CLASS: Class;
    /// Its reply if it was done already.
    const WHEN_DONE: WhenDone;
    /// What it does with what a session holds.
    const HELD: WhatIsHeld;
    /// What it is answered with.
    type Reply: OwnedValue + Send + 'static;
}

/// A call, for the test that compares docs/reference/protocol.md with the code.
#[cfg(all(test, not(loom)))]
pub(crate) struct Form {
    pub(crate) number: u16,
    pub(crate) name: &'static str,
    /// Names and types of the arguments.
    pub(crate) arguments: &'static [(&'static str, &'static str)],
    pub(crate) reply: &'static str,
}

macro_rules! calls {
    ($kind:ident $rows:ident $forms:ident $special:ident $performed:ident: $(
        $(#[$doc:meta])*
        $number:literal = $name:ident $(<$life:lifetime>)? {
            $($field:ident: $type:ty),* $(,)?
        } $(at $($place:ident)+)? $(of $blob:ident)? => $reply:ty
            : $class:ident $by:ident $when_done:ident $held:ident $how:ident;
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
                const CLASS: Class = calls!(@class $class);
                calls!(@by $kind $by);
                const WHEN_DONE: WhenDone = calls!(@when_done $when_done);
                const HELD: WhatIsHeld = calls!(@held $held);
                type Reply = $reply;
                $(calls!(@places $($place)+);)?
                $(fn blob(&self) -> Option<BlobId> {
                    Some(self.$blob)
                })?
            }
        )*

        const $rows: &[Row] = &[$(Row {
            number: $number,
            name: stringify!($name),
            class: calls!(@class $class),
            held: calls!(@held $held),
        }),*];

        calls!(@special $special [] $($how $name)*);
        calls!(@performed ($) $performed [] $($how $name)*);

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
    (@class looks) => { Class::Looks };
    (@class opens) => { Class::Opens };
    (@class as_opened) => { Class::AsOpened };
    (@class changes) => { Class::Changes };
    (@by VolumeCall all) => { const ADMINISTERS: bool = false; };
    (@by VolumeCall administrators) => { const ADMINISTERS: bool = true; };
    (@by FileCall all) => {};
    (@when_done again) => { WhenDone::Again };
    (@when_done nothing) => { WhenDone::Nothing };
    (@when_done attributes) => { WhenDone::Attributes };
    (@when_done own) => { WhenDone::Own };
    (@held plain) => { WhatIsHeld::Stays };
    (@held held) => { WhatIsHeld::Changes };
    (@held reclaims) => { WhatIsHeld::Reclaims };
    (@held restores) => { WhatIsHeld::Restores };
    (@special $special:ident [$($found:ident)*]) => {
        /// The calls for which a server has functions of its own, in the order of their numbers.
        pub const $special: &[u16] = &[$($found::NUMBER),*];
    };
    (@special $special:ident [$($found:ident)*] special $name:ident $($rest:tt)*) => {
        calls!(@special $special [$($found)* $name] $($rest)*);
    };
    (@special $special:ident $found:tt performed $name:ident $($rest:tt)*) => {
        calls!(@special $special $found $($rest)*);
    };
    (@performed ($d:tt) $performed:ident [$($found:ident)*]) => {
        /// Gives the macro, behind what it is given here, the names of the calls that a server
        /// performs as an embedded volume does.
        #[macro_export]
        macro_rules! $performed {
            ($d with:ident $d($d before:tt)*) => { $d with!($d($d before)* $($found)*) };
        }
    };
    (@performed $d:tt $performed:ident [$($found:ident)*] performed $name:ident $($rest:tt)*) => {
        calls!(@performed $d $performed [$($found)* $name] $($rest)*);
    };
    (@performed $d:tt $performed:ident $found:tt special $name:ident $($rest:tt)*) => {
        calls!(@performed $d $performed $found $($rest)*);
    };
    (@type $name:ident $life:lifetime) => { $name<'a> };
    (@type $name:ident) => { $name };
    (@places $first:ident) => {
        fn places(&self) -> [Option<Place<'a>>; 2] {
            [Some(self.$first), None]
        }
        fn places_mut(&mut self) -> [Option<&mut Place<'a>>; 2] {
            [Some(&mut self.$first), None]
        }
    };
    (@places $first:ident $second:ident) => {
        fn places(&self) -> [Option<Place<'a>>; 2] {
            [Some(self.$first), Some(self.$second)]
        }
        fn places_mut(&mut self) -> [Option<&mut Place<'a>>; 2] {
            [Some(&mut self.$first), Some(&mut self.$second)]
        }
    };
}

calls! { VolumeCall VOLUME_ROWS VOLUME_CALLS SPECIAL_VOLUME_CALLS performed_volume_calls:
    /// Attributes.
    1 = Stat<'a> { place: Place<'a>, follow: Follow } at place => adit_fs::Stat
        : looks all again plain performed;
    /// Checks rights.
    2 = CheckAccess<'a> { place: Place<'a>, follow: Follow, wanted: Access } at place => ()
        : looks all again plain performed;
    /// Sets the size.
    3 = Truncate<'a> { place: Place<'a>, size_bytes: u64 } at place => ()
        : changes all again plain performed;
    /// Removes a name of a file.
    4 = Unlink<'a> { place: Place<'a> } at place => ()
        : changes all nothing plain performed;
    /// Removes an empty directory.
    5 = RemoveDirectory<'a> { place: Place<'a> } at place => ()
        : changes all nothing plain performed;
    /// Renames.
    6 = Rename<'a> { from: Place<'a>, to: Place<'a>, flags: RenameFlags } at from to => ()
        : changes all nothing plain performed;
    /// Gives a file another name.
    7 = Link<'a> { existing: Place<'a>, follow: Follow, place: Place<'a> } at existing place => adit_fs::Stat
        : changes all attributes plain performed;
    /// Makes a directory.
    8 = MakeDirectory<'a> { place: Place<'a>, mode: u32 } at place => adit_fs::Stat
        : changes all attributes plain performed;
    /// Makes a pipe, socket, device node or empty file.
    9 = MakeNode<'a> { place: Place<'a>, kind: FileKind, mode: u32, device: u64 } at place => adit_fs::Stat
        : changes all attributes plain performed;
    /// Makes a symbolic link.
    10 = MakeSymlink<'a> { target: &'a [u8], place: Place<'a> } at place => adit_fs::Stat
        : changes all attributes plain performed;
    /// The target of a symbolic link.
    11 = ReadLink<'a> { place: Place<'a> } at place => Vec<u8>
        : looks all again plain performed;
    /// Sets the permission bits.
    12 = SetMode<'a> { place: Place<'a>, follow: Follow, mode: u32 } at place => ()
        : changes all again plain performed;
    /// Sets owner and group.
    13 = SetOwner<'a> { place: Place<'a>, follow: Follow, uid: Option<u32>, gid: Option<u32> } at place => ()
        : changes all again plain performed;
    /// Sets the times of last access and last change.
    14 = SetTimes<'a> { place: Place<'a>, follow: Follow, accessed: SetTime, modified: SetTime } at place => ()
        : changes all again plain performed;
    /// The value of an extended attribute.
    15 = GetXattr<'a> { place: Place<'a>, follow: Follow, name: &'a [u8] } at place => Vec<u8>
        : looks all again plain performed;
    /// Sets an extended attribute.
    16 = SetXattr<'a> { place: Place<'a>, follow: Follow, name: &'a [u8], value: &'a [u8], mode: XattrMode } at place => ()
        : changes all nothing plain performed;
    /// Removes an extended attribute.
    17 = RemoveXattr<'a> { place: Place<'a>, follow: Follow, name: &'a [u8] } at place => ()
        : changes all nothing plain performed;
    /// Names of the extended attributes.
    18 = ListXattrs<'a> { place: Place<'a>, follow: Follow } at place => Vec<Vec<u8>>
        : looks all again plain performed;
    /// Entries of a directory behind a cookie.
    19 = List<'a> { place: Place<'a>, cookie: u64, entries_max: u32, attributes: bool } at place => Vec<ListedEntry>
        : looks all again plain performed;
    /// Sizes, counters and parameters.
    20 = Info {} => VolumeInfo
        : looks all again plain performed;
    /// Space and identity.
    21 = Space {} => StatFs
        : looks all again plain performed;
    /// Makes everything durable.
    22 = SyncAll {} => ()
        : looks all again plain performed;
    /// Open descriptors behind a cookie.
    23 = OpenDescriptors { cookie: u64, max: u32 } => Vec<OpenDescriptor>
        : looks administrators again plain performed;
    /// Makes an empty blob.
    24 = CreateBlob {} => BlobId
        : changes administrators own plain performed;
    /// Deletes a blob.
    25 = DeleteBlob { id: BlobId } of id => ()
        : changes administrators own plain performed;
    /// Blobs without names, from a slot on.
    26 = Blobs { from_slot: u64, max: u32 } => Vec<BlobId>
        : looks administrators again plain performed;
    /// Makes the volume larger.
    27 = Grow { size_bytes: u64 } => ()
        : changes administrators again plain performed;
    /// Most bytes of an atomic write.
    28 = AtomicBytesMax {} => u64
        : looks all again plain performed;
    /// Checks the consistency of all metadata.
    29 = Check {} => CheckReport
        : looks administrators again plain performed;
    /// Opens what a path names.
    30 = Open<'a> { place: Place<'a>, flags: OpenFlags, mode: u32 } at place => Opened
        : opens all own plain special;
    /// Opens a blob.
    31 = OpenBlob { id: BlobId, flags: OpenFlags } => Opened
        : opens administrators own plain special;
    /// Reads data from a place on, about so many bytes, to notice what the device lost.
    32 = Scrub { slot: u64, page: u32, bytes_max: u64, only_reads: bool } => ScrubStep
        : looks administrators again plain performed;
    /// Opens again what the session had open in a server that has ended, under the number that it
    /// had there. Only while a session resumes, as the three behind it.
    33 = Reopen { file: u64, id: BlobId, flags: OpenFlags, kind: FileKind, token: u64 } => ()
        : changes all own restores special;
    /// The session has everything again. Answered when other sessions may change something, too.
    34 = EndResuming {} => ()
        : changes all own restores special;
    /// The server's sessions, and which of its pollers work.
    35 = Sessions {} => ServerState
        : looks administrators again plain special;
    /// Moves a session to another poller.
    36 = MoveSession { number: u64, poller: u32 } => ()
        : looks administrators again plain special;
    /// Opens a file that is new, or truncated, writes its content, and then does as fsync.
    37 = CreateAndSync<'a> { place: Place<'a>, flags: OpenFlags, mode: u32, content: &'a [u8] } at place => Opened
        : opens all own plain special;
    /// A message of a slot of this session waits for no lock any more. Its own reply says whether
    /// it has the lock.
    38 = Withdraw { slot: u32, message: u64 } => ()
        : looks all again plain special;
    /// Gives the volume another label.
    39 = SetLabel<'a> { label: &'a [u8] } => ()
        : changes administrators again plain performed;
}

calls! { FileCall FILE_ROWS FILE_CALLS SPECIAL_FILE_CALLS performed_file_calls:
    /// Attributes.
    101 = FileStat {} => adit_fs::Stat
        : looks all again plain performed;
    /// Sets the size.
    102 = SetSize { size_bytes: u64 } => ()
        : as_opened all again plain performed;
    /// fallocate.
    103 = Allocate { flags: AllocateFlags, offset: u64, len_bytes: u64 } => ()
        : as_opened all again plain performed;
    /// flock.
    104 = Flock { operation: FlockOperation } => ()
        : as_opened all again reclaims special;
    /// Locks a range of bytes.
    105 = LockRange { lock: RangeLock, wait: bool } => ()
        : as_opened all again reclaims special;
    /// Unlocks a range of bytes.
    106 = UnlockRange { owner: LockOwner, offset: u64, len_bytes: u64 } => ()
        : as_opened all again held special;
    /// A conflicting lock.
    107 = TestLock { lock: RangeLock } => Option<RangeLock>
        : looks all again plain special;
    /// Releases all locks of a POSIX owner.
    108 = ReleaseLocks { owner_id: u64 } => ()
        : as_opened all again held special;
    /// Sets the permission bits.
    109 = SetFileMode { mode: u32 } => ()
        : changes all again plain performed;
    /// Sets owner and group.
    110 = SetFileOwner { uid: Option<u32>, gid: Option<u32> } => ()
        : changes all again plain performed;
    /// Sets the times of last access and last change.
    111 = SetFileTimes { accessed: SetTime, modified: SetTime } => ()
        : changes all again plain performed;
    /// The value of an extended attribute.
    112 = GetFileXattr<'a> { name: &'a [u8] } => Vec<u8>
        : looks all again plain performed;
    /// Sets an extended attribute.
    113 = SetFileXattr<'a> { name: &'a [u8], value: &'a [u8], mode: XattrMode } => ()
        : changes all nothing plain performed;
    /// Removes an extended attribute.
    114 = RemoveFileXattr<'a> { name: &'a [u8] } => ()
        : changes all nothing plain performed;
    /// Names of the extended attributes.
    115 = ListFileXattrs {} => Vec<Vec<u8>>
        : looks all again plain performed;
    /// Position of the next data.
    116 = NextData { offset: u64 } => u64
        : looks all again plain performed;
    /// Position of the next hole.
    117 = NextHole { offset: u64 } => u64
        : looks all again plain performed;
    /// Starts to write dirty data to the device.
    118 = StartWriteBack {} => ()
        : as_opened all again plain performed;
    /// Entries of the open directory behind a cookie, in so many bytes of names.
    119 = ReadDirectory { cookie: u64, names_bytes: u32 } => Vec<DirEntry>
        : looks all again plain performed;
    /// Writes ranges, all or none.
    120 = WriteAtomic<'a> { ranges: Vec<(u64, &'a [u8])>, sync: bool } => ()
        : as_opened all again plain performed;
    /// Copies a range to another open file of the session.
    121 = CopyRange { offset: u64, to: u64, to_offset: u64, len_bytes: u64 } => u64
        : as_opened all again plain special;
    /// Closes the file.
    122 = Close {} => ()
        : as_opened all again plain special;
    /// Was this append of the last server's done? If not, nothing of it is left. Only while a
    /// session resumes in the time of grace.
    124 = SettleAppend { offset: u64, len_bytes: u64 } => bool
        : as_opened all again restores special;
    /// The memory of the file's shared mappings has this range, and the descriptor holds it.
    125 = Map { offset: u64, len_bytes: u64 } => ()
        : as_opened all again reclaims special;
    /// Writes the stores to shared mappings to the file.
    126 = FlushMapped {} => ()
        : as_opened all again plain performed;
    /// The descriptor holds the memory no more.
    127 = Unmap {} => ()
        : as_opened all again held special;
    /// The file gets a tail, to which the session appends without messages.
    128 = BeginTail {} => ()
        : changes all again plain special;
    /// The token with which *this* session opens the file again in the next server. It may have the
    /// file from another user's.
    129 = Renew {} => u64
        : looks all again plain special;
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
