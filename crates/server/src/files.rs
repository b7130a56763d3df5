//! The open files of a session, by number.
//!
//! A number is a place in the table and how often that place was used, counted from a random number
//! on: so that of a closed file is none of a later one, also of the next server. Sessions of forked
//! processes have files in common, as descriptors of one description. Invariant: a file that is in
//! no table any more is closed by the one that took it out of the last, once.

use adit_base::steps;
use adit_fs::{BlobId, OpenFile};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// Open files of a session at most.
pub(crate) const FILES_MAX: usize = 4096;
/// Pairs of a file and a POSIX owner of locks on it, of a session at most.
const OWNERS_MAX: usize = 65_536;

/// A session's open files.
#[derive(Debug)]
pub(crate) struct Files {
    /// The session's number.
    session: u64,
    /// Places count their uses from here on.
    first_use: u32,
    places: Vec<FileEntry>,
    free: Vec<u32>,
    lock_owners: LockOwners,
    /// No more files: the session has ended.
    ended: bool,
}

#[derive(Debug)]
struct FileEntry {
    uses: u32,
    file: Option<Tabled>,
}

/// An open file, and whether other tables have it as well: those of sessions, or the process that
/// serves its own volume.
#[derive(Debug)]
pub struct Tabled {
    open: Arc<OpenFile>,
    /// One for each table; none: there is only this one.
    tables: OnceLock<Arc<()>>,
}

impl From<Arc<OpenFile>> for Tabled {
    fn from(open: Arc<OpenFile>) -> Tabled {
        let tables = OnceLock::new();
        Tabled { open, tables }
    }
}

impl Deref for Tabled {
    type Target = OpenFile;

    #[inline]
    fn deref(&self) -> &OpenFile {
        &self.open
    }
}

impl Tabled {
    /// The file.
    #[inline]
    pub fn open(&self) -> &Arc<OpenFile> {
        &self.open
    }

    /// For another table.
    pub(crate) fn share(&self) -> Tabled {
        let tables = self.tables.get_or_init(Arc::default).clone();
        Tabled {
            open: self.open.clone(),
            tables: tables.into(),
        }
    }

    /// It is in no table any more, unless others have it: then None.
    pub fn into_last(self) -> Option<Arc<OpenFile>> {
        match self.tables.into_inner() {
            Some(tables) => Arc::into_inner(tables).map(|()| self.open),
            None => Some(self.open),
        }
    }
}

/// By file, the POSIX owners that locked ranges of it, as the file system knows them. They outlive a
/// descriptor and go with the session.
#[derive(Debug, Default)]
pub(crate) struct LockOwners {
    of_file: HashMap<BlobId, HashSet<u64>>,
    /// Of all files.
    number: usize,
}

impl LockOwners {
    fn contains(&self, id: BlobId, owner: u64) -> bool {
        (self.of_file.get(&id)).is_some_and(|owners| owners.contains(&owner))
    }

    fn add(&mut self, id: BlobId, owner: u64) {
        let is_new = self.of_file.entry(id).or_default().insert(owner);
        self.number += usize::from(is_new);
    }

    /// A file's set is taken whole, unless there is one already.
    fn add_all(&mut self, id: BlobId, owners: HashSet<u64>) {
        match self.of_file.entry(id) {
            Entry::Vacant(place) => {
                self.number += owners.len();
                place.insert(owners);
            }
            Entry::Occupied(_) => {
                steps::note(owners.len());
                owners.into_iter().for_each(|owner| self.add(id, owner));
            }
        }
    }

    fn remove(&mut self, id: BlobId, owner: u64) {
        let Some(owners) = self.of_file.get_mut(&id) else {
            return;
        };
        self.number -= usize::from(owners.remove(&owner));
        if owners.is_empty() {
            self.of_file.remove(&id);
        }
    }

    fn forget(&mut self, id: BlobId) {
        self.number -= self.of_file.remove(&id).map_or(0, |owners| owners.len());
    }

    /// By file.
    pub(crate) fn into_files(self) -> impl Iterator<Item = (BlobId, HashSet<u64>)> {
        self.of_file.into_iter()
    }
}

/// What a session leaves behind.
#[derive(Debug)]
pub(crate) struct Left {
    /// Those that no other session has.
    pub(crate) files: Vec<Arc<OpenFile>>,
    pub(crate) lock_owners: LockOwners,
}

impl Files {
    pub(crate) fn new(session: u64, first_use: u32) -> Files {
        Files {
            session,
            first_use,
            places: Vec::new(),
            free: Vec::new(),
            lock_owners: LockOwners::default(),
            ended: false,
        }
    }

    fn add_place(&mut self) -> u32 {
        self.places.push(FileEntry {
            uses: self.first_use,
            file: None,
        });
        self.places.len() as u32 - 1
    }

    /// Adds a file; gives it back if there are too many, or if the session has ended.
    pub(crate) fn add(&mut self, open: Arc<OpenFile>) -> Result<u64, Arc<OpenFile>> {
        let full = self.free.is_empty() && self.places.len() == FILES_MAX;
        if self.ended || full {
            return Err(open);
        }
        let index = self.free.pop();
        let index = index.unwrap_or_else(|| self.add_place());
        let place = &mut self.places[index as usize];
        assert!(place.file.is_none(), "a free place is empty");
        place.uses = place.uses.wrapping_add(1);
        open.set_writer(self.session);
        place.file = Some(open.into());
        Ok(u64::from(place.uses) << 32 | u64::from(index))
    }

    /// Puts a file where the last server, or another session, had it. Gives it back if there can't be
    /// such a place, or it is taken.
    pub(crate) fn put(&mut self, number: u64, open: Tabled) -> Result<(), Tabled> {
        let (index, uses) = (number as u32, (number >> 32) as u32);
        if self.ended || index as usize >= FILES_MAX {
            return Err(open);
        }
        while self.places.len() <= index as usize {
            let place = self.add_place();
            self.free.push(place);
        }
        let place = &mut self.places[index as usize];
        if place.file.is_some() {
            return Err(open);
        }
        open.open.set_writer(self.session);
        (place.uses, place.file) = (uses, Some(open));
        steps::note(self.free.len());
        self.free.retain(|free| *free != index);
        Ok(())
    }

    fn place(&mut self, number: u64) -> Option<(u32, &mut FileEntry)> {
        let (index, uses) = (number as u32, (number >> 32) as u32);
        let place = self.places.get_mut(index as usize)?;
        (place.uses == uses && place.file.is_some()).then_some((index, place))
    }

    /// A file by its number.
    pub(crate) fn get(&mut self, number: u64) -> Option<&Arc<OpenFile>> {
        let (_, place) = self.place(number)?;
        place.file.as_ref().map(|of| &of.open)
    }

    /// All of them, for another session. None: the session has ended.
    pub(crate) fn share(&self) -> Option<Vec<(u64, Tabled)>> {
        steps::note(self.places.len());
        let places = self.places.iter().enumerate();
        let shared = places.filter_map(|(index, place)| {
            let number = u64::from(place.uses) << 32 | index as u64;
            place.file.as_ref().map(|file| (number, file.share()))
        });
        (!self.ended).then(|| shared.collect())
    }

    /// An owner locks ranges of a file. False: there are too many already.
    pub(crate) fn note_lock_owner(&mut self, id: BlobId, owner: u64) -> bool {
        if self.lock_owners.contains(id, owner) {
            return true;
        }
        let has_room = self.lock_owners.number < OWNERS_MAX && !self.ended;
        if has_room {
            self.lock_owners.add(id, owner);
        }
        has_room
    }

    /// Is it an owner of this session's?
    pub(crate) fn is_lock_owner(&self, id: BlobId, owner: u64) -> bool {
        self.lock_owners.contains(id, owner)
    }

    /// All locks of the owner on it are gone.
    pub(crate) fn forget_lock_owner(&mut self, id: BlobId, owner: u64) {
        self.lock_owners.remove(id, owner);
    }

    /// Nobody has the file open any more, so there is no lock on it.
    pub(crate) fn forget_locks(&mut self, id: BlobId) {
        self.lock_owners.forget(id);
    }

    /// Has the owners of another session, too. Gives them back if this one has ended.
    pub(crate) fn adopt(&mut self, others: LockOwners) -> LockOwners {
        if self.ended {
            return others;
        }
        steps::note(others.of_file.len());
        for (id, owners) in others.into_files() {
            self.lock_owners.add_all(id, owners);
        }
        LockOwners::default()
    }

    /// Has it locked ranges for POSIX owners?
    pub(crate) fn has_lock_owners(&self) -> bool {
        self.lock_owners.number > 0
    }

    /// Takes a file out.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Tabled> {
        let (index, place) = self.place(number)?;
        let file = place.file.take();
        self.free.push(index);
        file
    }

    /// The session has ended: takes all of them, and takes no more.
    pub(crate) fn end(&mut self) -> Left {
        self.ended = true;
        steps::note(self.places.len());
        self.free.clear();
        let places = self.places.drain(..);
        Left {
            files: places.filter_map(|place| place.file?.into_last()).collect(),
            lock_owners: std::mem::take(&mut self.lock_owners),
        }
    }

    /// Is an inode with this blob open here?
    pub(crate) fn has_open(&self, id: BlobId) -> bool {
        self.each().any(|file| file.open.blob_id() == id)
    }

    /// Number of files whose mapped memory it holds.
    pub(crate) fn mapped(&self) -> usize {
        self.each().filter(|file| file.open.maps()).count()
    }

    /// Number of files with a tail.
    pub(crate) fn tails(&self) -> usize {
        let with_tail = |file: &&Tabled| file.open.tail().is_some();
        self.each().filter(with_tail).count()
    }

    fn each(&self) -> impl Iterator<Item = &Tabled> {
        steps::note(self.places.len());
        self.places.iter().filter_map(|place| place.file.as_ref())
    }

    /// Has another session this open file, too?
    pub(crate) fn is_shared(&mut self, number: u64) -> bool {
        let file = self
            .place(number)
            .and_then(|(_, place)| place.file.as_ref());
        let tables = file.and_then(|file| file.tables.get());
        tables.is_some_and(|tables| Arc::strong_count(tables) > 1)
    }

    /// Number of open files.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
