//! The identity of a device's storage, as far as the host reports one: neither its name nor its
//! content.
//!
//! A volume's bytes can be copied, its image moved, linked, or reached through a loop device. A
//! reference to *this* storage from outside (the mapping of a killed process) names its identity.

/// The storage behind a device. Two devices with the same identity share their bytes; two with
/// different ones may still do so (a device mapper, another mount of a network file system).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Identity {
    /// The kind of storage; it decides the meaning of the other numbers.
    pub kind: IdentityKind,
    /// The file's file system (`st_dev`), or the block device's number.
    pub device: u64,
    /// The file's inode, or the block device's `diskseq`, which is new each time a disk or loop
    /// device is attached.
    pub number: u64,
    /// Byte offset within that file: a loop device may begin in its middle.
    pub offset_bytes: u64,
}

/// The kind of an [`Identity`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u64)]
pub enum IdentityKind {
    /// Nothing is known: devices in memory.
    #[default]
    Unknown = 0,
    /// A regular file, reached by its name or through a loop device.
    File = 1,
    /// A block device of the kernel.
    Block = 2,
    /// Made up for a test.
    Test = 3,
}

impl Identity {
    /// The identity as numbers, for a header in shared memory.
    pub fn numbers(&self) -> [u64; 4] {
        [
            self.kind as u64,
            self.device,
            self.number,
            self.offset_bytes,
        ]
    }

    /// The identity of stored numbers; None: of an unknown kind.
    pub fn of_numbers(numbers: [u64; 4]) -> Option<Identity> {
        let kind = match numbers[0] {
            0 => IdentityKind::Unknown,
            1 => IdentityKind::File,
            2 => IdentityKind::Block,
            3 => IdentityKind::Test,
            _ => return None,
        };
        Some(Identity {
            kind,
            device: numbers[1],
            number: numbers[2],
            offset_bytes: numbers[3],
        })
    }

    /// True if the two certainly share no byte: two files of one file system.
    pub fn is_certainly_not(&self, other: &Identity) -> bool {
        let files = self.kind == IdentityKind::File && other.kind == IdentityKind::File;
        files && self.device == other.device && self.number != other.number
            || self.kind == IdentityKind::Test && other.kind == IdentityKind::Test && self != other
    }
}
