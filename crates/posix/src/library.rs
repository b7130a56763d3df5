//! Calls on a volume through the library.

use crate::answer::{Answer, Attributes, Look, Target, Tree};
use crate::call::{Call, DESCRIPTORS, PEOPLE, Time};
use adit::{Error, Volume};
use adit_base::clock::Timestamp;
use adit_fs::{At, Credentials, FileKind, Follow, OpenFile, OpenFlags, SetTime, Stat, XattrMode};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A volume as a target.
pub(crate) struct Library {
    volume: Volume,
    people: Vec<Credentials>,
    open: [Option<Arc<OpenFile>>; DESCRIPTORS],
}

impl Library {
    pub(crate) fn new(volume: Volume) -> Library {
        Library {
            volume,
            people: PEOPLE
                .iter()
                .map(|(uid, gid, groups)| Credentials::user(*uid, *gid, groups))
                .collect(),
            open: std::array::from_fn(|_| None),
        }
    }

    fn close(&mut self, at: usize) -> Result<bool, Error> {
        match self.open[at].take() {
            Some(file) => self.volume.run(|fs| fs.close(&file)).map(|()| true),
            None => Ok(false),
        }
    }

    fn file(&self, at: usize) -> Result<Arc<OpenFile>, Error> {
        Ok(self.open[at].clone().ok_or(adit::Errno::BADF)?)
    }

    fn stat(&self, path: &str) -> Option<Stat> {
        let at = At::root(&self.people[0], path.as_bytes());
        self.volume.run(|fs| fs.stat(at, Follow::No)).ok()
    }
}

fn bytes(path: &String) -> &[u8] {
    path.as_bytes()
}

fn follow(follow: bool) -> Follow {
    match follow {
        true => Follow::Yes,
        false => Follow::No,
    }
}

fn attributes(stat: &Stat) -> Attributes {
    let is_directory = stat.kind == FileKind::Directory;
    Attributes {
        mode: stat.mode,
        links: stat.links.into(),
        uid: stat.uid,
        gid: stat.gid,
        size: if is_directory { 0 } else { stat.size_bytes },
        rdev: stat.rdev,
    }
}

fn time(time: Time) -> SetTime {
    match time {
        Time::Omit => SetTime::Omit,
        Time::Now => SetTime::Now,
        Time::To(seconds, nanoseconds) => SetTime::To(Timestamp {
            seconds,
            nanoseconds,
        }),
    }
}

impl Target for Library {
    fn name(&self) -> &str {
        "library"
    }

    fn call(&mut self, who: usize, call: &Call) -> Result<Answer, i32> {
        self.answer(who, call).map_err(|error| error.errno().raw())
    }

    fn look(&mut self, path: &str) -> Option<Look> {
        let stat = self.stat(path)?;
        let pair = |time: Timestamp| (time.seconds, time.nanoseconds);
        Some(Look {
            inode: stat.inode,
            modified: pair(stat.modified),
            changed: pair(stat.changed),
        })
    }

    fn tree(&mut self) -> Tree {
        let mut tree = Tree::new();
        self.walk("/", &mut tree);
        tree
    }
}

impl Library {
    fn answer(&mut self, who: usize, call: &Call) -> Result<Answer, Error> {
        let volume = self.volume.clone();
        let who = self.people[who].clone();
        let at = |path| At::root(&who, bytes(path));
        match call {
            Call::Open(place, path, flags, mode) => {
                let file = volume.run(|fs| fs.open(at(path), *flags, *mode))?;
                self.close(*place)?;
                self.open[*place] = Some(file);
            }
            Call::Close(place) => {
                if !self.close(*place)? {
                    return Err(adit::Errno::BADF.into());
                }
            }
            Call::Read(place, offset, len) => {
                let file = self.file(*place)?;
                let mut buffer = vec![0; *len];
                let count = volume.run(|fs| fs.read(&file, *offset, &mut buffer))?;
                buffer.truncate(count);
                return Ok(Answer::Bytes(buffer));
            }
            Call::Write(place, offset, len, byte) => {
                let file = self.file(*place)?;
                let data = vec![*byte; *len];
                volume.run(|fs| fs.write(&file, *offset, &data))?;
                return Ok(Answer::Bytes(len.to_string().into_bytes()));
            }
            Call::Truncate(path, size) => volume.run(|fs| fs.truncate(at(path), *size))?,
            Call::Ftruncate(place, size) => {
                let file = self.file(*place)?;
                volume.run(|fs| fs.ftruncate(&file, *size))?;
            }
            Call::Allocate(place, flags, from, len) => {
                let file = self.file(*place)?;
                volume.run(|fs| fs.allocate(&file, *flags, *from, *len))?;
            }
            Call::Fsync(place) => {
                let file = self.file(*place)?;
                volume.run(|fs| fs.fsync(&file))?;
            }
            Call::Mkdir(path, mode) => {
                volume.run(|fs| fs.mkdir(at(path), *mode))?;
            }
            Call::Mknod(path, kind, mode, device) => {
                volume.run(|fs| fs.mknod(at(path), *kind, *mode, *device))?;
            }
            Call::Rmdir(path) => volume.run(|fs| fs.rmdir(at(path)))?,
            Call::Unlink(path) => volume.run(|fs| fs.unlink(at(path)))?,
            Call::Link(from, to, followed) => {
                volume.run(|fs| fs.link(at(from), follow(*followed), at(to)))?;
            }
            Call::Symlink(target, path) => {
                volume.run(|fs| fs.symlink(target.as_bytes(), at(path)))?;
            }
            Call::Readlink(path) => {
                return Ok(Answer::Bytes(volume.run(|fs| fs.read_link(at(path)))?));
            }
            Call::Rename(from, to, flags) => {
                volume.run(|fs| fs.rename(at(from), at(to), *flags))?;
            }
            Call::Chmod(path, mode) => {
                volume.run(|fs| fs.set_mode(at(path), Follow::Yes, *mode))?;
            }
            Call::Fchmod(place, mode) => {
                let file = self.file(*place)?;
                volume.run(|fs| fs.fset_mode(&file, *mode))?;
            }
            Call::Chown(path, uid, gid, followed) => {
                volume.run(|fs| fs.set_owner(at(path), follow(*followed), *uid, *gid))?;
            }
            Call::SetTimes(path, accessed, modified, followed) => {
                let (accessed, modified) = (time(*accessed), time(*modified));
                volume.run(|fs| fs.set_times(at(path), follow(*followed), accessed, modified))?;
            }
            Call::Access(path, wanted) => {
                volume.run(|fs| fs.access(at(path), Follow::Yes, *wanted))?;
            }
            Call::Stat(path, followed) => {
                let stat = volume.run(|fs| fs.stat(at(path), follow(*followed)))?;
                return Ok(Answer::Attributes(attributes(&stat)));
            }
            Call::Fstat(place) => {
                let file = self.file(*place)?;
                let stat = volume.run(|fs| fs.fstat(&file))?;
                return Ok(Answer::Attributes(attributes(&stat)));
            }
            Call::List(path) => {
                let directory = volume.run(|fs| fs.open(at(path), OpenFlags::DIRECTORY, 0))?;
                let names = self.names(&directory);
                volume.run(|fs| fs.close(&directory))?;
                return Ok(Answer::Names(names?));
            }
            Call::SetXattr(path, name, len, flags) => {
                let mode = match flags {
                    0 => XattrMode::Any,
                    1 => XattrMode::Create,
                    _ => XattrMode::Replace,
                };
                let value = vec![7; *len];
                let name = name.as_bytes();
                volume.run(|fs| fs.xattr_set(at(path), Follow::No, name, &value, mode))?;
            }
            Call::GetXattr(path, name) => {
                let name = name.as_bytes();
                let value = volume.run(|fs| fs.xattr_get(at(path), Follow::No, name))?;
                return Ok(Answer::Bytes(value));
            }
            Call::ListXattr(path) => {
                let mut names = volume.run(|fs| fs.xattr_list(at(path), Follow::No))?;
                names.iter_mut().for_each(|name| name.push(0));
                names.sort_unstable();
                return Ok(Answer::Bytes(names.concat()));
            }
            Call::RemoveXattr(path, name) => {
                let name = name.as_bytes();
                volume.run(|fs| fs.xattr_remove(at(path), Follow::No, name))?;
            }
        }
        Ok(Answer::Done)
    }

    fn names(&self, directory: &OpenFile) -> Result<BTreeMap<Vec<u8>, u32>, Error> {
        let mut entries = Vec::new();
        loop {
            let (before, cookie) = (
                entries.len(),
                entries
                    .last()
                    .map_or(0, |entry: &adit_fs::DirEntry| entry.cookie),
            );
            (self.volume).run(|fs| fs.read_directory(directory, cookie, 4096, &mut entries))?;
            if entries.len() == before {
                break;
            }
        }
        let names = entries
            .into_iter()
            .map(|entry| (entry.name.into_vec(), entry.kind.mode_bits()));
        Ok(names.collect())
    }

    fn walk(&self, path: &str, tree: &mut Tree) {
        let at = At::root(&self.people[0], path.as_bytes());
        let stat = self.stat(path).expect("it was just listed");
        let names = self.volume.run(|fs| fs.xattr_list(at, Follow::No));
        let xattrs = names.expect("listed").into_iter().map(|name| {
            let value = self.volume.run(|fs| fs.xattr_get(at, Follow::No, &name));
            (name, value.expect("it was just listed"))
        });
        let xattrs = xattrs.collect();
        let open = |flags| self.volume.run(|fs| fs.open(at, flags, 0)).expect("opened");
        let content = match stat.kind {
            FileKind::File => {
                let file = open(OpenFlags::NOATIME);
                let mut bytes = Vec::new();
                for from in crate::ends(stat.size_bytes) {
                    let mut buffer = vec![0; crate::END_BYTES];
                    let read = self.volume.run(|fs| fs.read(&file, from, &mut buffer));
                    bytes.extend_from_slice(&buffer[..read.expect("readable")]);
                }
                self.volume.run(|fs| fs.close(&file)).expect("closed");
                Answer::Bytes(bytes)
            }
            FileKind::Symlink => {
                Answer::Bytes(self.volume.run(|fs| fs.read_link(at)).expect("a link"))
            }
            FileKind::Directory => {
                let directory = open(OpenFlags::DIRECTORY);
                let names = self.names(&directory).expect("names");
                self.volume.run(|fs| fs.close(&directory)).expect("closed");
                for name in names.keys() {
                    let name = String::from_utf8_lossy(name);
                    if !matches!(&*name, "." | "..") {
                        self.walk(&format!("{}/{name}", path.trim_end_matches('/')), tree);
                    }
                }
                Answer::Names(names)
            }
            _ => Answer::Done,
        };
        tree.insert(path.into(), (attributes(&stat), content, xattrs));
    }
}
