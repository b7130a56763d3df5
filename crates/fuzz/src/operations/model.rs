//! What a file system should be after a sequence of operations: maps and vectors.

use adit_base::Errno;
use std::collections::BTreeMap;

pub(super) type Answer<T = ()> = Result<T, Errno>;

/// What a symbolic link says here: nothing is there.
pub(super) const NOWHERE: &[u8] = b"/nowhere";
const ROOT: usize = 0;

#[derive(Clone, Debug)]
pub(super) enum Node {
    Directory(BTreeMap<String, usize>),
    File(Vec<u8>),
    Symlink,
}

/// Inodes by number; a name is in a directory.
pub(super) struct Model {
    nodes: Vec<Node>,
    attributes: Vec<BTreeMap<String, Vec<u8>>>,
}

/// How a rename treats what is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Over {
    Replace,
    Refuse,
    Exchange,
}

impl Model {
    pub(super) fn new() -> Model {
        Model {
            nodes: vec![Node::Directory(BTreeMap::new())],
            attributes: vec![BTreeMap::new()],
        }
    }

    fn names(&self, directory: usize) -> Answer<&BTreeMap<String, usize>> {
        match &self.nodes[directory] {
            Node::Directory(names) => Ok(names),
            Node::File(_) => Err(Errno::NOTDIR),
            // It would be followed, and there is nothing.
            Node::Symlink => Err(Errno::NOENT),
        }
    }

    fn names_mut(&mut self, directory: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.nodes[directory] {
            Node::Directory(names) => names,
            node => panic!("{node:?} is no directory"),
        }
    }

    /// The directory that the last name of a path is in, and that name.
    fn parent<'p>(&self, path: &'p str) -> Answer<(usize, &'p str)> {
        let (above, name) = path.rsplit_once('/').expect("paths begin at the root");
        let mut directory = ROOT;
        for name in above.split('/').filter(|name| !name.is_empty()) {
            directory = *self.names(directory)?.get(name).ok_or(Errno::NOENT)?;
        }
        self.names(directory)?;
        Ok((directory, name))
    }

    pub(super) fn find(&self, path: &str) -> Answer<usize> {
        let (parent, name) = self.parent(path)?;
        self.names(parent)?.get(name).copied().ok_or(Errno::NOENT)
    }

    fn add(&mut self, path: &str, node: Node) -> Answer<usize> {
        let (parent, name) = self.parent(path)?;
        if self.names(parent)?.contains_key(name) {
            return Err(Errno::EXIST);
        }
        self.nodes.push(node);
        self.attributes.push(BTreeMap::new());
        let number = self.nodes.len() - 1;
        self.names_mut(parent).insert(name.to_owned(), number);
        Ok(number)
    }

    pub(super) fn mkdir(&mut self, path: &str) -> Answer {
        self.add(path, Node::Directory(BTreeMap::new())).map(drop)
    }

    pub(super) fn symlink(&mut self, path: &str) -> Answer {
        self.add(path, Node::Symlink).map(drop)
    }

    /// Opens a file, not following a link.
    pub(super) fn open(&mut self, path: &str, create: bool) -> Answer<usize> {
        match self.find(path) {
            Ok(number) => match self.nodes[number] {
                Node::Directory(_) => Err(Errno::ISDIR),
                Node::File(_) => Ok(number),
                Node::Symlink => Err(Errno::LOOP),
            },
            Err(Errno::NOENT) if create => self.add(path, Node::File(Vec::new())),
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn content(&mut self, number: usize) -> &mut Vec<u8> {
        match &mut self.nodes[number] {
            Node::File(content) => content,
            node => panic!("{node:?} is no file"),
        }
    }

    pub(super) fn write(&mut self, number: usize, offset: usize, data: &[u8]) {
        let content = self.content(number);
        if data.is_empty() {
            return;
        }
        content.resize(content.len().max(offset + data.len()), 0);
        content[offset..offset + data.len()].copy_from_slice(data);
    }

    pub(super) fn truncate(&mut self, path: &str, size: usize) -> Answer {
        let number = self.find(path)?;
        match &mut self.nodes[number] {
            Node::Directory(_) => Err(Errno::ISDIR),
            Node::File(content) => {
                content.resize(size, 0);
                Ok(())
            }
            Node::Symlink => Err(Errno::NOENT),
        }
    }

    pub(super) fn unlink(&mut self, path: &str) -> Answer {
        let (parent, name) = self.parent(path)?;
        let number = *self.names(parent)?.get(name).ok_or(Errno::NOENT)?;
        if matches!(self.nodes[number], Node::Directory(_)) {
            return Err(Errno::ISDIR);
        }
        self.names_mut(parent).remove(name);
        Ok(())
    }

    pub(super) fn rmdir(&mut self, path: &str) -> Answer {
        let (parent, name) = self.parent(path)?;
        let number = *self.names(parent)?.get(name).ok_or(Errno::NOENT)?;
        match &self.nodes[number] {
            Node::Directory(names) if names.is_empty() => {}
            Node::Directory(_) => return Err(Errno::NOTEMPTY),
            _ => return Err(Errno::NOTDIR),
        }
        self.names_mut(parent).remove(name);
        Ok(())
    }

    pub(super) fn link(&mut self, existing: &str, path: &str) -> Answer {
        let number = self.find(existing)?;
        let (parent, name) = self.parent(path)?;
        if self.names(parent)?.contains_key(name) {
            return Err(Errno::EXIST);
        }
        if matches!(self.nodes[number], Node::Directory(_)) {
            return Err(Errno::PERM);
        }
        self.names_mut(parent).insert(name.to_owned(), number);
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str, over: Over) -> Answer {
        let (old_parent, old_name) = self.parent(from)?;
        let (new_parent, new_name) = self.parent(to)?;
        let source = *self.names(old_parent)?.get(old_name).ok_or(Errno::NOENT)?;
        let target = self.names(new_parent)?.get(new_name).copied();
        if target.is_some() && over == Over::Refuse {
            return Err(Errno::EXIST);
        }
        if target.is_none() && over == Over::Exchange {
            return Err(Errno::NOENT);
        }
        if to.starts_with(&format!("{from}/")) {
            return Err(Errno::INVAL);
        }
        if from.starts_with(&format!("{to}/")) {
            let exchange = over == Over::Exchange;
            return Err(if exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            });
        }
        if target == Some(source) {
            return Ok(());
        }
        let is_directory = matches!(self.nodes[source], Node::Directory(_));
        match target.map(|target| &self.nodes[target]) {
            _ if over == Over::Exchange => {}
            Some(Node::Directory(_)) if !is_directory => return Err(Errno::ISDIR),
            Some(Node::Directory(names)) if !names.is_empty() => return Err(Errno::NOTEMPTY),
            Some(Node::File(_) | Node::Symlink) if is_directory => return Err(Errno::NOTDIR),
            _ => {}
        }
        self.names_mut(old_parent).remove(old_name);
        self.names_mut(new_parent)
            .insert(new_name.to_owned(), source);
        if let Some(target) = target.filter(|_| over == Over::Exchange) {
            self.names_mut(old_parent)
                .insert(old_name.to_owned(), target);
        }
        Ok(())
    }

    pub(super) fn attributes(&mut self, number: usize) -> &mut BTreeMap<String, Vec<u8>> {
        &mut self.attributes[number]
    }

    /// Everything there is, by path.
    pub(super) fn tree(&self) -> Vec<(String, Node, BTreeMap<String, Vec<u8>>)> {
        let mut tree = Vec::new();
        let mut left = vec![(String::new(), ROOT)];
        while let Some((path, number)) = left.pop() {
            if let Node::Directory(names) = &self.nodes[number] {
                for (name, inside) in names {
                    left.push((format!("{path}/{name}"), *inside));
                }
            }
            let attributes = self.attributes[number].clone();
            tree.push((path, self.nodes[number].clone(), attributes));
        }
        tree
    }
}
