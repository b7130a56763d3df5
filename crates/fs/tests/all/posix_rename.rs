//! Renaming: every sort of thing onto every other sort of thing, with every flag.

use crate::common::linux::{Pair, same_as_linux};
use crate::common::*;
use adit_fs::*;
use adit_operations::Call as Op;

const NONE: RenameFlags = RenameFlags::empty();

fn root() -> Credentials {
    Credentials::user(0, 0, &[])
}

/// A path of every sort: things that exist, hard links of each other, full and empty directories,
/// ancestors, names that don't exist, with slashes and dots behind.
const PATHS: [&str; 36] = [
    "/a",
    "/a/",
    "/a/.",
    "/a/..",
    "/a/b",
    "/a/b/",
    "/a/b/c",
    "/a/b/c/new",
    "/a/b/new",
    "/a/new",
    "/a/new/",
    "/a/f",
    "/a/f/",
    "/a/f/x",
    "/a/same",
    "/e",
    "/e/",
    "/e/..",
    "/e/new",
    "/g",
    "/l",
    "/l/",
    "/l/new",
    "/to_b",
    "/to_b/",
    "/to_b/c",
    "/p",
    "/p/",
    "/missing",
    "/missing/",
    "/missing/x",
    "/",
    ".",
    "..",
    "",
    "/e/../a/b",
];

fn plant(pair: &mut Pair) {
    for path in ["/a", "/a/b", "/a/b/c", "/e"] {
        pair.ask(&root(), Op::Mkdir(path, 0o755));
    }
    for path in ["/a/f", "/g"] {
        pair.ask(&root(), Op::OpenClose(path, CREATE, 0o644));
    }
    pair.ask(&root(), Op::Link("/a/f", Follow::No, "/a/same"));
    pair.ask(&root(), Op::Symlink("a/f", "/l"));
    pair.ask(&root(), Op::Symlink("a/b", "/to_b"));
    pair.ask(&root(), Op::Mknod("/p", FileKind::Fifo, 0o644, 0));
}

/// Removes everything.
fn clear(pair: &mut Pair) {
    let names = [
        "a", "b", "c", "e", "f", "g", "l", "p", "new", "same", "to_b", "missing", "x",
    ];
    let mut paths: Vec<String> = vec![String::new()];
    let mut from = 0;
    for _ in 0..5 {
        let to = paths.len();
        for directory in from..to {
            for name in names {
                let path = format!("{}/{name}", paths[directory]);
                if pair.exists(&path) {
                    paths.push(path);
                }
            }
        }
        from = to;
    }
    for path in paths.iter().skip(1).rev() {
        pair.ask(&root(), Op::Unlink(path));
        pair.ask(&root(), Op::Rmdir(path));
    }
}

#[test]
fn renaming_anything_to_anything_is_as_on_linux() {
    let all = RenameFlags::all();
    for flags in [NONE, RenameFlags::NO_REPLACE, RenameFlags::EXCHANGE, all] {
        same_as_linux(|pair| {
            plant(pair);
            for from in PATHS {
                for to in PATHS {
                    if pair.ask(&root(), Op::Rename(from, to, flags)) {
                        pair.look();
                        clear(pair);
                        plant(pair);
                    }
                }
            }
            pair.look();
        });
    }
}

#[test]
fn other_operations_on_such_paths_are_as_on_linux() {
    same_as_linux(|pair| {
        plant(pair);
        for path in PATHS {
            for step in [
                Op::Mkdir(path, 0o755),
                Op::Mknod(path, FileKind::File, 0o644, 0),
                Op::Symlink("t", path),
                Op::Link("/g", Follow::No, path),
                Op::Link(path, Follow::No, "/new"),
                Op::Unlink(path),
                Op::Rmdir(path),
                Op::OpenClose(path, CREATE, 0o644),
                Op::OpenClose(path, CREATE | OpenFlags::EXCLUSIVE, 0o644),
                Op::OpenClose(
                    path,
                    OpenFlags::PATH | OpenFlags::CREATE | OpenFlags::TRUNCATE,
                    0,
                ),
                Op::OpenClose(path, OpenFlags::CREATE | OpenFlags::DIRECTORY, 0o644),
                Op::Truncate(path, 7),
            ] {
                // Nodes that only the kernel can open can't be compared.
                let is_pipe = matches!(step, Op::OpenClose("/p", flags, _) if !flags.contains(OpenFlags::PATH));
                if is_pipe {
                    continue;
                }
                if pair.ask(&root(), step) {
                    pair.look();
                    clear(pair);
                    plant(pair);
                }
            }
        }
    });
}
