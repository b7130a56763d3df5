//! What both the library and the kernel can be asked to do, and the library's way to do it.

use super::*;
use std::collections::BTreeMap;

/// One operation. Paths are from the root; files are kept open under a number.
#[derive(Clone, Debug)]
pub enum Do<'a> {
    Mkdir(&'a str, u32),
    Node(&'a str, FileKind, u32, u64),
    Symlink(&'a str, &'a str),
    ReadLink(&'a str),
    Link(&'a str, Follow, &'a str),
    Unlink(&'a str),
    Rmdir(&'a str),
    Rename(&'a str, &'a str, RenameFlags),
    /// Opens and closes.
    Open(&'a str, OpenFlags, u32),
    /// Opens and keeps.
    Keep(usize, &'a str, OpenFlags),
    Close(usize),
    Read(usize, u64, usize),
    Write(usize, u64, &'a [u8]),
    List(usize),
    Flock(usize),
    Sync(usize),
    FileStat(usize),
    Size(&'a str, u64),
    FileSize(usize, u64),
    Allocate(usize, AllocateFlags, u64, u64),
    Mode(&'a str, Follow, u32),
    FileMode(usize, u32),
    Owner(&'a str, Follow, Option<u32>, Option<u32>),
    FileOwner(usize, Option<u32>, Option<u32>),
    Times(&'a str, Follow, SetTime, SetTime),
    FileTimes(usize, SetTime, SetTime),
    Access(&'a str, Follow, Access),
    Stat(&'a str, Follow),
    Get(&'a str, Follow, &'a str),
    Set(&'a str, Follow, &'a str, &'a [u8], XattrMode),
    Remove(&'a str, Follow, &'a str),
    Names(&'a str, Follow),
    FileGet(usize, &'a str),
    /// Data from there on, or a hole.
    Seek(usize, u64, bool),
    Copy(usize, u64, usize, u64, u64),
    FileSet(usize, &'a str, &'a [u8]),
}

/// What came of it, as far as both sides have to agree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Done,
    Bytes(Vec<u8>),
    Number(u64),
    Names(Vec<String>),
    Node(u32, u32, u64),
}

/// What there is at a path, less what two file systems may see differently (inode numbers, sizes of directories).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub mode: u32,
    pub links: u32,
    pub owner: (u32, u32),
    pub rdev: u64,
    pub size: u64,
    pub inode: (u64, u32),
    pub accessed: (i64, u32),
    pub modified: (i64, u32),
    pub changed: (i64, u32),
}

/// Everything there is, by path; open files as their numbers.
pub type Tree = BTreeMap<String, Node>;

/// The directory's size is each file system's own business.
pub fn size_of(mode: u32, size: u64) -> u64 {
    match mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFLNK => size,
        _ => 0,
    }
}

/// The library's side.
pub struct Library {
    pub volume: Volume,
    files: BTreeMap<usize, Arc<OpenFile>>,
}

fn node_of(stat: &Stat) -> Node {
    let time = |time: adit_base::clock::Timestamp| (time.seconds, time.nanoseconds);
    Node {
        mode: stat.mode,
        links: stat.links,
        owner: (stat.uid, stat.gid),
        rdev: stat.rdev,
        size: size_of(stat.mode, stat.size_bytes),
        inode: (stat.inode, stat.generation),
        accessed: time(stat.accessed),
        modified: time(stat.modified),
        changed: time(stat.changed),
    }
}

impl Library {
    pub fn new() -> Library {
        let volume = Volume::fresh();
        volume
            .run(|fs| async {
                fs.set_access_times(AccessTimes::Relative);
                Ok(())
            })
            .unwrap();
        Library {
            volume,
            files: BTreeMap::new(),
        }
    }

    fn file(&self, number: usize) -> Answer<&Arc<OpenFile>> {
        self.files.get(&number).ok_or(Errno::BADF)
    }

    pub fn act(&mut self, who: &Credentials, step: &Do<'_>) -> Answer<Reply> {
        if let Do::Close(number) = *step {
            let file = self.files.remove(&number).ok_or(Errno::BADF)?;
            return self.volume.close(&file).map(|()| Reply::Done);
        }
        if let Do::Keep(number, path, flags) = *step {
            let path = At::root(who, path.as_bytes());
            let file = self.volume.run(|fs| fs.open(path, flags, 0o644))?;
            self.files.insert(number, file);
            return Ok(Reply::Done);
        }
        let volume = &self.volume;
        macro_rules! on {
            ($path:ident, |$fs:ident, $at:ident| $call:expr) => {{
                let $at = At::root(who, $path.as_bytes());
                volume.run(|$fs| $call)
            }};
        }
        macro_rules! file {
            ($number:expr, |$fs:ident, $file:ident| $call:expr) => {{
                let $file = self.file($number)?;
                volume.run(|$fs| $call)
            }};
        }
        let stat = |stat: Stat| {
            let node = node_of(&stat);
            Reply::Node(node.mode, node.links, node.size)
        };
        let names = |names: Vec<Vec<u8>>| {
            let mut names: Vec<String> = (names.into_iter())
                .map(|name| String::from_utf8(name).unwrap())
                .collect();
            names.sort_unstable();
            Reply::Names(names)
        };
        let done = |()| Reply::Done;
        match *step {
            Do::Close(_) | Do::Keep(..) => unreachable!("done above"),
            Do::Mkdir(path, mode) => on!(path, |fs, at| fs.mkdir(at, mode)).map(|_| Reply::Done),
            Do::Node(path, kind, mode, device) => {
                on!(path, |fs, at| fs.mknod(at, kind, mode, device)).map(|_| Reply::Done)
            }
            Do::Symlink(target, path) => {
                on!(path, |fs, at| fs.symlink(target.as_bytes(), at)).map(|_| Reply::Done)
            }
            Do::ReadLink(path) => on!(path, |fs, at| fs.read_link(at)).map(Reply::Bytes),
            Do::Link(existing, follow, path) => {
                let existing = At::root(who, existing.as_bytes());
                on!(path, |fs, at| fs.link(existing, follow, at)).map(|_| Reply::Done)
            }
            Do::Unlink(path) => on!(path, |fs, at| fs.unlink(at)).map(done),
            Do::Rmdir(path) => on!(path, |fs, at| fs.rmdir(at)).map(done),
            Do::Rename(from, path, flags) => {
                let from = At::root(who, from.as_bytes());
                on!(path, |fs, at| fs.rename(from, at, flags)).map(done)
            }
            Do::Open(path, flags, mode) => {
                let file = on!(path, |fs, at| fs.open(at, flags, mode))?;
                volume.close(&file).map(done)
            }
            Do::Read(number, offset, len) => {
                let mut buffer = vec![0; len];
                let file = self.file(number)?;
                let got = match file.try_read(offset, &mut buffer) {
                    Some(got) => got,
                    None => volume.read(file, offset, &mut buffer)?,
                };
                buffer.truncate(got);
                Ok(Reply::Bytes(buffer))
            }
            Do::Write(number, offset, data) => {
                file!(number, |fs, file| fs.write(file, offset, data)).map(done)
            }
            Do::List(number) => {
                let file = self.file(number)?;
                let mut entries = Vec::new();
                volume.run(|fs| fs.read_directory(file, 0, 1 << 20, &mut entries))?;
                Ok(names(
                    entries.into_iter().map(|entry| entry.name.into()).collect(),
                ))
            }
            Do::Flock(number) => {
                let lock = FlockOperation::Shared { wait: false };
                file!(number, |fs, file| fs.flock(file, lock)).map(done)
            }
            Do::Sync(number) => file!(number, |fs, file| fs.fsync(file)).map(done),
            Do::FileStat(number) => file!(number, |fs, file| fs.fstat(file)).map(stat),
            Do::Size(path, size) => on!(path, |fs, at| fs.truncate(at, size)).map(done),
            Do::FileSize(number, size) => {
                file!(number, |fs, file| fs.ftruncate(file, size)).map(done)
            }
            Do::Allocate(number, flags, offset, len) => {
                file!(number, |fs, file| fs.allocate(file, flags, offset, len)).map(done)
            }
            Do::Mode(path, follow, mode) => {
                on!(path, |fs, at| fs.set_mode(at, follow, mode)).map(done)
            }
            Do::FileMode(number, mode) => {
                file!(number, |fs, file| fs.fset_mode(file, mode)).map(done)
            }
            Do::Owner(path, follow, uid, gid) => {
                on!(path, |fs, at| fs.set_owner(at, follow, uid, gid)).map(done)
            }
            Do::FileOwner(number, uid, gid) => {
                file!(number, |fs, file| fs.fset_owner(file, uid, gid)).map(done)
            }
            Do::Times(path, follow, accessed, modified) => {
                on!(path, |fs, at| fs.set_times(at, follow, accessed, modified)).map(done)
            }
            Do::FileTimes(number, accessed, modified) => {
                file!(number, |fs, file| fs.fset_times(file, accessed, modified)).map(done)
            }
            Do::Access(path, follow, wanted) => {
                on!(path, |fs, at| fs.access(at, follow, wanted)).map(done)
            }
            Do::Stat(path, follow) => on!(path, |fs, at| fs.stat(at, follow)).map(stat),
            Do::Get(path, follow, name) => {
                on!(path, |fs, at| fs.xattr_get(at, follow, name.as_bytes())).map(Reply::Bytes)
            }
            Do::Set(path, follow, name, value, mode) => {
                let name = name.as_bytes();
                on!(path, |fs, at| fs.xattr_set(at, follow, name, value, mode)).map(done)
            }
            Do::Remove(path, follow, name) => {
                on!(path, |fs, at| fs.xattr_remove(at, follow, name.as_bytes())).map(done)
            }
            Do::Names(path, follow) => on!(path, |fs, at| fs.xattr_list(at, follow)).map(names),
            Do::Seek(number, offset, true) => {
                file!(number, |fs, file| fs.next_data(file, offset)).map(Reply::Number)
            }
            Do::Seek(number, offset, false) => {
                file!(number, |fs, file| fs.next_hole(file, offset)).map(Reply::Number)
            }
            Do::Copy(from, at, to, offset, len) => {
                let (from, to) = (self.file(from)?, self.file(to)?);
                let copied = volume.run(|fs| fs.copy_range(from, at, to, offset, len));
                copied.map(Reply::Number)
            }
            Do::FileGet(number, name) => {
                file!(number, |fs, file| fs.fxattr_get(file, name.as_bytes())).map(Reply::Bytes)
            }
            Do::FileSet(number, name, value) => {
                let name = name.as_bytes();
                file!(number, |fs, file| fs.fxattr_set(
                    file,
                    name,
                    value,
                    XattrMode::Any
                ))
                .map(done)
            }
        }
    }

    /// Everything there is, without changing any of it.
    pub fn look(&self) -> Tree {
        let mut tree = Tree::new();
        self.look_at("/".into(), &mut tree);
        for (number, file) in &self.files {
            let stat = self.volume.run(|fs| fs.fstat(file)).unwrap();
            tree.insert(format!("file {number}"), node_of(&stat));
        }
        tree
    }

    fn look_at(&self, path: String, tree: &mut Tree) {
        let stat = self.volume.stat(&path).unwrap();
        tree.insert(path.clone(), node_of(&stat));
        if stat.kind != FileKind::Directory {
            return;
        }
        let quietly = OpenFlags::DIRECTORY | OpenFlags::NOATIME;
        let directory = self.volume.open(&path, quietly).unwrap();
        let mut entries = Vec::new();
        self.volume
            .run(|fs| fs.read_directory(&directory, 0, 1 << 20, &mut entries))
            .unwrap();
        self.volume.close(&directory).unwrap();
        for entry in entries {
            let name = String::from_utf8(entry.name.into()).unwrap();
            if name != "." && name != ".." {
                self.look_at(format!("{}/{name}", path.trim_end_matches('/')), tree);
            }
        }
    }
}
