//! A message of a slot: what is asked for, in eight words of 64 bits.
//!
//! | word | content |
//! |---|---|
//! | 0 | bits 0–7 the operation, 8–15 its flags, 16–31 the number of a call, 32–63 bytes in the area |
//! | 1 | the file's number, or 0 |
//! | 2 | offset in the file |
//! | 3 | offset in the arena |
//! | 4–7 | 0 |
//!
//! Invariant: decoding is total. Words that say nothing give None, and the server ends the session.

use bitflags::bitflags;

/// Words of a message.
pub const WORDS: usize = 8;

bitflags! {
    /// How a [`Message::Write`] is done.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WriteFlags: u8 {
        /// At the end of the file; the reply's value is the offset.
        const APPEND = 1;
        /// Then as fdatasync.
        const SYNC_DATA = 2;
        /// Then as fsync.
        const SYNC_ALL = 4;
        /// A piece of a larger write, which the next message of this slot goes on with. The server
        /// keeps it; nothing is written before the last piece, which has the flags and the offset
        /// of the whole. The offset here is the number of bytes of the whole.
        const MORE = 8;
    }
}

/// What is asked for. Data lies in the slot's area, from its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Nothing: measures the way.
    Nothing,
    /// Reads at most so many bytes into the area; the value is the number of bytes.
    Read {
        /// Number of the file.
        file: u64,
        /// Bytes.
        len: u32,
        /// Offset.
        offset: u64,
        /// The reply may say where the page is in the cache.
        hint: bool,
    },
    /// Writes the bytes in the area.
    Write {
        /// Number of the file.
        file: u64,
        /// Bytes.
        len: u32,
        /// Offset; without a meaning for an append.
        offset: u64,
        /// How.
        flags: WriteFlags,
    },
    /// Reads at most so many bytes into the arena; the value is the number of bytes.
    ReadArena {
        /// Number of the file.
        file: u64,
        /// Bytes.
        len: u32,
        /// Offset in the file.
        offset: u64,
        /// Offset in the arena.
        at: u64,
    },
    /// Writes bytes of the arena.
    WriteArena {
        /// Number of the file.
        file: u64,
        /// Bytes.
        len: u32,
        /// Offset in the file; without a meaning for an append.
        offset: u64,
        /// How; never [`MORE`](WriteFlags::MORE).
        flags: WriteFlags,
        /// Offset in the arena.
        at: u64,
    },
    /// As fdatasync, or as fsync.
    Sync {
        /// Number of the file.
        file: u64,
        /// As fsync?
        all: bool,
    },
    /// The value is the size of the file in bytes.
    Size {
        /// Number of the file.
        file: u64,
    },
    /// A call about the volume: in the area its user, if another one than the session's, and its
    /// arguments. The reply is in the area.
    VolumeCall {
        /// Which one.
        number: u16,
        /// Bytes in the area.
        len: u32,
    },
    /// A call about an open file.
    FileCall {
        /// Which one.
        number: u16,
        /// Number of the file.
        file: u64,
        /// Bytes in the area.
        len: u32,
    },
}

const NOTHING: u8 = 1;
const READ: u8 = 2;
const WRITE: u8 = 3;
const SYNC: u8 = 4;
const SIZE: u8 = 5;
const VOLUME_CALL: u8 = 6;
const FILE_CALL: u8 = 7;
const READ_ARENA: u8 = 8;
const WRITE_ARENA: u8 = 9;

impl Message {
    /// As words.
    pub fn to_words(self) -> [u64; WORDS] {
        let mut arena = 0;
        let (operation, flags, number, len, file, offset) = match self {
            Message::Nothing => (NOTHING, 0, 0, 0, 0, 0),
            Message::Read {
                file,
                len,
                offset,
                hint,
            } => (READ, u8::from(hint), 0, len, file, offset),
            Message::Write {
                file,
                len,
                offset,
                flags,
            } => (WRITE, flags.bits(), 0, len, file, offset),
            Message::ReadArena {
                file,
                len,
                offset,
                at,
            } => {
                arena = at;
                (READ_ARENA, 0, 0, len, file, offset)
            }
            Message::WriteArena {
                file,
                len,
                offset,
                flags,
                at,
            } => {
                arena = at;
                (WRITE_ARENA, flags.bits(), 0, len, file, offset)
            }
            Message::Sync { file, all } => (SYNC, u8::from(all), 0, 0, file, 0),
            Message::Size { file } => (SIZE, 0, 0, 0, file, 0),
            Message::VolumeCall { number, len } => (VOLUME_CALL, 0, number, len, 0, 0),
            Message::FileCall { number, file, len } => (FILE_CALL, 0, number, len, file, 0),
        };
        let first = u64::from(operation)
            | u64::from(flags) << 8
            | u64::from(number) << 16
            | u64::from(len) << 32;
        [first, file, offset, arena, 0, 0, 0, 0]
    }

    /// Out of words; None if they are none of a message.
    pub fn from_words(words: [u64; WORDS]) -> Option<Message> {
        let [first, file, offset, at, ..] = words;
        let [operation, flags, low, high, rest @ ..] = first.to_le_bytes();
        let (number, len) = (u16::from_le_bytes([low, high]), u32::from_le_bytes(rest));
        let message = match operation {
            NOTHING => Message::Nothing,
            READ => Message::Read {
                file,
                len,
                offset,
                hint: flags == 1,
            },
            WRITE => Message::Write {
                file,
                len,
                offset,
                flags: WriteFlags::from_bits(flags)?,
            },
            READ_ARENA => Message::ReadArena {
                file,
                len,
                offset,
                at,
            },
            WRITE_ARENA => Message::WriteArena {
                file,
                len,
                offset,
                flags: WriteFlags::from_bits(flags).filter(|of| !of.contains(WriteFlags::MORE))?,
                at,
            },
            SYNC => Message::Sync {
                file,
                all: flags == 1,
            },
            SIZE => Message::Size { file },
            VOLUME_CALL => Message::VolumeCall { number, len },
            FILE_CALL => Message::FileCall { number, file, len },
            _ => return None,
        };
        (message.to_words() == words).then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_what_its_words_say_and_other_words_are_none() {
        let all = [
            Message::Nothing,
            Message::Read {
                file: 7,
                len: u32::MAX,
                offset: u64::MAX,
                hint: false,
            },
            Message::Read {
                file: 7,
                len: 1,
                offset: 0,
                hint: true,
            },
            Message::Write {
                file: u64::MAX,
                len: 1,
                offset: 2,
                flags: WriteFlags::APPEND | WriteFlags::SYNC_DATA,
            },
            Message::ReadArena {
                file: 3,
                len: 4096,
                offset: 5,
                at: u64::MAX,
            },
            Message::WriteArena {
                file: 3,
                len: 4096,
                offset: 5,
                flags: WriteFlags::SYNC_ALL,
                at: 4096,
            },
            Message::Sync { file: 1, all: true },
            Message::Sync {
                file: 1,
                all: false,
            },
            Message::Size { file: 9 },
            Message::VolumeCall {
                number: u16::MAX,
                len: 3,
            },
            Message::FileCall {
                number: 101,
                file: 4,
                len: 0,
            },
        ];
        for message in all {
            let words = message.to_words();
            assert_eq!(Message::from_words(words), Some(message));
            for word in 0..WORDS {
                for bit in 0..64 {
                    let mut other = words;
                    other[word] ^= 1 << bit;
                    // Another message, or none: never this one.
                    assert_ne!(Message::from_words(other), Some(message), "{word}:{bit}");
                }
            }
        }
        assert_eq!(Message::from_words([0; WORDS]), None);
        assert_eq!(Message::from_words([u64::MAX; WORDS]), None);
    }
}
