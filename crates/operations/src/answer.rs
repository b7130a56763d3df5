//! What operations answer, and what performs them.

use crate::Call;
use adit_base::Errno;
use adit_fs::{Credentials, FileKind, Follow, OpenFlags};
use std::collections::BTreeMap;

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Nothing but success.
    Done,
    /// Bytes read, a symbolic link's target, or an attribute's value.
    Bytes(Vec<u8>),
    /// Bytes written or copied, or an offset.
    Number(u64),
    /// Names of attributes, sorted.
    Names(Vec<String>),
    /// Entries of a directory and their types, sorted.
    Entries(Vec<(String, u32)>),
    /// Attributes.
    Node(Node),
}

/// An answer or errno.
pub type Outcome = Result<Answer, Errno>;

/// Attributes of an inode. Sizes of directories are each file system's own business: 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Node {
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub links: u64,
    /// User and group.
    pub owner: (u32, u32),
    /// Number of a device.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Number and generation.
    pub inode: (u64, u32),
    /// Times: seconds, nanoseconds.
    pub accessed: (i64, u32),
    /// Last change of the content.
    pub modified: (i64, u32),
    /// Last change of the attributes.
    pub changed: (i64, u32),
}

impl Node {
    /// Is it of this kind?
    pub fn is(&self, kind: FileKind) -> bool {
        self.mode & libc::S_IFMT == kind.mode_bits()
    }

    /// Without what two file systems have different: number and times.
    pub fn plain(self) -> Node {
        Node {
            inode: (0, 0),
            accessed: (0, 0),
            modified: (0, 0),
            changed: (0, 0),
            ..self
        }
    }
}

impl Answer {
    /// Without what two file systems answer differently.
    pub fn plain(self) -> Answer {
        match self {
            Answer::Node(node) => Answer::Node(node.plain()),
            answer => answer,
        }
    }
}

/// Everything there is, by path.
pub type Tree = BTreeMap<String, Node>;

/// Bytes read at each end of a file that is looked at: there are files of terabytes.
const END_BYTES: usize = 1 << 20;
/// Of files opened to be looked at.
const SLOT: usize = usize::MAX;

/// Something that performs operations.
pub trait Target {
    /// Performs an operation for somebody.
    fn perform(&mut self, who: &Credentials, operation: &Call<'_>) -> Outcome;

    /// A name's inode, without following a link.
    fn look(&mut self, who: &Credentials, path: &str) -> Option<Node> {
        match self.perform(who, &Call::Stat(path, Follow::No)) {
            Ok(Answer::Node(node)) => Some(node),
            _ => None,
        }
    }

    /// Everything there is, without changing any of it. `who` may read everything.
    fn tree(&mut self, who: &Credentials) -> Tree {
        let (mut tree, mut left) = (Tree::new(), vec![String::from("/")]);
        while let Some(path) = left.pop() {
            let node = self.look(who, &path).expect("it was just listed");
            if node.is(FileKind::Directory) {
                let listed = self.perform(who, &Call::List(&path, OpenFlags::NOATIME));
                let Ok(Answer::Entries(entries)) = listed else {
                    panic!("{path} can't be listed: {listed:?}");
                };
                let names = entries.iter().map(|(name, _)| name);
                let names = names.filter(|name| !matches!(&***name, "." | ".."));
                left.extend(names.map(|name| format!("{}/{name}", path.trim_end_matches('/'))));
            }
            tree.insert(path, node);
        }
        tree
    }

    /// What an inode has besides attributes: entries, target, or the ends of its content; extended
    /// attributes.
    fn content(&mut self, who: &Credentials, path: &str, node: &Node) -> Vec<Outcome> {
        let mut perform = |operation| self.perform(who, &operation);
        let listed = perform(Call::Listxattr(path, Follow::No));
        let mut answers = vec![listed.clone()];
        if let Ok(Answer::Names(names)) = &listed {
            let get = |name| Call::Getxattr(path, Follow::No, name);
            answers.extend(names.iter().map(|name| perform(get(name))));
        }
        if node.is(FileKind::Directory) {
            answers.push(perform(Call::List(path, OpenFlags::NOATIME)));
        } else if node.is(FileKind::Symlink) {
            answers.push(perform(Call::Readlink(path)));
        } else if node.is(FileKind::File) {
            answers.push(perform(Call::Open(SLOT, path, OpenFlags::NOATIME, 0)));
            answers.push(perform(Call::Read(SLOT, 0, END_BYTES)));
            if let Some(last) = node.size.checked_sub(END_BYTES as u64) {
                answers.push(perform(Call::Read(SLOT, last, END_BYTES)));
            }
            answers.push(perform(Call::Close(SLOT)));
        }
        answers
    }
}
