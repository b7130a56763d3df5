//! The expected results of one task's operations: a small file system in memory that keeps its
//! history.
//!
//! It is written from the durability contract, not from the code: names are in a flat map from path
//! to inode, content is a vector of bytes and the edits that made it. Version `n` is the state
//! after the first `n` operations; a crash may leave an earlier one, and `oracle.rs` says which.

use crate::namespace::remove;
pub use crate::namespace::{Id, Inode, Kind, Namespace};
use crate::op::{Name, Numbered, Op, SLOTS, stamped};
use adit_fs::{AllocateFlags, OpenFlags, RenameFlags};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A change of a file's content.
#[derive(Clone, Debug)]
pub struct Edit {
    /// Size afterwards.
    pub size: u64,
    /// The changed ranges: offset and bytes.
    pub ranges: Vec<(u64, Rc<[u8]>)>,
    /// All or nothing.
    pub atomic: bool,
    /// The operation failed, so it may not be there at all.
    pub failed: bool,
}

/// A file's content through time.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// The durable content when the life began.
    pub base: Vec<u8>,
    /// The edits since.
    pub edits: Vec<Edit>,
    /// Number of durable ones.
    pub synced: usize,
    /// From this edit on it is unknown whether they happened, even after later syncs.
    pub uncertain: Option<usize>,
    /// (version, edits): from that version of the namespace on, this many edits are durable.
    pub replaced: Vec<(usize, usize)>,
    /// The content that reads see now.
    pub now: Vec<u8>,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
struct Handle {
    id: Id,
    flags: OpenFlags,
}

impl Handle {
    fn is(&self, flag: OpenFlags) -> bool {
        self.flags.contains(flag)
    }
}

/// The result of an operation, as far as the model checks it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Nothing but success.
    Done,
    /// This many bytes were copied.
    Copied(u64),
    /// An append began there.
    At(u64),
    /// These bytes were read.
    Bytes(Vec<u8>),
    /// It failed.
    Failed(adit_base::Errno),
}

/// Whether an operation should have succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// Yes.
    Success,
    /// No.
    Failure,
    /// Either is right.
    Either,
}

/// The history of a task.
#[derive(Clone)]
pub struct Model {
    task: usize,
    /// The namespace after each operation.
    pub versions: Vec<Rc<Namespace>>,
    /// Content of files by inode, also of those without a name.
    pub files: BTreeMap<Id, File>,
    /// No earlier version may be found after a crash.
    pub durable: usize,
    slots: [Option<Handle>; SLOTS],
    next_id: Id,
    /// The version that last concerned a name of an inode, and its attributes.
    named: BTreeMap<Id, usize>,
    attributed: BTreeMap<Id, usize>,
}

impl Model {
    /// A task that finds this.
    pub fn new(task: usize, names: Namespace, contents: BTreeMap<Id, Vec<u8>>) -> Model {
        let next_id = names.inodes.keys().max().map_or(1, |id| id + 1);
        let files = contents.into_iter().map(|(id, content)| {
            let file = File {
                now: content.clone(),
                base: content,
                ..File::default()
            };
            (id, file)
        });
        Model {
            task,
            versions: vec![Rc::new(names)],
            files: files.collect(),
            durable: 0,
            slots: [None; SLOTS],
            next_id,
            named: BTreeMap::new(),
            attributed: BTreeMap::new(),
        }
    }

    /// The latest version.
    pub fn latest(&self) -> &Namespace {
        self.versions.last().expect("there is a first version")
    }

    fn current(&self) -> usize {
        self.versions.len() - 1
    }

    /// The inode at a path, if its parents are directories.
    fn find(&self, path: &str) -> Option<Id> {
        self.latest().find(path)
    }

    fn kind(&self, id: Id) -> Kind {
        self.latest().kind(id)
    }

    /// The inode at a path, unless it is of this kind.
    fn find_but(&self, path: &str, kind: Kind) -> Option<Id> {
        self.find(path).filter(|id| self.kind(*id) != kind)
    }

    fn links(&self, id: Id) -> usize {
        self.latest()
            .names
            .values()
            .filter(|other| **other == id)
            .count()
    }

    fn file(&mut self, id: Id) -> &mut File {
        self.files.entry(id).or_default()
    }

    fn handle(&self, slot: usize) -> Option<Handle> {
        self.slots[slot]
    }

    /// The expected result of `op`. `answer`: its real result; None: it has none yet, but may have
    /// happened. Changes the model to the state after it.
    pub fn apply(&mut self, op: &Numbered, answer: Option<&Answer>) -> Expected {
        let failed = matches!(answer, Some(Answer::Failed(_)));
        let before = self.latest().clone();
        let mut after = before.clone();
        let version = self.current() + 1;
        let expected = self.change(op, answer, failed, version, &mut after);
        let expected = expected.unwrap_or(Expected::Failure);
        let namespace = if failed || after == before {
            self.versions[version - 1].clone()
        } else {
            Rc::new(after)
        };
        self.versions.push(namespace);
        if !failed && let Some(_answer) = answer {
            self.make_durable(&op.op);
        }
        expected
    }

    /// None: it should fail.
    fn change(
        &mut self,
        Numbered { number, op }: &Numbered,
        answer: Option<&Answer>,
        failed: bool,
        version: usize,
        after: &mut Namespace,
    ) -> Option<Expected> {
        use Expected::{Either, Failure, Success};
        let path = |name: &Name| name.path(self.task);
        let when = |holds: bool| if holds { Success } else { Failure };
        let failure = failed.then_some(answer).flatten();
        Some(match op {
            Op::Open { slot, name, flags } => {
                let (create, exclusive) = (OpenFlags::CREATE, OpenFlags::EXCLUSIVE);
                let path = path(name);
                let found = self.find(&path);
                let expected = match found {
                    Some(id) => {
                        when(self.kind(id) == Kind::File && !flags.contains(create | exclusive))
                    }
                    None => when(flags.contains(create) && self.latest().has_parent(&path)),
                };
                if failed || expected == Failure {
                    // Like the application, which closed the file in the slot before.
                    self.slots[*slot] = None;
                    return Some(expected);
                }
                let id = match found {
                    Some(id) => id,
                    None => self.make(path, Kind::File, version, after)?,
                };
                if found.is_some() && flags.contains(OpenFlags::TRUNCATE) {
                    self.edit(id, 0, Vec::new(), false);
                }
                self.slots[*slot] = Some(Handle { id, flags: *flags });
                expected
            }
            Op::Close { slot } => {
                let open = self.slots[*slot].take();
                when(open.is_some())
            }
            Op::Write { slot, offset, len } => {
                let handle = self.handle(*slot)?;
                let size = self.file(handle.id).now.len() as u64;
                let offset = match (handle.is(OpenFlags::APPEND), answer) {
                    (true, Some(Answer::At(at))) => *at,
                    (true, _) => size,
                    _ => *offset,
                };
                self.write(handle, *number, offset, *len, failure);
                Success
            }
            Op::Append { slot, len } => {
                let handle = self.handle(*slot)?;
                let size = self.file(handle.id).now.len() as u64;
                let at = match answer {
                    Some(Answer::At(at)) => *at,
                    _ => size,
                };
                let expected = match self.file(handle.id).uncertain {
                    None if at != size => Failure,
                    _ => Success,
                };
                self.write(handle, *number, at, *len, failure);
                expected
            }
            Op::Atomic {
                slot,
                ranges,
                durable,
            } => {
                let handle = self.handle(*slot)?;
                if handle.is(OpenFlags::APPEND) {
                    return None;
                }
                if failed {
                    // Bounds on holes are the store's own; then nothing may have changed. It may be
                    // there and not be durable.
                    if no_effect(answer)
                        && !(is_late(answer) && (*durable || handle.is(OpenFlags::DSYNC)))
                    {
                        return Some(Either);
                    }
                    let file = self.file(handle.id);
                    let edits = file.edits.len();
                    file.uncertain.get_or_insert(edits);
                }
                let end = ranges
                    .iter()
                    .map(|(offset, len)| offset + len)
                    .max()
                    .unwrap_or(0);
                let size = (self.file(handle.id).now.len() as u64).max(end);
                let ranges = ranges
                    .iter()
                    .map(|(offset, len)| (*offset, stamped(*number, *offset, *len).into()))
                    .collect();
                self.edit(handle.id, size, ranges, true);
                self.last_edit(handle.id).failed = failed;
                if failed { Either } else { Success }
            }
            Op::Together {
                slot,
                ranges,
                name,
                to,
                gone,
            } => {
                let (from, to, gone) = (path(name), path(to), path(gone));
                let renamed = after.rename(&from, &to, RenameFlags::empty());
                let found = after.find(&gone);
                if !renamed || found.is_none_or(|id| after.kind(id) == Kind::Directory) {
                    *after = self.latest().clone();
                    return None;
                }
                remove(after, &gone);
                let write = Numbered {
                    number: *number,
                    op: Op::Atomic {
                        slot: *slot,
                        ranges: ranges.clone(),
                        durable: false,
                    },
                };
                let expected = self.change(&write, answer, failed, version, after)?;
                if !failed && from != to {
                    self.note_renamed(&from, &to, RenameFlags::empty(), version);
                }
                expected
            }
            Op::Truncate { slot, size } => {
                let handle = self.handle(*slot)?;
                if failed && !self.may_be_there(handle.id, answer, false) {
                    return Some(Success);
                }
                self.edit(handle.id, *size, Vec::new(), false);
                Success
            }
            Op::Allocate {
                slot,
                flags,
                offset,
                len,
            } => {
                let handle = self.handle(*slot)?;
                if failed && !self.may_be_there(handle.id, answer, false) {
                    return Some(Success);
                }
                let size = self.file(handle.id).now.len() as u64;
                let grown = size.max(offset + len);
                let zeroes = |end: u64| -> Vec<(u64, Rc<[u8]>)> {
                    if end > *offset {
                        vec![(*offset, vec![0; (end - offset) as usize].into())]
                    } else {
                        Vec::new()
                    }
                };
                if flags.contains(AllocateFlags::PUNCH_HOLE) {
                    self.edit(handle.id, size, zeroes(size.min(offset + len)), false);
                } else if flags.contains(AllocateFlags::ZERO_RANGE) {
                    self.edit(handle.id, grown, zeroes(offset + len), false);
                } else if grown > size && !flags.contains(AllocateFlags::KEEP_SIZE) {
                    self.edit(handle.id, grown, Vec::new(), false);
                }
                Success
            }
            Op::Copy {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => {
                let (source, target) = (self.handle(*from)?, self.handle(*to)?);
                if target.is(OpenFlags::APPEND) {
                    return None;
                }
                let content = &self.file(source.id).now;
                let start = (*from_offset as usize).min(content.len());
                let end = ((from_offset + len) as usize).min(content.len());
                let mut bytes = content[start..end].to_vec();
                // Bytes beyond the end don't count.
                let len = bytes.len() as u64;
                let overlaps = source.id == target.id
                    && *from_offset < to_offset + len
                    && *to_offset < from_offset + len;
                // Where it is uncertain how long the file is, there may be nothing to copy, which
                // succeeds.
                let nothing = matches!(answer, Some(Answer::Copied(0)))
                    && self.file(source.id).uncertain.is_some();
                if overlaps && !nothing {
                    return failed.then_some(Either);
                }
                if failed && !self.may_be_there(target.id, answer, false) {
                    return Some(Success);
                }
                if let Some(Answer::Copied(count)) = answer {
                    if *count as usize > bytes.len() {
                        return None;
                    }
                    bytes.truncate(*count as usize);
                }
                if !bytes.is_empty() {
                    let size = self.file(target.id).now.len() as u64;
                    let size = size.max(to_offset + bytes.len() as u64);
                    self.edit(target.id, size, vec![(*to_offset, bytes.into())], false);
                }
                Success
            }
            Op::Read { slot, offset, len } => {
                let handle = self.handle(*slot)?;
                let file = self.file(handle.id);
                let start = (*offset as usize).min(file.now.len());
                let end = ((offset + len) as usize).min(file.now.len());
                match answer {
                    Some(Answer::Bytes(bytes))
                        if file.uncertain.is_none() && bytes[..] != file.now[start..end] =>
                    {
                        Failure
                    }
                    _ => Success,
                }
            }
            Op::Fsync { slot } | Op::Fdatasync { slot } => when(self.handle(*slot).is_some()),
            Op::FsyncDirectory { name } => {
                let found = self.find(&path(name));
                when(found.is_some_and(|id| self.kind(id) == Kind::Directory))
            }
            Op::SyncAll | Op::Checkpoint | Op::Grow { .. } | Op::Idle { .. } => Success,
            Op::Mkdir { name } => {
                self.make(path(name), Kind::Directory, version, after)?;
                Success
            }
            Op::Symlink { name } => {
                self.make(path(name), Kind::Symlink, version, after)?;
                Success
            }
            Op::Rmdir { name } => {
                let path = path(name);
                let found = self
                    .find(&path)
                    .filter(|id| self.kind(*id) == Kind::Directory);
                let expected = when(found.is_some() && self.latest().is_empty(&path));
                if expected == Success {
                    remove(after, &path);
                }
                expected
            }
            Op::Unlink { name } => {
                let path = path(name);
                let found = self.find_but(&path, Kind::Directory);
                if found.is_some() {
                    remove(after, &path);
                }
                when(found.is_some())
            }
            Op::Link { name, to } => {
                let (path, to) = (path(name), path(to));
                let found = self.find_but(&path, Kind::Directory);
                let id =
                    found.filter(|_| self.find(&to).is_none() && self.latest().has_parent(&to))?;
                after.names.insert(to, id);
                if !failed {
                    self.named.insert(id, version);
                }
                Success
            }
            Op::Rename { name, to, flags } => {
                let (from, to) = (path(name), path(to));
                let renamed = after.rename(&from, &to, *flags);
                if renamed && !failed && from != to {
                    self.note_renamed(&from, &to, *flags, version);
                }
                when(renamed)
            }
            Op::SetMode { name, mode } => {
                let id = self.find_but(&path(name), Kind::Symlink)?;
                if let Some(inode) = after.inodes.get_mut(&id) {
                    inode.mode = *mode;
                }
                if !failed {
                    self.attributed.insert(id, version);
                }
                Success
            }
            Op::SetXattr { name, key, len } => {
                let id = self.find_but(&path(name), Kind::Symlink)?;
                let mut total = 0;
                if let Some(inode) = after.inodes.get_mut(&id) {
                    inode.xattrs.insert(*key, stamped(*number, 0, *len));
                    total = inode.xattrs.values().map(|value| value.len() + 16).sum();
                }
                if !failed {
                    self.attributed.insert(id, version);
                }
                // All attributes of an inode share a page.
                if total > 3500 { Either } else { Success }
            }
            Op::RemoveXattr { name, key } => {
                let id = self.find_but(&path(name), Kind::Symlink)?;
                let inode = after.inodes.get_mut(&id);
                let removed = inode.is_some_and(|inode| inode.xattrs.remove(key).is_some());
                if removed && !failed {
                    self.attributed.insert(id, version);
                }
                when(removed)
            }
        })
    }

    /// Makes an inode; None if the name can't be made.
    fn make(
        &mut self,
        path: String,
        kind: Kind,
        version: usize,
        after: &mut Namespace,
    ) -> Option<Id> {
        if self.find(&path).is_some() || !self.latest().has_parent(&path) {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        let (mode, target) = match kind {
            Kind::File => (0o644, String::new()),
            Kind::Directory => (0o755, String::new()),
            Kind::Symlink => (0o777, crate::perform::target(&path)),
        };
        let inode = Inode {
            kind,
            mode,
            xattrs: BTreeMap::new(),
            target,
        };
        after.inodes.insert(id, inode);
        after.names.insert(path, id);
        self.named.insert(id, version);
        self.attributed.insert(id, version);
        if kind == Kind::File {
            self.files.insert(id, File::default());
        }
        Some(id)
    }

    fn note_renamed(&mut self, from: &str, to: &str, flags: RenameFlags, version: usize) {
        let (Some(source), target) = (self.find(from), self.find(to)) else {
            return;
        };
        if target == Some(source) {
            return;
        }
        self.named.insert(source, version);
        let Some(target) = target else { return };
        if flags.contains(RenameFlags::EXCHANGE) {
            self.named.insert(target, version);
        } else if self.kind(source) == Kind::File {
            let file = self.file(source);
            file.replaced.push((version, file.edits.len()));
        }
    }

    /// A write that succeeded, may have happened, or failed.
    fn write(
        &mut self,
        handle: Handle,
        number: u32,
        offset: u64,
        len: u64,
        failure: Option<&Answer>,
    ) {
        let (id, writes_back) = (handle.id, handle.is(OpenFlags::DIRECT));
        if failure.is_some() && !self.may_be_there(id, failure, writes_back) {
            return;
        }
        if len == 0 {
            return;
        }
        let size = (self.file(id).now.len() as u64).max(offset + len);
        let bytes = stamped(number, offset, len);
        self.edit(id, size, vec![(offset, bytes.into())], false);
        self.last_edit(id).failed = failure.is_some();
    }

    fn last_edit(&mut self, id: Id) -> &mut Edit {
        let edits = &mut self.file(id).edits;
        edits.last_mut().expect("one was just made")
    }

    /// Whether something of an operation that failed may be in the file; then, from here on, we
    /// don't know. One that failed for want of space has changed nothing; after another failure a
    /// part of it may be there, and one that ends in a sync, or in a write-back, as direct writes
    /// do where there is no place yet, may be there as a whole.
    fn may_be_there(&mut self, id: Id, failure: Option<&Answer>, writes_back: bool) -> bool {
        let syncs = self.slots.iter().flatten();
        let syncs = syncs
            .filter(|handle| handle.id == id)
            .any(|handle| handle.is(OpenFlags::DSYNC));
        if no_effect(failure) && !(is_late(failure) && (syncs || writes_back)) {
            return false;
        }
        let file = self.file(id);
        let edits = file.edits.len();
        file.uncertain.get_or_insert(edits);
        true
    }

    fn edit(&mut self, id: Id, size: u64, mut ranges: Vec<(u64, Rc<[u8]>)>, atomic: bool) {
        let file = self.file(id);
        let old = file.now.len() as u64;
        if size > old {
            // The bytes in between become zeroes, which is a change like any other.
            ranges.insert(0, (old, vec![0; (size - old) as usize].into()));
        }
        let edit = Edit {
            size,
            ranges,
            atomic,
            failed: false,
        };
        edit.apply(&mut file.now);
        file.edits.push(edit);
    }

    /// Notes the durability that an acknowledged operation promises.
    fn make_durable(&mut self, op: &Op) {
        match op {
            Op::Fsync { slot } => self.synced(*slot, true),
            Op::Fdatasync { slot } => self.synced(*slot, false),
            Op::Write { slot, .. } | Op::Append { slot, .. }
                if self.slots[*slot].is_some_and(|handle| handle.is(OpenFlags::DSYNC)) =>
            {
                self.synced(*slot, false);
            }
            Op::Atomic { slot, durable, .. }
                if *durable
                    || self.slots[*slot].is_some_and(|handle| handle.is(OpenFlags::DSYNC)) =>
            {
                self.synced(*slot, false);
            }
            Op::FsyncDirectory { .. } => self.durable = self.current(),
            Op::SyncAll => self.everything_is_durable(),
            _ => {}
        }
    }

    fn synced(&mut self, slot: usize, attributes: bool) {
        let Some(handle) = self.slots[slot] else {
            return;
        };
        let file = self.file(handle.id);
        file.synced = file.edits.len();
        let names = self
            .latest()
            .names
            .iter()
            .filter(|(_, id)| **id == handle.id);
        let mut version = 0;
        for (path, id) in names {
            version = version.max(self.named.get(id).copied().unwrap_or(0));
            // And the directories on the way.
            for (at, _) in path.match_indices('/').skip(1) {
                let directory = self.find(&path[..at]);
                let named = directory.and_then(|id| self.named.get(&id));
                version = version.max(named.copied().unwrap_or(0));
            }
        }
        if attributes && self.links(handle.id) > 0 {
            version = version.max(self.attributed.get(&handle.id).copied().unwrap_or(0));
        }
        self.durable = self.durable.max(version);
    }

    /// A sync of the whole volume, of this task or of another, began now and succeeded.
    pub fn everything_is_durable(&mut self) {
        self.durable = self.current();
        for file in self.files.values_mut() {
            file.synced = file.edits.len();
        }
    }
}

impl Edit {
    /// Applies it to a content.
    pub fn apply(&self, content: &mut Vec<u8>) {
        content.resize(self.size as usize, 0);
        for (offset, bytes) in &self.ranges {
            let start = (*offset as usize).min(content.len());
            let end = (start + bytes.len()).min(content.len());
            content[start..end].copy_from_slice(&bytes[..end - start]);
        }
    }
}

/// Whether a failure promises that nothing was changed.
fn no_effect(answer: Option<&Answer>) -> bool {
    use adit_base::Errno;
    matches!(
        answer,
        Some(Answer::Failed(
            Errno::NOSPC | Errno::INVAL | Errno::TOOBIG | Errno::ROFS | Errno::BADF
        ))
    )
}

/// Whether a failure may have come when the operation was done and its sync or write-back wasn't:
/// others may have made the volume read-only.
fn is_late(answer: Option<&Answer>) -> bool {
    matches!(answer, Some(Answer::Failed(adit_base::Errno::ROFS)))
}
