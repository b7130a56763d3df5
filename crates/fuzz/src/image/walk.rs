//! Everything that is done with a volume that may say anything: look at all of it, check it, change
//! it, close it.

use crate::volume::{self, SELF, at};
use adit_base::Result;
use adit_block::Device;
use adit_fs::{
    AllocateFlags, At, BlobId, Change, DirEntry, FileKind, Follow, Fs, OpenFlags, RenameFlags,
    SetTime, XattrMode,
};
use adit_store::{StoreOptions, Survive};
use std::collections::HashSet;
use std::sync::Arc;

/// Names that are looked at; a directory may list itself.
const NAMES_MAX: usize = 600;
/// Places of a file that are read.
const PIECES_MAX: usize = 24;

/// Opens the volume, and if that works does all there is to do.
pub(crate) fn exercise(device: Arc<dyn Device>, options: &StoreOptions) {
    let Ok(engine) = volume::open(device.clone(), options) else {
        let options = StoreOptions {
            read_only: true,
            survive: Survive::Off,
            ..options.clone()
        };
        if let Ok(engine) = volume::open(device, &options) {
            let _ = engine.run(check);
            let _ = engine.run(|fs| async { Ok(look(fs).await) });
            let _ = engine.shutdown(|fs| fs.close_volume());
        }
        return;
    };
    let _ = engine.run(check);
    let files = engine.run(|fs| async { Ok(look(fs).await) });
    let files = files.unwrap_or_default();
    let _ = engine.run(|fs| async {
        change(fs, &files).await;
        Ok(())
    });
    let _ = engine.run(check);
    assert!(!engine.poisoned(), "an operation panicked");
    let _ = engine.shutdown(|fs| fs.close_volume());
}

async fn check(fs: &Fs) -> Result<()> {
    let _ = fs.check_names().await;
    let _ = fs.store().check(&mut |_, _| ()).await;
    let _ = fs.store().info().await;
    let _ = fs.statfs().await;
    Ok(())
}

/// Looks at everything below the root; answers the paths.
async fn look(fs: &Fs) -> Vec<(Vec<u8>, FileKind)> {
    let mut found: Vec<(Vec<u8>, FileKind)> = vec![(b"/".to_vec(), FileKind::Directory)];
    let mut seen = HashSet::new();
    let mut next = 0;
    while let Some((path, kind)) = found.get(next).cloned() {
        next += 1;
        let _ = fs.stat(at(&path), Follow::Yes).await;
        look_at_attributes(fs, &path).await;
        match kind {
            FileKind::Directory => {
                for entry in list(fs, &path).await {
                    let dots = matches!(&entry.name[..], b"." | b"..");
                    let again = entry.kind == FileKind::Directory && !seen.insert(entry.inode);
                    if !dots && !again && found.len() < NAMES_MAX {
                        let mut inside = path.clone();
                        inside.push(b'/');
                        inside.extend_from_slice(&entry.name);
                        found.push((inside, entry.kind));
                    }
                }
            }
            FileKind::Symlink => drop(fs.read_link(at(&path)).await),
            _ => {}
        }
        // Whatever its name says that it is.
        let _ = read(fs, at(&path), OpenFlags::empty()).await;
        if next % 8 == 0 {
            let _ = read(fs, at(&path), OpenFlags::DIRECT).await;
        }
    }
    let mut blobs = Vec::new();
    let _ = fs
        .store()
        .for_each_blob(&mut |id, _| {
            blobs.push(id);
            Ok(())
        })
        .await;
    for id in blobs.into_iter().take(NAMES_MAX) {
        let _ = read_blob(fs, id).await;
    }
    found
}

async fn look_at_attributes(fs: &Fs, path: &[u8]) {
    if let Ok(names) = fs.xattr_list(at(path), Follow::No).await {
        for name in names {
            let _ = fs.xattr_get(at(path), Follow::No, &name).await;
        }
    }
}

/// All entries of a directory. That this ends is part of what is tested.
async fn list(fs: &Fs, path: &[u8]) -> Vec<DirEntry> {
    let mut entries: Vec<DirEntry> = Vec::new();
    let Ok(directory) = fs.open(at(path), OpenFlags::DIRECTORY, 0).await else {
        return entries;
    };
    loop {
        let cookie = entries.last().map_or(0, |entry| entry.cookie);
        let before = entries.len();
        let read = fs.read_directory(&directory, cookie, 4096, &mut entries);
        if read.await.is_err() || entries.len() == before {
            break;
        }
        for pair in entries[before.saturating_sub(1)..].windows(2) {
            assert!(
                pair[0].cookie < pair[1].cookie,
                "a directory read backwards"
            );
        }
    }
    let _ = fs.close(&directory).await;
    entries
}

async fn read_blob(fs: &Fs, id: BlobId) -> Result<()> {
    let file = fs.open_blob(id, OpenFlags::empty()).await?;
    let read = read_open(fs, &file).await;
    fs.close(&file).await?;
    read
}

async fn read(fs: &Fs, at: At<'_>, flags: OpenFlags) -> Result<()> {
    let file = fs.open(at, flags | OpenFlags::NOFOLLOW, 0).await?;
    let read = read_open(fs, &file).await;
    fs.close(&file).await?;
    read
}

/// Its beginning, its end, and where it says that data is.
async fn read_open(fs: &Fs, file: &adit_fs::OpenFile) -> Result<()> {
    let mut buffer = vec![0; 16 << 10];
    let size = file.size_bytes();
    fs.read(file, 0, &mut buffer).await?;
    let _ = fs.read(file, size.saturating_sub(5000), &mut buffer).await;
    let _ = fs.read_borrowed(file, size / 2, 100).await;
    let mut from = 0;
    for _ in 0..PIECES_MAX {
        let data = fs.next_data(file, from).await?;
        let hole = fs.next_hole(file, data).await?;
        assert!(from <= data && data < hole, "data from {data} to {hole}");
        let _ = fs.read(file, data, &mut buffer[..4096]).await;
        from = hole;
    }
    Ok(())
}

/// Changes what is there, makes something new, deletes both.
async fn change(fs: &Fs, found: &[(Vec<u8>, FileKind)]) {
    let _ = make(fs, b"/new").await;
    let _ = make(fs, b"/d/new").await;
    for i in 0..12 {
        let path = format!("/many/a name that wasn't there before: {i}");
        let _ = fs.mkdir(at(path.as_bytes()), 0o700).await;
    }
    for (index, (path, kind)) in found.iter().enumerate().take(60) {
        if *kind == FileKind::File && index % 2 == 0 {
            let _ = scribble(fs, path).await;
        }
    }
    let _ = fs.syncfs().await;
    let flags = RenameFlags::empty();
    let _ = fs.rename(at(b"/d/one"), at(b"/new"), flags).await;
    let _ = fs.rename(at(b"/d/e"), at(b"/many/e"), flags).await;
    let flags = RenameFlags::EXCHANGE;
    let _ = fs.rename(at(b"/a"), at(b"/d/new"), flags).await;
    let _ = fs.link(at(b"/sparse"), Follow::No, at(b"/link")).await;
    for (path, kind) in found.iter().rev() {
        let removed = match kind {
            FileKind::Directory => fs.rmdir(at(path)).await,
            _ => fs.unlink(at(path)).await,
        };
        if removed.is_err() {
            let _ = fs.truncate(at(path), 1).await;
        }
    }
    let _ = fs.store().commit().await;
    let _ = fs.store().checkpoint().await;
    let _ = make(fs, b"/newer").await;
    let _ = fs.syncfs().await;
}

async fn make(fs: &Fs, path: &[u8]) -> Result<()> {
    let flags = OpenFlags::CREATE | OpenFlags::READ_WRITE;
    let file = fs.open(At::root(&SELF, path), flags, 0o644).await?;
    let written = async {
        fs.write(&file, 0, &[1; 10_000]).await?;
        fs.append(&file, &[2; 100]).await?;
        fs.fsync(&file).await?;
        fs.write(&file, 1 << 30, &[3; 5000]).await
    };
    let _ = written.await;
    let _ = fs
        .xattr_set(at(path), Follow::No, b"user.new", &[4; 50], XattrMode::Any)
        .await;
    fs.close(&file).await
}

/// Each way to change content.
async fn scribble(fs: &Fs, path: &[u8]) -> Result<()> {
    let file = fs.open(at(path), OpenFlags::READ_WRITE, 0).await?;
    let size = file.size_bytes();
    let _ = fs.write(&file, size / 2, &[5; 5000]).await;
    let ranges = [100, 9000].map(|offset| (offset, &[9; 300][..]));
    let _ = fs.write_atomic(&file, &ranges, false).await;
    let _ = fs.append(&file, &[6; 100]).await;
    let _ = fs.fdatasync(&file).await;
    let hole = AllocateFlags::PUNCH_HOLE | AllocateFlags::KEEP_SIZE;
    let _ = fs.allocate(&file, hole, 4000, 20_000).await;
    let _ = fs
        .allocate(&file, AllocateFlags::ZERO_RANGE, 100, 9000)
        .await;
    let _ = fs
        .allocate(&file, AllocateFlags::empty(), 8192, 30_000)
        .await;
    let _ = fs.copy_range(&file, 0, &file, 100_000, 10_000).await;
    let _ = fs.ftruncate(&file, size / 3).await;
    let _ = fs.ftruncate(&file, 1 << 33).await;
    let _ = fs
        .change_file(&file, Change::Times(SetTime::Now, SetTime::Omit))
        .await;
    let _ = fs.change_file(&file, Change::Mode(0o4755)).await;
    let _ = fs
        .fxattr_set(&file, b"user.one", &[7; 200], XattrMode::Any)
        .await;
    let _ = fs.fxattr_remove(&file, b"user.two").await;
    let _ = fs.fsync(&file).await;
    fs.close(&file).await
}
