//! Everything that an open volume shows: names, attributes, content.

use crate::model::{Id, Inode, Kind, Namespace};
use crate::op::owner;
use adit_base::{Errno, Result};
use adit_fs::{At, Credentials, DirEntry, FileKind, Follow, Fs, OpenFlags};
use std::collections::BTreeMap;

/// The observed state.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Inodes by path.
    pub names: BTreeMap<String, Seen>,
    /// Content of files by inode number.
    pub contents: BTreeMap<u64, Vec<u8>>,
}

/// An inode as it is found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its number.
    pub inode: u64,
    /// Names it says it has.
    pub links: u32,
    /// Its inode.
    pub what: Inode,
}

/// Walks through all of it.
pub async fn observe(fs: &Fs) -> Result<Observed> {
    let who = Credentials::process();
    let mut observed = Observed {
        volume_bytes: fs.store().info().await?.volume_bytes,
        ..Observed::default()
    };
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        for entry in list(fs, &who, &directory).await? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            if name == "." || name == ".." {
                continue;
            }
            let path = format!("{directory}/{name}");
            let at = At::root(&who, path.as_bytes());
            let stat = fs.stat(at, Follow::No).await?;
            let (kind, target) = match stat.kind {
                FileKind::Directory => (Kind::Directory, String::new()),
                FileKind::Symlink => {
                    let target = fs.read_link(at).await?;
                    (Kind::Symlink, String::from_utf8_lossy(&target).into_owned())
                }
                _ => (Kind::File, String::new()),
            };
            let mut xattrs = BTreeMap::new();
            for name in fs.xattr_list(at, Follow::No).await? {
                let value = fs.xattr_get(at, Follow::No, &name).await?;
                let key = name.strip_prefix(b"user.").and_then(|rest| rest.first());
                xattrs.insert(key.map_or(u8::MAX, |digit| digit - b'0'), value);
            }
            if kind == Kind::Directory {
                directories.push(path.clone());
            }
            if kind == Kind::File && !observed.contents.contains_key(&stat.inode) {
                let content = read(fs, at).await?;
                observed.contents.insert(stat.inode, content);
            }
            let what = Inode {
                kind,
                mode: stat.mode & 0o7777,
                xattrs,
                target,
            };
            let seen = Seen {
                inode: stat.inode,
                links: stat.links,
                what,
            };
            observed.names.insert(path, seen);
        }
    }
    Ok(observed)
}

async fn list(fs: &Fs, who: &Credentials, directory: &str) -> Result<Vec<DirEntry>> {
    let path = format!("{directory}/");
    let file = fs
        .open(At::root(who, path.as_bytes()), OpenFlags::DIRECTORY, 0)
        .await?;
    fs.within(file.blob_id(), move |fs| {
        Box::pin(async move {
            let mut entries: Vec<DirEntry> = Vec::new();
            loop {
                let (before, cookie) = (
                    entries.len(),
                    entries.last().map_or(0, |entry| entry.cookie),
                );
                fs.read_directory(&file, cookie, 4096, &mut entries).await?;
                if entries.len() == before {
                    break;
                }
            }
            fs.close(&file).await?;
            Ok(entries)
        })
    })
    .await
}

async fn read(fs: &Fs, at: At<'_>) -> Result<Vec<u8>> {
    let file = fs.open(at, OpenFlags::empty(), 0).await?;
    fs.within(file.blob_id(), move |fs| {
        Box::pin(async move {
            let mut content = vec![0; file.size_bytes() as usize];
            let read = fs.read(&file, 0, &mut content).await?;
            fs.close(&file).await?;
            if read == content.len() {
                Ok(content)
            } else {
                Err(adit_base::Error::with(
                    Errno::IO,
                    format!("a file of {} bytes gives {read}", content.len()),
                ))
            }
        })
    })
    .await
}

impl Observed {
    /// The state that a task finds when its life begins, with inodes of the model.
    pub fn of_task(&self, task: usize) -> (Namespace, BTreeMap<Id, Vec<u8>>) {
        let mut ids: BTreeMap<u64, Id> = BTreeMap::new();
        let (mut namespace, mut contents) = (Namespace::default(), BTreeMap::new());
        for (path, seen) in &self.names {
            if owner(path) != Some(task) {
                continue;
            }
            let next = ids.len() as Id + 1;
            let id = *ids.entry(seen.inode).or_insert(next);
            namespace.names.insert(path.clone(), id);
            namespace.inodes.insert(id, seen.what.clone());
            if let Some(content) = self.contents.get(&seen.inode) {
                contents.insert(id, content.clone());
            }
        }
        (namespace, contents)
    }
}
