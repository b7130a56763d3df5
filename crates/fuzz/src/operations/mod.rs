//! Operations on a file system and on a model of one: what they answer, and what is there afterwards, is the same. Then the
//! volume is clean, and still so after closing and opening, or after recovery.

mod model;

use crate::image;
use crate::input::Input;
use crate::volume::{self, PAGE, at};
use adit_base::Errno;
use adit_block::MemoryDevice;
use adit_fs::{AllocateFlags, DirEntry, Follow, Fs, OpenFile, OpenFlags, RenameFlags, XattrMode};
use adit_reactor::Engine;
use adit_store::Store;
use model::{Answer, Model, NOWHERE, Node, Over};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

const VOLUME_BYTES: u64 = 64 << 20;
/// No sequence of so many fills the volume.
const OPERATIONS_MAX: usize = 200;
const HANDLES: usize = 4;

/// Six bytes are an operation. The highest bit of the first says whether the volume has checksums of its data.
pub(crate) fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let data_checksums = data.first().is_some_and(|byte| byte & 0x80 != 0);
    let mut run = Run::new(data_checksums);
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        run.one(&mut input);
    }
    run.assert_same();
    run.remount(true);
    run.engine.shutdown(|fs| fs.close_volume()).expect("closed");
}

struct Run {
    device: Arc<MemoryDevice>,
    engine: Arc<Engine<Fs>>,
    model: Model,
    open: [Option<(Arc<OpenFile>, usize)>; HANDLES],
    /// Makes each write's bytes its own.
    stamp: u8,
}

/// A path of one to three names.
fn path(number: u8) -> String {
    let name = |bits: u8| match bits % 4 {
        0 => "a".to_owned(),
        1 => "b".to_owned(),
        2 => "c".to_owned(),
        _ => "d".repeat(200),
    };
    let names = [number, number >> 2, number >> 4].map(name);
    let depth = usize::from(number >> 6).min(2);
    format!("/{}", names[..=depth].join("/"))
}

impl Run {
    fn new(data_checksums: bool) -> Run {
        let device = volume::device(VOLUME_BYTES);
        let volume_id = u128::from_le_bytes(*b"adit-fuzz-steps\0");
        image::fresh(&device, volume_id, data_checksums).expect("formatted");
        let options = volume::options(false);
        let engine = volume::start(device.clone(), |reactor| async move {
            Fs::format(Store::open(reactor, &options).await?).await
        });
        Run {
            device,
            engine: engine.expect("a fresh file system"),
            model: Model::new(),
            open: Default::default(),
            stamp: 0,
        }
    }

    fn run<'a, T, F, Fut>(&'a self, operation: F) -> Answer<T>
    where
        T: Send,
        F: FnOnce(&'a Fs) -> Fut + Send,
        Fut: Future<Output = adit_base::Result<T>> + 'a,
    {
        self.engine.run(operation).map_err(|error| error.errno())
    }

    /// Opens in both, and keeps it if that works.
    fn open(&mut self, place: usize, path: &str, create: bool) {
        self.close(place);
        let mut flags = OpenFlags::READ_WRITE | OpenFlags::NOFOLLOW;
        flags.set(OpenFlags::CREATE, create);
        let found = self.run(|fs| fs.open(at(path.as_bytes()), flags, 0o644));
        let expected = self.model.open(path, create);
        let errors = (found.as_ref().err(), expected.as_ref().err());
        assert_eq!(errors.0, errors.1, "open {path}, create: {create}");
        self.open[place] = found.ok().zip(expected.ok());
    }

    fn close(&mut self, place: usize) {
        if let Some((file, _)) = self.open[place].take() {
            self.run(|fs| fs.close(&file)).expect("closed");
        }
    }

    fn close_all(&mut self) {
        (0..HANDLES).for_each(|place| self.close(place));
    }

    fn data(&mut self, len: usize) -> Vec<u8> {
        self.stamp = self.stamp.wrapping_add(1).max(1);
        vec![self.stamp; len]
    }

    fn one(&mut self, input: &mut Input<'_>) {
        let operation = input.byte();
        let (a, b) = (path(input.byte()), path(input.byte()));
        let (x, y) = (input.half(), input.byte());
        let place = usize::from(y) % HANDLES;
        // Mostly small and near, sometimes pages and far away.
        let offset = match y >> 6 {
            0 => usize::from(x % 64),
            1 => usize::from(x),
            2 => usize::from(x % 64) * PAGE as usize,
            _ => usize::from(x) * 16,
        };
        let len = match y >> 4 & 3 {
            0 => usize::from(y % 16) + 1,
            1 => 700,
            2 => PAGE as usize,
            _ => 9000,
        };
        match operation % 24 {
            0 => self.open(place, &a, true),
            1 => self.open(place, &a, false),
            2 => self.close(place),
            3 | 4 => self.write(place, offset, len),
            5 => self.append(place, len),
            6 => self.write_atomic(place, offset, len),
            7 => {
                let found = self.run(|fs| fs.truncate(at(a.as_bytes()), offset as u64));
                assert_eq!(found, self.model.truncate(&a, offset), "truncate {a}");
            }
            8 => {
                let found = self.run(|fs| fs.mkdir(at(a.as_bytes()), 0o755)).map(drop);
                assert_eq!(found, self.model.mkdir(&a), "mkdir {a}");
            }
            9 => {
                let found = self.run(|fs| fs.rmdir(at(a.as_bytes())));
                assert_eq!(found, self.model.rmdir(&a), "rmdir {a}");
            }
            10 => {
                let found = self.run(|fs| fs.unlink(at(a.as_bytes())));
                assert_eq!(found, self.model.unlink(&a), "unlink {a}");
            }
            11 => {
                let found = self
                    .run(|fs| fs.link(at(a.as_bytes()), Follow::No, at(b.as_bytes())))
                    .map(drop);
                assert_eq!(found, self.model.link(&a, &b), "link {a} to {b}");
            }
            12 | 13 => self.rename(&a, &b, x),
            14 => {
                let found = self
                    .run(|fs| fs.symlink(NOWHERE, at(a.as_bytes())))
                    .map(drop);
                assert_eq!(found, self.model.symlink(&a), "symlink {a}");
            }
            15 => self.allocate(place, x, offset, len),
            16 => self.copy(place, usize::from(x) % HANDLES, offset, len),
            17 => self.attribute(&a, x, len),
            18 => {
                if let Some((file, _)) = &self.open[place] {
                    self.run(|fs| fs.fsync(file)).expect("synced");
                }
            }
            19 => self.run(|fs| fs.syncfs()).expect("synced"),
            20 => self
                .run(|fs| fs.store().checkpoint())
                .expect("a checkpoint was made"),
            21 => self.read(place, offset, len),
            22 => self.remount(x % 2 == 0),
            _ => self.many(&a, x),
        }
    }

    fn write(&mut self, place: usize, offset: usize, len: usize) {
        let data = self.data(len);
        if let Some((file, number)) = &self.open[place] {
            self.run(|fs| fs.write(file, offset as u64, &data))
                .expect("written");
            self.model.write(*number, offset, &data);
        }
    }

    fn append(&mut self, place: usize, len: usize) {
        let data = self.data(len);
        if let Some((file, number)) = &self.open[place] {
            let found = self.run(|fs| fs.append(file, &data)).expect("appended");
            let end = self.model.content(*number).len();
            assert_eq!(found, end as u64);
            self.model.write(*number, end, &data);
        }
    }

    fn write_atomic(&mut self, place: usize, offset: usize, len: usize) {
        let data = self.data(len);
        if let Some((file, number)) = &self.open[place] {
            let ranges = [(offset as u64, &data[..]), (offset as u64 / 2, &data[..1])];
            let found = self.run(|fs| fs.write_atomic(file, &ranges, len == 700));
            match found {
                Ok(()) => {
                    self.model.write(*number, offset, &data);
                    self.model.write(*number, offset / 2, &data[..1]);
                }
                Err(errno) => assert_eq!(errno, Errno::TOOBIG),
            }
        }
    }

    fn allocate(&mut self, place: usize, mode: u16, offset: usize, len: usize) {
        let Some((file, number)) = &self.open[place] else {
            return;
        };
        let (keep, zero) = (AllocateFlags::KEEP_SIZE, AllocateFlags::ZERO_RANGE);
        let modes = [
            AllocateFlags::empty(),
            keep,
            AllocateFlags::PUNCH_HOLE | keep,
            zero,
            zero | keep,
        ];
        let mode = modes[usize::from(mode) % modes.len()];
        self.run(|fs| fs.allocate(file, mode, offset as u64, len as u64))
            .expect("allocated");
        let content = self.model.content(*number);
        if !mode.contains(keep) {
            content.resize(content.len().max(offset + len), 0);
        }
        if mode.intersects(AllocateFlags::PUNCH_HOLE | zero) {
            let end = content.len().min(offset + len);
            if offset < end {
                content[offset..end].fill(0);
            }
        }
    }

    fn copy(&mut self, from: usize, to: usize, offset: usize, len: usize) {
        let (Some((source, number)), Some((target, other))) = (&self.open[from], &self.open[to])
        else {
            return;
        };
        let there = offset / 3;
        let (wide, place) = (offset as u64, there as u64);
        let found = self.run(|fs| fs.copy_range(source, wide, target, place, len as u64));
        let content = self.model.content(*number).clone();
        let count = content.len().saturating_sub(offset).min(len);
        let overlap = number == other && offset < there + count && there < offset + count;
        let expected = if overlap {
            Err(Errno::INVAL)
        } else {
            let end = offset.min(content.len()) + count;
            self.model.write(*other, there, &content[end - count..end]);
            Ok(count as u64)
        };
        assert_eq!(
            found,
            expected,
            "copy from {offset} of {} to {there}",
            content.len()
        );
    }

    fn rename(&mut self, a: &str, b: &str, how: u16) {
        let (over, flags) = match how % 4 {
            0 => (Over::Refuse, RenameFlags::NO_REPLACE),
            1 => (Over::Exchange, RenameFlags::EXCHANGE),
            _ => (Over::Replace, RenameFlags::empty()),
        };
        let found = self.run(|fs| fs.rename(at(a.as_bytes()), at(b.as_bytes()), flags));
        let expected = self.model.rename(a, b, over);
        assert_eq!(found, expected, "rename {a} to {b}, {over:?}");
    }

    fn attribute(&mut self, path: &str, x: u16, len: usize) {
        let name = format!("user.{}", x % 4);
        let value = self.data(len % 1000);
        // Links have no attributes of this kind.
        let is_link = |run: &Run| {
            let stat = run.run(|fs| fs.stat(at(path.as_bytes()), Follow::No));
            stat.is_ok_and(|stat| stat.kind == adit_fs::FileKind::Symlink)
        };
        if is_link(self) {
            return;
        }
        let (text, place) = (name.as_bytes(), at(path.as_bytes()));
        let number = self.model.find(path);
        if x & 4 == 0 {
            let set = self.run(|fs| fs.xattr_set(place, Follow::No, text, &value, XattrMode::Any));
            assert_eq!(set, number.map(drop), "set {name} of {path}");
            if let Ok(number) = number {
                self.model.attributes(number).insert(name, value);
            }
        } else {
            let removed = self.run(|fs| fs.xattr_remove(place, Follow::No, text));
            let expected = number.and_then(|number| {
                let removed = self.model.attributes(number).remove(&name);
                removed.map(drop).ok_or(Errno::NODATA)
            });
            assert_eq!(removed, expected, "remove {name} of {path}");
        }
    }

    /// Many names in a directory, so that it is more than a page; or they go.
    fn many(&mut self, path: &str, x: u16) {
        for i in 0..x % 64 {
            let inside = format!("{path}/{}{i}", "e".repeat(100));
            if x & 0x8000 == 0 {
                let found = self.run(|fs| fs.symlink(NOWHERE, at(inside.as_bytes())));
                assert_eq!(found.map(drop), self.model.symlink(&inside), "{inside}");
            } else {
                let found = self.run(|fs| fs.unlink(at(inside.as_bytes())));
                assert_eq!(found, self.model.unlink(&inside), "{inside}");
            }
        }
    }

    fn read(&mut self, place: usize, offset: usize, len: usize) {
        if let Some((file, number)) = &self.open[place] {
            let mut buffer = vec![0xee; len];
            let found = self.run(|fs| fs.read(file, offset as u64, &mut buffer));
            let content = self.model.content(*number);
            let from = offset.min(content.len());
            let expected = &content[from..content.len().min(offset + len)];
            assert_eq!(found, Ok(expected.len()));
            assert!(&buffer[..expected.len()] == expected, "read from {offset}");
        }
    }

    /// Closes the volume and opens it again; or only syncs it, and recovers it.
    fn remount(&mut self, clean: bool) {
        if clean {
            self.close_all();
            self.engine
                .shutdown(|fs| fs.close_volume())
                .expect("closed");
        } else {
            self.run(|fs| fs.syncfs()).expect("synced");
            self.open = Default::default();
            let ended = self.engine.shutdown(|_| async { Ok(()) });
            ended.expect("nothing was done");
        }
        let engine = volume::mount(self.device.clone(), &volume::options(false));
        self.engine = engine.expect("mounted again");
        self.assert_same();
    }

    /// The volume is clean, and holds what the model does.
    fn assert_same(&mut self) {
        let names = self.run(|fs| fs.check_names()).expect("checked");
        assert!(names.problems.is_empty(), "{:?}", names.problems);
        let report = self.run(|fs| async { fs.store().check(&mut |_, _| ()).await });
        let report = report.expect("checked");
        assert!(report.is_clean(), "{:?}", report.problems);
        for (path, node, attributes) in self.model.tree() {
            self.assert_node(&path, &node);
            if !matches!(node, Node::Symlink) {
                assert_eq!(self.attributes(&path), attributes, "attributes of {path}");
            }
        }
    }

    fn attributes(&self, path: &str) -> BTreeMap<String, Vec<u8>> {
        let place = at(if path.is_empty() {
            b"/"
        } else {
            path.as_bytes()
        });
        let names = self
            .run(|fs| fs.xattr_list(place, Follow::No))
            .expect("listed");
        let get = |name: Vec<u8>| {
            let value = self.run(|fs| fs.xattr_get(place, Follow::No, &name));
            let name = String::from_utf8(name).expect("ours");
            (name, value.expect("it was listed"))
        };
        names.into_iter().map(get).collect()
    }

    fn assert_node(&self, path: &str, node: &Node) {
        let place = at(if path.is_empty() {
            b"/"
        } else {
            path.as_bytes()
        });
        match node {
            Node::Directory(expected) => {
                let directory = self
                    .run(|fs| fs.open(place, OpenFlags::DIRECTORY, 0))
                    .expect("opened");
                let mut entries: Vec<DirEntry> = Vec::new();
                loop {
                    let (before, cookie) =
                        (entries.len(), entries.last().map_or(0, |last| last.cookie));
                    self.run(|fs| fs.read_directory(&directory, cookie, 1000, &mut entries))
                        .expect("listed");
                    if entries.len() == before {
                        break;
                    }
                }
                self.run(|fs| fs.close(&directory)).expect("closed");
                let name = |entry: DirEntry| String::from_utf8(entry.name.into_vec());
                let names = entries.into_iter().map(|entry| name(entry).expect("ours"));
                let mut names: Vec<String> =
                    names.filter(|name| name != "." && name != "..").collect();
                names.sort_unstable();
                let expected: Vec<&String> = expected.keys().collect();
                assert_eq!(
                    names.iter().collect::<Vec<_>>(),
                    expected,
                    "names in {path}"
                );
            }
            Node::File(expected) => {
                let file = self
                    .run(|fs| fs.open(place, OpenFlags::empty(), 0))
                    .expect("opened");
                let mut content = vec![0xee; expected.len() + 1];
                let len = self
                    .run(|fs| fs.read(&file, 0, &mut content))
                    .expect("read");
                self.run(|fs| fs.close(&file)).expect("closed");
                let differs = content[..len]
                    .iter()
                    .zip(expected)
                    .position(|(a, b)| a != b);
                assert_eq!((len, differs), (expected.len(), None), "content of {path}");
            }
            Node::Symlink => {
                let target = self.run(|fs| fs.read_link(place)).expect("read");
                assert_eq!(target, NOWHERE, "{path}");
            }
        }
    }
}
