//! The names of the model: a flat map from path to inode. One version of it is one value.

use std::collections::BTreeMap;

/// An inode of the model.
pub type Id = u32;

/// What an inode is, apart from content.
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

/// All names of a task and what they lead to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Namespace {
    /// Inode by path.
    pub names: BTreeMap<String, Id>,
    /// Inodes that have a name.
    pub inodes: BTreeMap<Id, Inode>,
}

/// Takes a name away, and its inode with the last of them.
pub(crate) fn remove(namespace: &mut Namespace, path: &str) {
    if let Some(id) = namespace.names.remove(path)
        && !namespace.names.values().any(|other| *other == id)
    {
        namespace.inodes.remove(&id);
    }
}

/// Takes out a path and all below it, as what follows the path.
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
