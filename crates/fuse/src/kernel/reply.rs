//! The body of a reply.

use adit_fs::{FileKind, Stat, StatFs};
use std::time::Duration;

/// How the kernel treats a file that it has opened.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Opened {
    /// What it has cached of the file goes.
    Afresh = 0,
    /// Each read and write is a request.
    Uncached = 1 << 0,
    /// The pages that it has of the file stay true.
    KeepCache = 1 << 1,
}

/// The body of a reply, in memory that the next reply uses again.
#[derive(Default)]
pub(crate) struct Body {
    memory: Vec<u8>,
    len: usize,
}

impl Body {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Space of that length as the whole body; what is in it is undefined, but nobody's secret: an
    /// earlier reply on this mount.
    pub(crate) fn space(&mut self, len: usize) -> &mut [u8] {
        if self.memory.len() < len {
            self.memory.resize(len, 0);
        }
        self.len = len;
        &mut self.memory[..len]
    }

    /// Cuts it.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let (begin, end) = (self.len, self.len + bytes.len());
        self.space(end)[begin..].copy_from_slice(bytes);
    }

    pub(crate) fn u32s(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|it| self.put(&it.to_ne_bytes()));
    }

    pub(crate) fn u64s(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|it| self.put(&it.to_ne_bytes()));
    }

    /// The inode that the kernel knows as `node`, and how long the kernel believes that.
    pub(crate) fn entry(&mut self, node: u64, stat: &Stat, valid: Duration) {
        let (seconds, nanoseconds) = (valid.as_secs(), valid.subsec_nanos());
        self.u64s(&[node, stat.generation.into(), seconds, seconds]);
        self.u32s(&[nanoseconds, nanoseconds]);
        self.stat(node, stat);
    }

    /// The attributes of an inode.
    pub(crate) fn attributes(&mut self, node: u64, stat: &Stat, valid: Duration) {
        self.u64s(&[valid.as_secs()]);
        self.u32s(&[valid.subsec_nanos(), 0]);
        self.stat(node, stat);
    }

    fn stat(&mut self, node: u64, stat: &Stat) {
        let times = [stat.accessed, stat.modified, stat.changed];
        self.u64s(&[node, stat.size_bytes, stat.allocated_bytes / 512]);
        self.u64s(&times.map(|time| time.seconds as u64));
        self.u32s(&times.map(|time| time.nanoseconds));
        // Device numbers of Linux have 32 bits; both sides encode them alike.
        let (device, flags) = (stat.rdev as u32, 0);
        self.u32s(&[stat.mode, stat.links, stat.uid, stat.gid]);
        self.u32s(&[device, stat.io_bytes, flags]);
    }

    pub(crate) fn opened(&mut self, handle: u64, how: Opened) {
        self.u64s(&[handle]);
        self.u32s(&[how as u32, 0]);
    }

    /// A number of bytes: written, copied, or the length of an attribute.
    pub(crate) fn count(&mut self, bytes: u32) {
        self.u32s(&[bytes, 0]);
    }

    pub(crate) fn space_of_volume(&mut self, space: &StatFs) {
        let block = space.block_bytes;
        let blocks = |bytes: u64| bytes / u64::from(block);
        self.u64s(&[blocks(space.total_bytes)]);
        self.u64s(&[blocks(space.free_bytes), blocks(space.writable_bytes())]);
        self.u64s(&[space.inodes + space.free_inodes, space.free_inodes]);
        self.u32s(&[block, space.name_bytes_max, block]);
        self.u32s(&[0; 7]);
    }

    /// An entry of a directory. False, and nothing is changed, if the body would be longer than
    /// `limit`.
    pub(crate) fn directory_entry(
        &mut self,
        limit: usize,
        node: u64,
        cookie: u64,
        kind: FileKind,
        name: &[u8],
    ) -> bool {
        let padded = name.len().next_multiple_of(8);
        if self.len + 24 + padded > limit {
            return false;
        }
        self.u64s(&[node, cookie]);
        let type_number = kind.mode_bits() >> 12; // as `d_type` has it
        self.u32s(&[name.len() as u32, type_number]);
        self.put(name);
        self.put(&[0; 8][..padded - name.len()]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_lengths_of_linux() {
        let stat = Stat::default();
        let len = |write: &dyn Fn(&mut Body)| {
            let mut body = Body::default();
            write(&mut body);
            body.bytes().len()
        };
        assert_eq!(len(&|body| body.entry(1, &stat, Duration::ZERO)), 128);
        assert_eq!(len(&|body| body.attributes(1, &stat, Duration::ZERO)), 104);
        assert_eq!(len(&|body| body.opened(1, Opened::Uncached)), 16);
        let entry = |name: &[u8], limit| {
            let name = name.to_vec();
            len(&move |body| {
                let fits = body.directory_entry(limit, 1, 1, FileKind::File, &name);
                assert_eq!(fits, limit >= 24 + name.len().next_multiple_of(8));
            })
        };
        assert_eq!((entry(b"12345678", 32), entry(b"123456789", 40)), (32, 40));
        assert_eq!((entry(b"12345678", 31), entry(b"123456789", 39)), (0, 0));
    }
}
