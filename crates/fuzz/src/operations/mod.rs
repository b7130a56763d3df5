//! Operations on a file system and on a model of one: what they answer, and what is there
//! afterwards, is the same. Then the volume is clean, and still so after closing and opening, or
//! after recovery.

mod model;

use crate::image;
use crate::input::Input;
use crate::volume::{self, PAGE, SELF};
use adit_base::Errno;
use adit_block::MemoryDevice;
use adit_fs::{AllocateFlags, Follow, Fs, OpenFlags, RenameFlags, XattrMode};
use adit_operations::{Answer, Call, Files, Library, Target};
use model::{Model, NOWHERE};
use std::future::Future;
use std::sync::Arc;

const VOLUME_BYTES: u64 = 64 << 20;
/// No sequence of so many fills the volume.
const OPERATIONS_MAX: usize = 200;
const SLOTS: usize = 4;

/// Six bytes are an operation. The highest bit of the first says whether the volume has checksums
/// of its data.
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
    run.reopen(true);
    let engine = run.library.engine;
    engine.shutdown(|fs| fs.close_volume()).expect("closed");
}

struct Run {
    device: Arc<MemoryDevice>,
    library: Library,
    model: Model,
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
        let engine = volume::format(device.clone(), &volume::options(false));
        Run {
            device,
            library: Library {
                engine: engine.expect("a fresh file system"),
                workers: None,
                files: Files::default(),
            },
            model: Model::new(),
            stamp: 0,
        }
    }

    fn run<'a, T, F, Fut>(&'a self, operation: F) -> T
    where
        T: Send,
        F: FnOnce(&'a Fs) -> Fut + Send,
        Fut: Future<Output = adit_base::Result<T>> + 'a,
    {
        self.library.engine.run(operation).expect("it works")
    }

    /// Performs an operation on both sides.
    fn same(&mut self, operation: Call<'_>) {
        let found = self.library.perform(&SELF, &operation).map(Answer::plain);
        // How much is one atomic write is the library's to say.
        if matches!(operation, Call::WriteAtomic(..)) && found == Err(Errno::TOOBIG) {
            return;
        }
        let expected = self.model.perform(&SELF, &operation);
        assert!(
            found == expected,
            "{operation}: {found:?}, not {expected:?}"
        );
    }

    fn close_all(&mut self) {
        for slot in self.library.files.slots() {
            self.same(Call::Close(slot));
        }
    }

    fn one(&mut self, input: &mut Input<'_>) {
        let operation = input.byte();
        let (a, b) = (&*path(input.byte()), &*path(input.byte()));
        let (x, y) = (input.half(), input.byte());
        let slot = usize::from(y) % SLOTS;
        // Mostly small and near, sometimes pages and far away.
        let offset = match y >> 6 {
            0 => u64::from(x % 64),
            1 => u64::from(x),
            2 => u64::from(x % 64) * PAGE,
            _ => u64::from(x) * 16,
        };
        let len = match y >> 4 & 3 {
            0 => usize::from(y % 16) + 1,
            1 => 700,
            2 => PAGE as usize,
            _ => 9000,
        };
        self.stamp = self.stamp.wrapping_add(1).max(1);
        let data = &*vec![self.stamp; len];
        match operation % 24 {
            kind @ (0 | 1) => {
                let mut flags = OpenFlags::READ_WRITE | OpenFlags::NOFOLLOW;
                flags.set(OpenFlags::CREATE, kind == 0);
                self.same(Call::Close(slot));
                self.same(Call::Open(slot, a, flags, 0o644));
            }
            2 => self.same(Call::Close(slot)),
            3 | 4 => self.same(Call::Write(slot, offset, data)),
            5 => self.same(Call::Append(slot, data)),
            6 => {
                let ranges = [(offset, data), (offset / 2, &data[..1])];
                self.same(Call::WriteAtomic(slot, &ranges, len == 700));
            }
            7 => self.same(Call::Truncate(a, offset)),
            8 => self.same(Call::Mkdir(a, 0o755)),
            9 => self.same(Call::Rmdir(a)),
            10 => self.same(Call::Unlink(a)),
            11 => self.same(Call::Link(a, Follow::No, b)),
            12 | 13 => {
                let flags = match x % 4 {
                    0 => RenameFlags::NO_REPLACE,
                    1 => RenameFlags::EXCHANGE,
                    _ => RenameFlags::empty(),
                };
                self.same(Call::Rename(a, b, flags));
            }
            14 => self.same(Call::Symlink(NOWHERE, a)),
            15 => {
                let (keep, zero) = (AllocateFlags::KEEP_SIZE, AllocateFlags::ZERO_RANGE);
                let modes = [
                    AllocateFlags::empty(),
                    keep,
                    AllocateFlags::PUNCH_HOLE | keep,
                    zero,
                    zero | keep,
                ];
                let mode = modes[usize::from(x) % modes.len()];
                self.same(Call::Fallocate(slot, mode, offset, len as u64));
            }
            16 => {
                let to = usize::from(x) % SLOTS;
                self.same(Call::CopyRange(slot, offset, to, offset / 3, len as u64));
            }
            17 => {
                let name = &*format!("user.{}", x % 4);
                self.same(match x & 4 {
                    0 => {
                        let value = &data[..len % 1000];
                        Call::Setxattr(a, Follow::No, name, value, XattrMode::Any)
                    }
                    _ => Call::Removexattr(a, Follow::No, name),
                });
            }
            18 => self.same(Call::Fsync(slot)),
            19 => self.same(Call::Syncfs),
            20 => self.run(|fs| fs.store().checkpoint()),
            21 => self.same(Call::Read(slot, offset, len)),
            22 => self.reopen(x % 2 == 0),
            _ => {
                // Many names in a directory, so that it is more than a page; or they go.
                for i in 0..x % 64 {
                    let inside = &*format!("{a}/{}{i}", "e".repeat(100));
                    self.same(match x & 0x8000 {
                        0 => Call::Symlink(NOWHERE, inside),
                        _ => Call::Unlink(inside),
                    });
                }
            }
        }
    }

    /// Closes the volume and opens it again; or only syncs it, and recovers it.
    fn reopen(&mut self, clean: bool) {
        let engine = self.library.engine.clone();
        if clean {
            self.close_all();
            engine.shutdown(|fs| fs.close_volume()).expect("closed");
        } else {
            self.same(Call::Syncfs);
            self.library.files = Files::default();
            self.model.open.clear();
            let ended = engine.shutdown(|_| async { Ok(()) });
            ended.expect("nothing was done");
        }
        let engine = volume::open(self.device.clone(), &volume::options(false));
        self.library.engine = engine.expect("opened again");
        self.assert_same();
    }

    /// The volume is clean, and holds what the model does.
    fn assert_same(&mut self) {
        let names = self.run(|fs| fs.check_names());
        assert!(names.problems.is_empty(), "{:?}", names.problems);
        let report = self.run(|fs| async { fs.store().check(&mut |_, _| ()).await });
        assert!(report.is_clean(), "{:?}", report.problems);
        let (found, expected) = (self.library.tree(&SELF), self.model.tree(&SELF));
        assert!(
            found.keys().eq(expected.keys()),
            "{found:?}, not {expected:?}"
        );
        for (path, node) in &expected {
            assert_eq!(found[path].plain(), *node, "{path}");
            let found = self.library.content(&SELF, path, node);
            let expected = self.model.content(&SELF, path, node);
            assert!(found == expected, "{path}: {found:?}, not {expected:?}");
        }
    }
}
