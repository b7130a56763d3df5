//! Every structure on the device, and nothing else: no IO, no policy.
//!
//! `docs/reference/volume-format.md` states the same layout in words; a test compares the two by
//! `offset_of!`. All integers are little-endian, so big-endian hosts are refused at compile time.
//! Bytes read from a device stay bytes until a `verify` function turns them into one of these
//! types.

mod blob_id;
pub mod geometry;
pub(crate) mod heal;
pub(crate) mod memo;
pub(crate) mod record;
pub(crate) mod superblock;

pub use blob_id::{BLOB_BYTES_MAX, BlobId};
pub use superblock::foreign_signature;

use adit_base::breakdown::{self, Layer};
use adit_base::checksum::crc32c;
use adit_base::clock::Timestamp;
use adit_base::{PAGE_BYTES, SECTOR_BYTES};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[cfg(target_endian = "big")]
compile_error!("the volume format is little-endian; big-endian hosts are not supported");

/// Bytes of a page, aligned as a frame is.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone)]
#[repr(C, align(8))]
pub struct Page(pub [u8; PAGE_BYTES]);

impl Page {
    /// A page of zeroes.
    pub const fn zeroed() -> Page {
        Page([0; PAGE_BYTES])
    }
}

/// First bytes of a superblock.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"AditVol1";
/// First bytes of a journal page.
pub const JOURNAL_MAGIC: u32 = 0x4a74_6441; // "AdtJ"
/// Version of the layout; a volume with a higher one is refused.
pub const FORMAT_VERSION: u32 = 1;
/// The checksum algorithm number of CRC32C (Castagnoli).
pub const ALGORITHM_CRC32C: u8 = 1;

/// Device page of the first superblock; the second follows it.
pub const SUPERBLOCK_PAGES: [u64; 2] = [0, 1];
/// Device page where the journal ring begins.
pub const JOURNAL_FIRST_PAGE: u64 = 2;
/// Pages of an allocation group, its map page included.
pub const GROUP_PAGES: u64 = (GROUP_MAP_WORDS * 64) as u64;
/// 64-bit words of each of the two bitmaps of a group map.
pub const GROUP_MAP_WORDS: usize = (PAGE_BYTES - 32) / 16;
/// Pages of an allocation group behind its map page that hold the checksums of its data, on a
/// volume that has them.
pub const CHECKSUM_PAGES: u64 = GROUP_PAGES / CHECKSUMS_PER_PAGE as u64;
/// Checksums of data in one page.
pub const CHECKSUMS_PER_PAGE: usize = (PAGE_BYTES - PAGE_HEADER_BYTES) / 4;
/// Slots of a slot page.
pub const SLOTS_PER_PAGE: u64 = (PAGE_BYTES / SECTOR_BYTES) as u64;

/// One of the two superblocks. The valid one with the higher sequence number counts; each change is
/// written to both, one after the other.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Debug)]
#[repr(C)]
pub struct Superblock {
    /// [`SUPERBLOCK_MAGIC`].
    pub magic: [u8; 8],
    /// CRC32C of the page with this field zero, seeded with volume id and page number.
    pub crc: u32,
    /// [`ALGORITHM_CRC32C`].
    pub algorithm: u32,
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// log2 of the page size.
    pub page_shift: u32,
    /// Random identity of the volume.
    pub volume_id: [u8; 16],
    /// Counts superblock writes; the page is `sequence % 2`.
    pub sequence: u64,
    /// Bumped at every open for writing; journal pages of other epochs are never replayed.
    pub epoch: u64,
    /// LSN of the first journal page that recovery has to replay.
    pub tail: u64,
    /// Pages of the device that the volume may use; the state page has the number that it does use.
    pub volume_pages: u64,
    /// Pages of the journal ring.
    pub journal_pages: u64,
    /// Preferred allocation unit in pages.
    pub cluster_pages: u32,
    /// Bit 0: the volume was closed clean. Bit 1: a takeover of dead processes' memory is
    /// incomplete.
    pub state: u32,
    /// Features that an implementation must know to open the volume.
    pub features_incompatible: u64,
    /// Features that an implementation must know to write to the volume.
    pub features_read_only: u64,
    /// Features that may be ignored.
    pub features_compatible: u64,
    /// Seconds since 1970 when the volume was made.
    pub created_seconds: i64,
    /// Key of the directories' name hash.
    pub hash_key: [u64; 2],
    /// Label, UTF-8, padded with zeroes.
    pub label: [u8; 64],
    /// Random, and new with each opening that takes nothing over. The memory that the opening
    /// leaves is sealed with it.
    pub opening: u64,
    /// Pages of checksums in which some may be missing, should the volume not be closed: zero
    /// behind the last; [`UNSETTLED_MORE`]: there are others.
    pub unsettled: [u64; UNSETTLED_MAX],
    /// The epoch to whose opening the other `memory` fields belong; another one than `epoch`: none
    /// of them means anything.
    pub memory_epoch: u64,
    /// Hash of the identity of the volume's storage, as in the name of a mapping.
    pub memory_image: u64,
    /// The kernel's id of the boot of the machine; zero: not known.
    pub memory_boot: [u8; 16],
    /// Bytes of `memory_directories`, with [`MEMORY_NOTHING`] where nothing survives the process;
    /// or [`MEMORY_UNNAMED`], [`MEMORY_UNUSED`].
    pub memory_bytes: u16,
    /// Directories of memory where the opening's unsynced data survives its process, or at least
    /// its claim lies: absolute paths, separated by zeroes. First its own directory, then those
    /// that it took over from.
    pub memory_directories: [u8; MEMORY_DIRECTORIES_BYTES],
    /// Zero; room for later features.
    pub reserved: [u8; 72],
}

/// Bytes of [`Superblock::memory_directories`].
pub const MEMORY_DIRECTORIES_BYTES: usize = 398;
/// [`Superblock::memory_bytes`], this bit: nothing survives.
pub const MEMORY_NOTHING: u16 = 0x8000;
/// [`Superblock::memory_bytes`]: the directories don't fit.
pub const MEMORY_UNNAMED: u16 = 0xffff;
/// [`Superblock::memory_bytes`]: the opening failed before it had accepted anything.
pub const MEMORY_UNUSED: u16 = 0xfffe;

/// Places that [`Superblock::unsettled`] has room for.
pub const UNSETTLED_MAX: usize = 64;
/// [`Superblock::unsettled`]: not all places found room.
pub const UNSETTLED_MORE: u64 = u64::MAX;

/// [`Superblock::features_read_only`]: every page of data has a checksum.
pub const FEATURE_DATA_CHECKSUMS: u64 = 1;

/// [`Superblock::state`]: nothing to replay.
pub const STATE_CLEAN: u32 = 1;
/// [`Superblock::state`]: the shared memory of processes that died in earlier epochs still counts.
pub const STATE_TAKING_OVER: u32 = 2;

/// Begins every page of the journal ring. A transaction is `transaction_pages` consecutive pages;
/// their payloads, joined, are a stream of records.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct JournalHeader {
    /// [`JOURNAL_MAGIC`].
    pub magic: u32,
    /// CRC32C of the page with this field zero, seeded with volume id and LSN.
    pub crc: u32,
    /// Volume id.
    pub volume_id: [u8; 16],
    /// Epoch in which the page was written.
    pub epoch: u64,
    /// Absolute number of this page; it lies at `lsn % journal_pages` in the ring.
    pub lsn: u64,
    /// Everything below this LSN was durable when the page was written.
    pub horizon: u64,
    /// LSN of the first page of the transaction.
    pub transaction_lsn: u64,
    /// Pages of the transaction.
    pub transaction_pages: u32,
    /// Payload bytes used in this page.
    pub payload_bytes: u16,
    /// [`ALGORITHM_CRC32C`].
    pub algorithm: u8,
    /// Zero.
    pub reserved: u8,
}

/// Bytes of records in a journal page.
pub const JOURNAL_PAYLOAD_BYTES: usize = PAGE_BYTES - size_of::<JournalHeader>();

/// Heads one redo record: bytes of one device page. Records do not align; they follow one another
/// in the joined payload.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct RecordHeader {
    /// Device page in the low 48 bits, the kind of the record in the next 8.
    pub page_and_kind: u64,
    /// Byte offset in the page.
    pub offset: u16,
    /// Bytes changed.
    pub len_bytes: u16,
    /// Zero.
    pub reserved: u32,
}

/// [`RecordHeader::page_and_kind`]: the data follows.
pub const RECORD_BYTES: u8 = 1;
/// [`RecordHeader::page_and_kind`]: the range becomes zero; no data follows.
pub const RECORD_ZERO: u8 = 2;

/// Begins every metadata page except slot pages.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PageHeader {
    /// CRC32C of the page with this field zero, seeded with volume id and page number.
    pub crc: u32,
    /// [`ALGORITHM_CRC32C`].
    pub algorithm: u8,
    /// A [`PageKind`] number.
    pub kind: u8,
    /// Height above the leaves, for tree nodes.
    pub level: u8,
    /// Zero.
    pub flags: u8,
    /// Slot address of the blob that the page belongs to; 0 for the volume.
    pub owner: u64,
    /// Entries.
    pub count: u16,
    /// Bytes used behind the header, for variable-length entries.
    pub used_bytes: u16,
    /// Zero.
    pub reserved: [u8; 12],
}

/// Bytes of a [`PageHeader`].
pub const PAGE_HEADER_BYTES: usize = 32;

/// The kind of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PageKind {
    /// Volume counters and roots.
    State = 1,
    /// The bitmaps of an allocation group.
    GroupMap = 2,
    /// Inner node of a tree.
    Inner = 3,
    /// Extents.
    ExtentLeaf = 4,
    /// Names of a directory.
    NameLeaf = 5,
    /// Eight slots, each with its own checksum. Never stored as a number.
    Slots = 6,
    /// Extended attributes of one blob.
    Xattrs = 7,
    /// A blob's data, when its bytes go through the journal. Has no header. Never stored.
    Data = 8,
    /// Checksums of the data of a part of a group.
    Checksums = 9,
}

impl PageKind {
    /// True if pages of this kind begin with a [`PageHeader`].
    pub const fn has_header(self) -> bool {
        PageKind::number_has_header(self as u8)
    }

    /// True if pages of the kind with this number begin with a [`PageHeader`].
    pub const fn number_has_header(kind: u8) -> bool {
        kind != PageKind::Slots as u8 && kind != PageKind::Data as u8
    }
}

/// The volume-state page: counters and roots that change with transactions.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct StatePage {
    /// Header of kind [`PageKind::State`].
    pub header: PageHeader,
    /// Free pages of the volume, uninitialized groups included.
    pub free_pages: u64,
    /// Live blobs.
    pub blobs: u64,
    /// Groups whose map page is valid; the others are free.
    pub groups_initialized: u32,
    /// Generation that the next blob gets.
    pub next_generation: u32,
    /// Groups of the volume.
    pub groups: u64,
    /// The blob that the layer above starts from: slot address (0: none).
    pub root: u64,
    /// Generation of the root blob.
    pub root_generation: u32,
    /// Generation of the orphan directory.
    pub orphans_generation: u32,
    /// The hidden directory of unlinked, still open inodes: slot address (0: none).
    pub orphans: u64,
    /// Where slots were last allocated.
    pub slot_cursor: u64,
    /// Where data was last allocated.
    pub data_cursor: u64,
    /// Pages of the volume. The superblock may promise more: it is written first when a volume
    /// grows.
    pub volume_pages: u64,
}

/// A group's map page. A page of the group is free when its bits are 0/0, used when 1/0, a slot
/// page without room when 1/1, a slot page with room when 0/1 (bitmap a / bitmap b).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone)]
#[repr(C)]
pub struct GroupMap {
    /// Header of kind [`PageKind::GroupMap`]; `owner` is the group's number.
    pub header: PageHeader,
    /// First bit of each page's state.
    pub a: [u64; GROUP_MAP_WORDS],
    /// Second bit of each page's state.
    pub b: [u64; GROUP_MAP_WORDS],
}

/// The checksums of the data in [`CHECKSUMS_PER_PAGE`] pages of a group. Page `i` of a group has
/// its checksum in page `1 + i / CHECKSUMS_PER_PAGE` of the group.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone)]
#[repr(C)]
pub struct ChecksumPage {
    /// Header of kind [`PageKind::Checksums`]; `owner` is the group's number.
    pub header: PageHeader,
    /// CRC32C of each page, seeded with volume id and page number, 0 taken for 1; 0: not known.
    pub sums: [u32; CHECKSUMS_PER_PAGE],
}

/// Bytes of a slot that hold its map or its content.
pub const SLOT_PAYLOAD_BYTES: usize = 304;
/// Extents that fit into a slot.
pub const SLOT_EXTENTS: usize = SLOT_PAYLOAD_BYTES / 16;

/// The kind of the blob that a slot describes, and that a directory entry names. 0 is a free slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum BlobKind {
    /// A blob without a name.
    Blob = 1,
    /// A regular file.
    #[default]
    File = 2,
    /// A directory.
    Directory = 3,
    /// A symbolic link.
    Symlink = 4,
    /// A named pipe.
    Fifo = 5,
    /// A socket.
    Socket = 6,
    /// A character device.
    CharDevice = 7,
    /// A block device.
    BlockDevice = 8,
}

impl BlobKind {
    /// The kind with this number.
    pub const fn from_u8(number: u8) -> Option<BlobKind> {
        Some(match number {
            1 => BlobKind::Blob,
            2 => BlobKind::File,
            3 => BlobKind::Directory,
            4 => BlobKind::Symlink,
            5 => BlobKind::Fifo,
            6 => BlobKind::Socket,
            7 => BlobKind::CharDevice,
            8 => BlobKind::BlockDevice,
            _ => return None,
        })
    }

    /// The kind in a mode: of a regular file if it has no `S_IFMT` bits.
    pub fn of_mode(mode: u32) -> Option<BlobKind> {
        match mode & libc::S_IFMT {
            0 => Some(BlobKind::File),
            bits => (BlobKind::File as u8..)
                .map_while(BlobKind::from_u8)
                .find(|kind| kind.mode_bits() == bits),
        }
    }

    /// The `S_IFMT` bits of the mode.
    pub const fn mode_bits(self) -> u32 {
        match self {
            BlobKind::Blob | BlobKind::File => libc::S_IFREG,
            BlobKind::Directory => libc::S_IFDIR,
            BlobKind::Symlink => libc::S_IFLNK,
            BlobKind::Fifo => libc::S_IFIFO,
            BlobKind::Socket => libc::S_IFSOCK,
            BlobKind::CharDevice => libc::S_IFCHR,
            BlobKind::BlockDevice => libc::S_IFBLK,
        }
    }
}

/// [`Slot::map_kind`]: the payload holds extents.
pub const MAP_EXTENTS: u8 = 0;
/// [`Slot::map_kind`]: the payload's first 8 bytes are the root page of a tree of extents.
pub const MAP_EXTENT_TREE: u8 = 1;
/// [`Slot::map_kind`]: the payload's first 8 bytes are the root page of a tree of names.
pub const MAP_NAME_TREE: u8 = 2;
/// [`Slot::map_kind`]: the payload holds the content itself.
pub const MAP_INLINE: u8 = 3;

/// One blob: 512 bytes, one sector, so it never tears.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub struct Slot {
    /// CRC32C of the sector with this field zero, seeded with volume id and slot address.
    pub crc: u32,
    /// [`ALGORITHM_CRC32C`].
    pub algorithm: u8,
    /// A [`BlobKind`] number; 0: free.
    pub kind: u8,
    /// One of the `MAP_` constants.
    pub map_kind: u8,
    /// Levels of inner nodes above the leaves of the tree.
    pub map_depth: u8,
    /// Distinguishes this blob from earlier ones in the same slot.
    pub generation: u32,
    /// Names of the inode.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes beyond this read as zero, regardless of the device's content.
    pub valid_size: u64,
    /// File type and permissions as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Attribute flags.
    pub flags: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Pages allocated to the blob, its tree included.
    pub allocated_pages: u64,
    /// Last access, seconds since 1970.
    pub atime: i64,
    /// Last change of the content.
    pub mtime: i64,
    /// Last change of the attributes.
    pub ctime: i64,
    /// Creation.
    pub btime: i64,
    /// Nanoseconds of `atime`.
    pub atime_ns: u32,
    /// Nanoseconds of `mtime`.
    pub mtime_ns: u32,
    /// Nanoseconds of `ctime`.
    pub ctime_ns: u32,
    /// Nanoseconds of `btime`.
    pub btime_ns: u32,
    /// Slot address of the parent, for directories.
    pub parent: u64,
    /// Page of the extended attributes; 0: none.
    pub xattr_page: u64,
    /// Extents or content bytes in the payload.
    pub map_count: u16,
    /// Zero.
    pub padding: [u8; 6],
    /// Extents, tree root or content.
    pub payload: [u8; SLOT_PAYLOAD_BYTES],
    /// Zero; room for encryption and snapshots.
    pub reserved: [u8; 72],
}

impl Slot {
    /// Sets the time of a change of attributes: later than before, even within a tick of the clock,
    /// so that each change of an inode's names or attributes changes its slot (fsync relies on
    /// that).
    pub fn touch_changed(&mut self, now: Timestamp) {
        let before = (self.ctime, self.ctime_ns);
        (self.ctime, self.ctime_ns) = (now.seconds, now.nanoseconds);
        if self.ctime == before.0 && self.ctime_ns <= before.1 {
            (self.ctime, self.ctime_ns) = match before.1 {
                ..999_999_999 => (before.0, before.1 + 1),
                _ => (before.0 + 1, 0),
            };
        }
        debug_assert_ne!((self.ctime, self.ctime_ns), before, "the slot changes");
    }

    /// Counts pages that the blob at `slot_address` got or, below 0, lost. A damaged slot may lose
    /// more than it had.
    pub(crate) fn count_pages(&mut self, slot_address: u64, added: i64) {
        let had = self.allocated_pages;
        self.allocated_pages = had.checked_add_signed(added).unwrap_or_else(|| {
            tracing::error!(
                "blob {slot_address} counted {had} pages and lost {}: run `adit check`",
                added.unsigned_abs()
            );
            0
        });
    }
}

/// 16 bytes: a run of pages of a blob in a run of pages of the device.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default, PartialEq, Eq,
)]
#[repr(C)]
pub struct RawExtent {
    /// First page of the blob.
    pub logical: u32,
    /// Flags in the low 8 bits, birth epoch (reserved, zero) above.
    pub flags: u32,
    /// Pages in the low 16 bits, first device page in the upper 48.
    pub pages_and_physical: u64,
}

/// [`RawExtent::flags`]: allocated but never written; reads as zero.
pub const EXTENT_UNWRITTEN: u32 = 1;
/// [`RawExtent::flags`]: shared with another blob (reserved).
pub const EXTENT_SHARED: u32 = 2;
/// Most pages of one extent.
pub const EXTENT_PAGES_MAX: u32 = u16::MAX as u32;

/// A leaf of a tree of extents: `header.count` extents in ascending order.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone)]
#[repr(C)]
pub struct ExtentLeaf {
    /// Header of kind [`PageKind::ExtentLeaf`].
    pub header: PageHeader,
    /// The extents.
    pub extents: [RawExtent; NODE_ENTRIES],
}

/// An entry of an inner node: the subtree `child` holds keys from `key` on.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct InnerEntry {
    /// Lowest key of the subtree (the first entry's key is taken as 0).
    pub key: u64,
    /// Device page of the child.
    pub child: u64,
}

/// Entries of an inner node, and extents of a leaf.
pub const NODE_ENTRIES: usize = (PAGE_BYTES - PAGE_HEADER_BYTES) / 16;

const _: () = {
    assert!(size_of::<Superblock>() == 1224);
    assert!(size_of::<Superblock>() <= PAGE_BYTES);
    assert!(size_of::<JournalHeader>() == 64);
    assert!(size_of::<RecordHeader>() == 16);
    assert!(size_of::<PageHeader>() == PAGE_HEADER_BYTES);
    assert!(size_of::<GroupMap>() == PAGE_BYTES);
    assert!(size_of::<Slot>() == SECTOR_BYTES);
    assert!(size_of::<RawExtent>() == 16);
    assert!(size_of::<InnerEntry>() == 16);
    assert!(size_of::<ExtentLeaf>() == PAGE_BYTES);
    assert!(size_of::<StatePage>() <= 512);
    assert!(size_of::<ChecksumPage>() == PAGE_BYTES);
    assert!(CHECKSUM_PAGES * CHECKSUMS_PER_PAGE as u64 == GROUP_PAGES);
};

/// The identity that every checksum of a volume covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeId(pub [u8; 16]);

impl VolumeId {
    /// Checksum of `bytes` at `address` (a page number, an LSN or a slot address) with the four
    /// bytes at `crc_offset` taken as zero.
    pub fn checksum(&self, address: u64, bytes: &[u8], crc_offset: usize) -> u32 {
        let _in = breakdown::enter(Layer::Checksum);
        // One short piece in front and one long one: each call of the checksum costs as much as 200
        // bytes.
        let mut front = [0; 40];
        front[..16].copy_from_slice(&self.0);
        front[16..24].copy_from_slice(&address.to_le_bytes());
        front[24..24 + crc_offset].copy_from_slice(&bytes[..crc_offset]);
        crc32c(
            crc32c(0, &front[..28 + crc_offset]),
            &bytes[crc_offset + 4..],
        )
    }

    /// Checksum of a page of data; never 0, which stands for "not known".
    pub fn data_checksum(&self, page: u64, bytes: &[u8]) -> u32 {
        let _in = breakdown::enter(Layer::Checksum);
        let mut front = [0; 24];
        front[..16].copy_from_slice(&self.0);
        front[16..].copy_from_slice(&page.to_le_bytes());
        crc32c(crc32c(0, &front), bytes).max(1)
    }
}
