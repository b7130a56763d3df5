//! A finding of a check: a problem, its place, its consequence, and its repair.

use std::path::PathBuf;

/// The kind of a problem; `adit check --json` prints it as [`FindingKind::word`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FindingKind {
    /// A superblock.
    Superblock,
    /// The journal ring.
    Journal,
    /// The state page: counters and roots.
    State,
    /// A group's map page.
    GroupMap,
    /// A page of checksums of data.
    Checksums,
    /// Pages that the map and the blobs disagree about.
    Space,
    /// A slot.
    Slot,
    /// The map of a blob.
    Map,
    /// A page that belongs to two.
    Shared,
    /// Extended attributes.
    Attributes,
    /// A directory's tree.
    Directory,
    /// An entry of a directory.
    Entry,
    /// A link count, or the parent of a directory.
    Links,
    /// An inode that no name leads to.
    Lost,
    /// An unlinked inode that nothing will delete.
    Orphan,
    /// A symbolic link that says nothing.
    Symlink,
    /// Any problem found while the volume is in use: only the sentence tells which.
    InUse,
}

impl FindingKind {
    /// The kind as a word for programs.
    pub fn word(self) -> &'static str {
        match self {
            FindingKind::Superblock => "superblock",
            FindingKind::Journal => "journal",
            FindingKind::State => "state",
            FindingKind::GroupMap => "group-map",
            FindingKind::Checksums => "checksums",
            FindingKind::Space => "space",
            FindingKind::Slot => "slot",
            FindingKind::Map => "map",
            FindingKind::Shared => "shared-page",
            FindingKind::Attributes => "attributes",
            FindingKind::Directory => "directory",
            FindingKind::Entry => "entry",
            FindingKind::Links => "links",
            FindingKind::Lost => "lost",
            FindingKind::Orphan => "orphan",
            FindingKind::Symlink => "symlink",
            FindingKind::InUse => "in-use",
        }
    }
}

/// A problem of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of the problem.
    pub kind: FindingKind,
    /// The device page, if it is about one.
    pub page: Option<u64>,
    /// The slot address (inode number), if it is about one.
    pub slot: Option<u64>,
    /// A path of that inode, where one is known.
    pub path: Option<PathBuf>,
    /// The problem: a sentence without its place.
    pub what: String,
    /// The consequence for users of the volume.
    pub consequence: String,
    /// The action of a repair; `None`: beyond repair.
    pub repair: Option<String>,
}

impl Finding {
    /// A problem that a repair puts right by `repair`.
    pub fn new(
        kind: FindingKind,
        what: impl Into<String>,
        consequence: impl Into<String>,
        repair: impl Into<String>,
    ) -> Finding {
        Finding {
            kind,
            page: None,
            slot: None,
            path: None,
            what: what.into(),
            consequence: consequence.into(),
            repair: Some(repair.into()),
        }
    }

    /// Adds the device page.
    pub fn at_page(mut self, page: u64) -> Finding {
        self.page = Some(page);
        self
    }

    /// Adds the slot address of the inode.
    pub fn of_slot(mut self, slot: u64) -> Finding {
        self.slot = Some(slot);
        self
    }

    /// Marks the problem as beyond repair.
    pub fn beyond_repair(mut self) -> Finding {
        self.repair = None;
        self
    }

    /// Where: "/a/b (inode 1234), page 5678".
    pub fn place(&self) -> String {
        let inode = self.slot.map(|slot| format!("inode {slot}"));
        let subject = match (&self.path, inode) {
            (Some(path), Some(inode)) => Some(format!("{} ({inode})", path.display())),
            (Some(path), None) => Some(path.display().to_string()),
            (None, inode) => inode,
        };
        let page = self.page.map(|page| format!("page {page}"));
        match (subject, page) {
            (Some(subject), Some(page)) => format!("{subject}, {page}"),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => "the volume".into(),
        }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {}", self.place(), self.what, self.consequence)
    }
}

/// Findings that are kept; of others only the number.
const FINDINGS_MAX: usize = 10_000;

/// The findings so far.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct Findings {
    /// In the order in which they were found.
    pub list: Vec<Finding>,
    /// Further ones that were only counted.
    pub omitted: u64,
}

impl Findings {
    /// Takes one in.
    pub fn add(&mut self, finding: Finding) {
        if self.list.len() < FINDINGS_MAX {
            self.list.push(finding);
        } else {
            self.omitted += 1;
        }
    }

    /// True if there are no findings.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes in all of another list.
    pub fn append(&mut self, other: Findings) {
        self.omitted += other.omitted;
        for finding in other.list {
            self.add(finding);
        }
    }
}
