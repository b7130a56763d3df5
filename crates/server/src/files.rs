//! The open files of a session, by number.
//!
//! A number is a place in the table and how often that place was used, so the number of a closed
//! file is none of a later one. Invariant: a file that is in no table any more is closed by the one
//! that took it out, once.

use adit_fs::OpenFile;
use std::sync::Arc;

/// Open files of a session at most.
pub(crate) const FILES_MAX: usize = 4096;
/// POSIX owners of locks on a file that a session is remembered for.
const OWNERS_MAX: usize = 64;

/// A session's open files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    places: Vec<Place>,
    free: Vec<u32>,
    /// No more files: the session has ended.
    ended: bool,
}

#[derive(Debug, Default)]
struct Place {
    uses: u32,
    file: Option<SessionFile>,
}

/// An open file of a session.
#[derive(Clone, Debug)]
pub(crate) struct SessionFile {
    pub(crate) open: Arc<OpenFile>,
    /// POSIX owners that locked ranges of it, as the file system knows them: the locks go with the
    /// session.
    pub(crate) lock_owners: Vec<u64>,
}

impl Files {
    /// Adds a file; gives it back if there are too many, or if the session has ended.
    pub(crate) fn add(&mut self, open: Arc<OpenFile>) -> Result<u64, Arc<OpenFile>> {
        let full = self.free.is_empty() && self.places.len() == FILES_MAX;
        if self.ended || full {
            return Err(open);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        debug_assert!(place.file.is_none(), "a free place is empty");
        place.uses = place.uses.wrapping_add(1);
        place.file = Some(SessionFile {
            open,
            lock_owners: Vec::new(),
        });
        Ok(u64::from(place.uses) << 32 | u64::from(index))
    }

    fn place(&mut self, number: u64) -> Option<(u32, &mut Place)> {
        let (index, uses) = (number as u32, (number >> 32) as u32);
        let place = self.places.get_mut(index as usize)?;
        (place.uses == uses && place.file.is_some()).then_some((index, place))
    }

    /// A file by its number.
    pub(crate) fn get(&mut self, number: u64) -> Option<&Arc<OpenFile>> {
        let (_, place) = self.place(number)?;
        place.file.as_ref().map(|file| &file.open)
    }

    /// An owner locks ranges of it. False: it has too many already.
    pub(crate) fn note_lock_owner(&mut self, number: u64, owner: u64) -> bool {
        let Some(file) = self
            .place(number)
            .and_then(|(_, place)| place.file.as_mut())
        else {
            return true; // the lock is refused with EBADF
        };
        if file.lock_owners.contains(&owner) {
            return true;
        }
        let has_room = file.lock_owners.len() < OWNERS_MAX;
        if has_room {
            file.lock_owners.push(owner);
        }
        has_room
    }

    /// All locks of the owner on it are gone.
    pub(crate) fn forget_lock_owner(&mut self, number: u64, owner: u64) {
        if let Some(file) = self
            .place(number)
            .and_then(|(_, place)| place.file.as_mut())
        {
            file.lock_owners.retain(|of| *of != owner);
        }
    }

    /// Takes a file out, to be closed.
    pub(crate) fn remove(&mut self, number: u64) -> Option<SessionFile> {
        let (index, place) = self.place(number)?;
        let file = place.file.take();
        self.free.push(index);
        file
    }

    /// The session has ended: takes all of them, and takes no more.
    pub(crate) fn end(&mut self) -> Vec<SessionFile> {
        self.ended = true;
        self.free.clear();
        self.places
            .drain(..)
            .filter_map(|place| place.file)
            .collect()
    }

    /// Is an inode with this blob open here?
    pub(crate) fn has_open(&self, id: adit_fs::BlobId) -> bool {
        let mut files = self.places.iter().filter_map(|place| place.file.as_ref());
        files.any(|file| file.open.blob_id() == id)
    }

    /// Number of open files.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
