//! The names of the model: a flat map from path to inode. One version of it is one value.

use adit_fs::RenameFlags;
use std::collections::BTreeMap;

/// An inode of the model.
pub type Id = u32;

/// An inode, apart from content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// File, directory or symbolic link.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Extended attributes, `user.0` to `user.9`.
    pub xattrs: BTreeMap<u8, Vec<u8>>,
    /// Target of a symbolic link.
    pub target: String,
}

/// Kinds of inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "they say it all")]
pub enum Kind {
    File,
    Directory,
    Symlink,
}

/// All names of a task and their inodes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Namespace {
    /// Inode by path.
    pub names: BTreeMap<String, Id>,
    /// Inodes that have a name.
    pub inodes: BTreeMap<Id, Inode>,
}

impl Namespace {
    /// The inode at a path, if its parents are directories.
    pub(crate) fn find(&self, path: &str) -> Option<Id> {
        self.names.get(path).copied()
    }

    pub(crate) fn kind(&self, id: Id) -> Kind {
        self.inodes[&id].kind
    }

    /// Whether a name could be made here.
    pub(crate) fn has_parent(&self, path: &str) -> bool {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        crate::op::owner(parent).is_none()
            || self
                .find(parent)
                .is_some_and(|id| self.kind(id) == Kind::Directory)
    }

    /// True if nothing is below this path.
    pub(crate) fn is_empty(&self, path: &str) -> bool {
        let inside = format!("{path}/");
        !self.names.keys().any(|name| name.starts_with(&inside))
    }

    /// Renames, if that is possible.
    pub(crate) fn rename(&mut self, from: &str, to: &str, flags: RenameFlags) -> bool {
        let Some(source) = self.find(from) else {
            return false;
        };
        if !self.has_parent(to) {
            return false;
        }
        let target = self.find(to);
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let exclusive = flags.contains(RenameFlags::NO_REPLACE);
        if exclusive && target.is_some() || exchange && target.is_none() {
            return false;
        }
        if target == Some(source) {
            return true; // two names of one inode, or one name: nothing happens
        }
        let is_directory = self.kind(source) == Kind::Directory;
        if is_directory && to.starts_with(&format!("{from}/")) {
            return false;
        }
        if exchange {
            let other = target.expect("checked above");
            if self.kind(other) == Kind::Directory && from.starts_with(&format!("{to}/")) {
                return false;
            }
            swap(self, from, to);
            return true;
        }
        if let Some(target) = target {
            let onto_directory = self.kind(target) == Kind::Directory;
            if onto_directory != is_directory || onto_directory && !self.is_empty(to) {
                return false;
            }
            remove(self, to);
        }
        let moved: Vec<(String, Id)> = take_tree(self, from);
        for (rest, id) in moved {
            self.names.insert(format!("{to}{rest}"), id);
        }
        true
    }
}

/// Takes a name away, and its inode with the last of them.
pub(crate) fn remove(namespace: &mut Namespace, path: &str) {
    if let Some(id) = namespace.names.remove(path)
        && !namespace.names.values().any(|other| *other == id)
    {
        namespace.inodes.remove(&id);
    }
}

/// Removes a path and all below it; returns them by the rest of their paths.
pub(crate) fn take_tree(namespace: &mut Namespace, path: &str) -> Vec<(String, Id)> {
    let inside = format!("{path}/");
    let paths: Vec<String> = namespace
        .names
        .keys()
        .filter(|name| *name == path || name.starts_with(&inside))
        .cloned()
        .collect();
    paths
        .into_iter()
        .filter_map(|name| {
            let id = namespace.names.remove(&name)?;
            Some((name[path.len()..].to_owned(), id))
        })
        .collect()
}

/// Two paths change places, each with all below it.
pub(crate) fn swap(namespace: &mut Namespace, a: &str, b: &str) {
    let (from_a, from_b) = (take_tree(namespace, a), take_tree(namespace, b));
    for (rest, id) in from_a {
        namespace.names.insert(format!("{b}{rest}"), id);
    }
    for (rest, id) in from_b {
        namespace.names.insert(format!("{a}{rest}"), id);
    }
}
