//! What a file system should be after a sequence of operations: maps and vectors.

use crate::volume::SELF;
use adit_base::Errno;
use adit_fs::{AllocateFlags, Credentials, FileKind, OpenFlags, RenameFlags};
use adit_operations::{Answer, Call, Node, Outcome, Target};
use std::collections::BTreeMap;

type Result<T = ()> = std::result::Result<T, Errno>;

/// What a symbolic link says here: nothing is there.
pub(super) const NOWHERE: &str = "/nowhere";
const ROOT: usize = 0;

#[derive(Debug)]
enum Content {
    Directory(BTreeMap<String, usize>),
    File(Vec<u8>),
    Symlink,
}

/// Inodes by number; a name is in a directory.
#[derive(Default)]
pub(super) struct Model {
    inodes: Vec<(Content, BTreeMap<String, Vec<u8>>)>,
    /// Open files by slot.
    pub(super) open: BTreeMap<usize, usize>,
}

impl Target for Model {
    fn perform(&mut self, _: &Credentials, operation: &Call<'_>) -> Outcome {
        match *operation {
            Call::Open(slot, path, flags, _) => {
                let number = self.open(path, flags.contains(OpenFlags::CREATE))?;
                self.open.insert(slot, number);
            }
            Call::Close(slot) => drop(self.open.remove(&slot).ok_or(Errno::BADF)?),
            Call::Read(slot, offset, len) => {
                let content = self.content(slot)?;
                let from = content.len().min(offset as usize);
                let to = content.len().min(from + len);
                return Ok(Answer::Bytes(content[from..to].to_vec()));
            }
            Call::Write(slot, offset, data) => {
                write(self.content(slot)?, offset as usize, data);
                return Ok(Answer::Number(data.len() as u64));
            }
            Call::Append(slot, data) => {
                let content = self.content(slot)?;
                content.extend_from_slice(data);
                return Ok(Answer::Number((content.len() - data.len()) as u64));
            }
            Call::WriteAtomic(slot, ranges, _) => {
                let content = self.content(slot)?;
                let ranges = ranges.iter();
                ranges.for_each(|(offset, data)| write(content, *offset as usize, data));
            }
            Call::CopyRange(from, offset, to, place, len) => {
                return self.copy(from, offset as usize, to, place as usize, len as usize);
            }
            Call::Truncate(path, size) => {
                let number = self.find(path)?;
                match &mut self.inodes[number].0 {
                    Content::Directory(_) => return Err(Errno::ISDIR),
                    Content::File(content) => content.resize(size as usize, 0),
                    Content::Symlink => return Err(Errno::NOENT),
                }
            }
            Call::Fallocate(slot, mode, offset, len) => {
                let (from, to) = (offset as usize, (offset + len) as usize);
                let content = self.content(slot)?;
                if !mode.contains(AllocateFlags::KEEP_SIZE) {
                    content.resize(content.len().max(to), 0);
                }
                let to = content.len().min(to);
                let zeroes = AllocateFlags::PUNCH_HOLE | AllocateFlags::ZERO_RANGE;
                if mode.intersects(zeroes) && from < to {
                    content[from..to].fill(0);
                }
            }
            Call::Fsync(slot) => drop(self.content(slot)?),
            Call::Syncfs => (),
            Call::Mkdir(path, _) => self.add(path, Content::Directory(BTreeMap::new()))?,
            Call::Symlink(_, path) => self.add(path, Content::Symlink)?,
            Call::Readlink(path) => match self.inodes[self.find(path)?].0 {
                Content::Symlink => return Ok(Answer::Bytes(NOWHERE.into())),
                _ => return Err(Errno::INVAL),
            },
            Call::Link(from, _, to) => self.link(from, to)?,
            Call::Unlink(path) => self.unlink(path)?,
            Call::Rmdir(path) => self.rmdir(path)?,
            Call::Rename(from, to, flags) => self.rename(from, to, flags)?,
            Call::List(path, _) => return Ok(Answer::Entries(self.entries(path)?)),
            Call::Stat(path, _) => return Ok(Answer::Node(self.node(self.find(path)?))),
            Call::Getxattr(path, _, name) => {
                let value = self.attributes(path)?.get(name);
                return Ok(Answer::Bytes(value.ok_or(Errno::NODATA)?.clone()));
            }
            Call::Setxattr(path, _, name, value, _) => {
                self.attributes(path)?.insert(name.into(), value.into());
            }
            Call::Removexattr(path, _, name) => {
                let removed = self.attributes(path)?.remove(name);
                removed.ok_or(Errno::NODATA)?;
            }
            Call::Listxattr(path, _) => {
                let names = self.inodes[self.find(path)?].1.keys();
                return Ok(Answer::Names(names.cloned().collect()));
            }
            _ => return Err(Errno::OPNOTSUPP),
        }
        Ok(Answer::Done)
    }
}

fn write(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    content.resize(content.len().max(offset + data.len()), 0);
    content[offset..offset + data.len()].copy_from_slice(data);
}

impl Model {
    pub(super) fn new() -> Model {
        Model {
            inodes: vec![(Content::Directory(BTreeMap::new()), BTreeMap::new())],
            open: BTreeMap::new(),
        }
    }

    fn names(&self, directory: usize) -> Result<&BTreeMap<String, usize>> {
        match &self.inodes[directory].0 {
            Content::Directory(names) => Ok(names),
            Content::File(_) => Err(Errno::NOTDIR),
            // It would be followed, and there is nothing.
            Content::Symlink => Err(Errno::NOENT),
        }
    }

    fn names_mut(&mut self, directory: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.inodes[directory].0 {
            Content::Directory(names) => names,
            node => panic!("{node:?} is no directory"),
        }
    }

    /// The directory that the last name of a path is in, and that name.
    fn parent<'p>(&self, path: &'p str) -> Result<(usize, &'p str)> {
        let (above, name) = path.rsplit_once('/').expect("paths begin at the root");
        let mut directory = ROOT;
        for name in above.split('/').filter(|name| !name.is_empty()) {
            directory = *self.names(directory)?.get(name).ok_or(Errno::NOENT)?;
        }
        self.names(directory)?;
        Ok((directory, name))
    }

    fn find(&self, path: &str) -> Result<usize> {
        if path == "/" {
            return Ok(ROOT);
        }
        let (parent, name) = self.parent(path)?;
        self.names(parent)?.get(name).copied().ok_or(Errno::NOENT)
    }

    fn add(&mut self, path: &str, content: Content) -> Result {
        let (parent, name) = self.parent(path)?;
        if self.names(parent)?.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let number = self.inodes.len();
        self.inodes.push((content, BTreeMap::new()));
        self.names_mut(parent).insert(name.to_owned(), number);
        Ok(())
    }

    /// Opens a file, not following a link.
    fn open(&mut self, path: &str, create: bool) -> Result<usize> {
        if create && self.find(path) == Err(Errno::NOENT) {
            self.add(path, Content::File(Vec::new()))?;
        }
        let number = self.find(path)?;
        match self.inodes[number].0 {
            Content::Directory(_) => Err(Errno::ISDIR),
            Content::File(_) => Ok(number),
            Content::Symlink => Err(Errno::LOOP),
        }
    }

    /// The content of an open file.
    fn content(&mut self, slot: usize) -> Result<&mut Vec<u8>> {
        let number = *self.open.get(&slot).ok_or(Errno::BADF)?;
        match &mut self.inodes[number].0 {
            Content::File(content) => Ok(content),
            content => panic!("{content:?} is no file"),
        }
    }

    fn copy(&mut self, from: usize, offset: usize, to: usize, place: usize, len: usize) -> Outcome {
        let content = self.content(from)?;
        let start = content.len().min(offset);
        let data = content[start..content.len().min(start + len)].to_vec();
        let count = data.len();
        self.content(to)?;
        let is_same = self.open[&from] == self.open[&to];
        if is_same && offset < place + count && place < offset + count {
            return Err(Errno::INVAL);
        }
        if count > 0 {
            write(self.content(to)?, place, &data);
        }
        Ok(Answer::Number(count as u64))
    }

    fn unlink(&mut self, path: &str) -> Result {
        let (parent, name) = self.parent(path)?;
        let number = *self.names(parent)?.get(name).ok_or(Errno::NOENT)?;
        if matches!(self.inodes[number].0, Content::Directory(_)) {
            return Err(Errno::ISDIR);
        }
        self.names_mut(parent).remove(name);
        Ok(())
    }

    fn rmdir(&mut self, path: &str) -> Result {
        let (parent, name) = self.parent(path)?;
        let number = *self.names(parent)?.get(name).ok_or(Errno::NOENT)?;
        match &self.inodes[number].0 {
            Content::Directory(names) if names.is_empty() => {}
            Content::Directory(_) => return Err(Errno::NOTEMPTY),
            _ => return Err(Errno::NOTDIR),
        }
        self.names_mut(parent).remove(name);
        Ok(())
    }

    fn link(&mut self, existing: &str, path: &str) -> Result {
        let number = self.find(existing)?;
        let (parent, name) = self.parent(path)?;
        if self.names(parent)?.contains_key(name) {
            return Err(Errno::EXIST);
        }
        if matches!(self.inodes[number].0, Content::Directory(_)) {
            return Err(Errno::PERM);
        }
        self.names_mut(parent).insert(name.to_owned(), number);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str, flags: RenameFlags) -> Result {
        let (old_parent, old_name) = self.parent(from)?;
        let (new_parent, new_name) = self.parent(to)?;
        let source = *self.names(old_parent)?.get(old_name).ok_or(Errno::NOENT)?;
        let target = self.names(new_parent)?.get(new_name).copied();
        if target.is_some() && flags.contains(RenameFlags::NO_REPLACE) {
            return Err(Errno::EXIST);
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if target.is_none() && exchange {
            return Err(Errno::NOENT);
        }
        if to.starts_with(&format!("{from}/")) {
            return Err(Errno::INVAL);
        }
        if from.starts_with(&format!("{to}/")) {
            return Err(if exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            });
        }
        if target == Some(source) {
            return Ok(());
        }
        let is_directory = matches!(self.inodes[source].0, Content::Directory(_));
        match target.map(|target| &self.inodes[target].0) {
            _ if exchange => {}
            Some(Content::Directory(_)) if !is_directory => return Err(Errno::ISDIR),
            Some(Content::Directory(names)) if !names.is_empty() => return Err(Errno::NOTEMPTY),
            Some(Content::File(_) | Content::Symlink) if is_directory => return Err(Errno::NOTDIR),
            _ => {}
        }
        self.names_mut(old_parent).remove(old_name);
        self.names_mut(new_parent)
            .insert(new_name.to_owned(), source);
        if let Some(target) = target.filter(|_| exchange) {
            self.names_mut(old_parent)
                .insert(old_name.to_owned(), target);
        }
        Ok(())
    }

    /// What may have attributes of users: no links.
    fn attributes(&mut self, path: &str) -> Result<&mut BTreeMap<String, Vec<u8>>> {
        let number = self.find(path)?;
        match &mut self.inodes[number] {
            (Content::Symlink, _) => Err(Errno::PERM),
            (_, attributes) => Ok(attributes),
        }
    }

    fn kind(&self, number: usize) -> FileKind {
        match self.inodes[number].0 {
            Content::Directory(_) => FileKind::Directory,
            Content::File(_) => FileKind::File,
            Content::Symlink => FileKind::Symlink,
        }
    }

    fn entries(&self, path: &str) -> Result<Vec<(String, u32)>> {
        let names = self.names(self.find(path)?)?.iter();
        let entry = |(name, number): (&String, &usize)| (name.clone(), *number);
        let dots = [".", ".."].map(|name| (name.to_owned(), ROOT));
        let entries = names.map(entry).chain(dots);
        let mut entries: Vec<_> = entries
            .map(|(name, number)| (name, self.kind(number).mode_bits()))
            .collect();
        entries.sort_unstable();
        Ok(entries)
    }

    fn node(&self, number: usize) -> Node {
        let (mode, links, size) = match &self.inodes[number].0 {
            Content::Directory(names) => {
                let inside = names
                    .values()
                    .filter(|inside| self.kind(**inside) == FileKind::Directory);
                (0o755, 2 + inside.count(), 0)
            }
            Content::File(content) => (0o644, self.names_of(number), content.len()),
            Content::Symlink => (0o777, self.names_of(number), NOWHERE.len()),
        };
        Node {
            mode: self.kind(number).mode_bits() | mode,
            links: links as u64,
            owner: (SELF.uid, SELF.gid),
            size: size as u64,
            ..Node::default()
        }
    }

    fn names_of(&self, number: usize) -> usize {
        let directories = self.inodes.iter().filter_map(|(content, _)| match content {
            Content::Directory(names) => Some(names),
            _ => None,
        });
        let names = directories.flat_map(BTreeMap::values);
        names.filter(|other| **other == number).count()
    }
}
