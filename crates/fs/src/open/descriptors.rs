//! The descriptors of a volume: from an [`OpenFile`] to its inode.

use super::file::OpenFile;
use super::inode::Inode;
use crate::types::OpenFlags;
use std::rc::Rc;

struct Descriptor {
    id: u64,
    inode: Rc<Inode>,
    flags: OpenFlags,
}

/// The descriptors of an open volume.
pub(crate) struct Descriptors {
    /// By index.
    open: Vec<Option<Descriptor>>,
    free: Vec<u32>,
    next_id: u64,
}

impl Descriptors {
    /// Ids begin at random, so a descriptor of another volume is not taken for one of this volume.
    pub(crate) fn new() -> Descriptors {
        Descriptors {
            open: Vec::new(),
            free: Vec::new(),
            next_id: adit_base::random::os_random_u128() as u64,
        }
    }

    pub(crate) fn add(&mut self, inode: Rc<Inode>, flags: OpenFlags) -> (u64, u32) {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let descriptor = Descriptor { id, inode, flags };
        match self.free.pop() {
            Some(index) => {
                let before = self.open[index as usize].replace(descriptor);
                assert!(before.is_none(), "the place is free");
                (id, index)
            }
            None => {
                self.open.push(Some(descriptor));
                (id, (self.open.len() - 1) as u32)
            }
        }
    }

    pub(crate) fn get(&self, file: &OpenFile) -> Option<&Rc<Inode>> {
        match self.open.get(file.index()) {
            Some(Some(descriptor)) if descriptor.id == file.id() => Some(&descriptor.inode),
            _ => None,
        }
    }

    pub(crate) fn take(&mut self, file: &OpenFile) -> Option<Rc<Inode>> {
        self.get(file)?;
        self.free.push(file.index() as u32);
        self.open[file.index()]
            .take()
            .map(|descriptor| descriptor.inode)
    }

    /// The open descriptors from an index on, with their indexes.
    pub(crate) fn from(
        &self,
        index: usize,
    ) -> impl Iterator<Item = (usize, &Rc<Inode>, OpenFlags)> {
        let all = self.open.iter().enumerate().skip(index);
        all.filter_map(|(index, open)| {
            let descriptor = open.as_ref()?;
            Some((index, &descriptor.inode, descriptor.flags))
        })
    }
}
