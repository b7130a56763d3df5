//! Carrying out one operation of a plan on the volume.

use crate::machine::Machine;
use crate::model::Answer;
use crate::op::{Name, Numbered, Op, SLOTS, stamped};
use adit_base::{Errno, Result};
use adit_fs::{
    At, Change, Credentials, Follow, Fs, OpenFile, OpenFlags, RenameFlags, SharedNames, Stage,
    Stat, Synced,
};
use adit_reactor::Handle;
use adit_store::{AtomicRange, XattrMode};
use std::sync::Arc;

/// The end of an operation: its result, and the file in the slot.
pub(crate) struct Outcome {
    pub(crate) answer: Answer,
    pub(crate) opened: Option<(usize, Option<Arc<OpenFile>>)>,
}

/// Target of the symbolic link at a path: leads nowhere.
pub(crate) fn target(path: &str) -> String {
    format!("nowhere/{}", path.replace('/', "-"))
}

/// Begins an operation of a task; `slots` are the files that it has open.
pub(crate) fn begin(
    machine: &Machine,
    task: usize,
    op: &Numbered,
    slots: &mut [Option<Arc<OpenFile>>; SLOTS],
) -> Handle<Outcome> {
    let Numbered { number, op } = op.clone();
    // Opening takes the slot's file, to close it first.
    let taken = match &op {
        Op::Open { slot, .. } | Op::Close { slot } => slots[*slot].take(),
        _ => None,
    };
    let files: [Option<Arc<OpenFile>>; SLOTS] = slots.clone();
    let workers = machine.workers();
    let number_of = |slot: &usize| {
        slots[*slot]
            .as_ref()
            .map_or(0, |file| workers.number_of(file))
    };
    let worker = match (&op, &taken) {
        (Op::Close { .. }, Some(file)) => workers.number_of(file),
        (op, _) => match place(op) {
            Place::Name(name) => {
                let (who, path) = (Credentials::process(), name.path(task));
                workers.near(At::root(&who, path.as_bytes())).0
            }
            Place::Slot(slot) => number_of(slot),
            Place::Volume => 0,
        },
    };
    let names = workers.names().clone();
    workers.engine(worker).spawn(move |fs| async move {
        let opened_slot = match &op {
            Op::Open { slot, .. } | Op::Close { slot } => Some(*slot),
            _ => None,
        };
        let done = carry_out((fs, &names), task, number, &op, &files, taken).await;
        let (answer, file) = match done {
            Ok((answer, file)) => (answer, file),
            Err(error) => (Answer::Failed(error.errno()), None),
        };
        for file in files.iter().flatten() {
            compare_views((fs, &names), file).await;
        }
        Ok(Outcome {
            answer,
            opened: opened_slot.map(|slot| (slot, file)),
        })
    })
}

/// The name or file by which a caller finds the worker of an operation.
enum Place<'o> {
    /// The directory of this name.
    Name(&'o Name),
    /// The open file of this slot.
    Slot(&'o usize),
    /// Any worker would do.
    Volume,
}

fn place(op: &Op) -> Place<'_> {
    match op {
        Op::Open { name, .. }
        | Op::FsyncDirectory { name }
        | Op::Mkdir { name }
        | Op::Rmdir { name }
        | Op::Unlink { name }
        | Op::Link { name, .. }
        | Op::Rename { name, .. }
        | Op::Symlink { name }
        | Op::SetMode { name, .. }
        | Op::SetXattr { name, .. }
        | Op::RemoveXattr { name, .. } => Place::Name(name),
        Op::Close { slot }
        | Op::Write { slot, .. }
        | Op::Append { slot, .. }
        | Op::Atomic { slot, .. }
        | Op::Together { slot, .. }
        | Op::Truncate { slot, .. }
        | Op::Allocate { slot, .. }
        | Op::Copy { to: slot, .. }
        | Op::Read { slot, .. }
        | Op::Fsync { slot }
        | Op::Fdatasync { slot } => Place::Slot(slot),
        Op::SyncAll | Op::Checkpoint | Op::Grow { .. } | Op::Idle { .. } => Place::Volume,
    }
}

/// Checks that reads of a file without the worker agree with the worker.
async fn compare_views((fs, names): (&Fs, &SharedNames), file: &OpenFile) {
    let (id, names) = (file.blob_id(), names.clone());
    let compared = fs.within(id, move |fs| {
        Box::pin(async move {
            let who = Credentials::process();
            let at = At::inode(&who, id);
            if let Some(shared) = names.stat(at, Follow::No) {
                // Every page is there: it doesn't wait.
                let own = fs.stat(at, Follow::No).await;
                let plain = |stat: Result<Stat>| stat.map_err(|error| error.errno());
                assert_eq!(plain(shared), plain(own), "read without the worker");
            }
            Ok(())
        })
    });
    // Of a volume that has failed nothing is read.
    let _ = compared.await;
}

/// A place as it is seen from its directory.
fn near<'p>(names: &SharedNames, at: At<'p>) -> At<'p> {
    names.near(at).map_or(at, |(_, near)| near)
}

/// Closes a file in its worker.
async fn close(fs: &Fs, file: Arc<OpenFile>) -> Result<()> {
    fs.within(file.blob_id(), move |fs| {
        Box::pin(async move { fs.close(&file).await })
    })
    .await
}

/// The ranges of an atomic write, with their bytes.
fn data_of(number: u32, ranges: &[(u64, u64)]) -> Vec<(u64, Vec<u8>)> {
    let data = |(offset, len): &(u64, u64)| (*offset, stamped(number, *offset, *len));
    ranges.iter().map(data).collect()
}

fn borrowed(data: &[(u64, Vec<u8>)]) -> Vec<AtomicRange<'_>> {
    data.iter()
        .map(|(offset, data)| (*offset, &data[..]))
        .collect()
}

async fn carry_out(
    (fs, names): (&Fs, &SharedNames),
    task: usize,
    number: u32,
    op: &Op,
    files: &[Option<Arc<OpenFile>>; SLOTS],
    taken: Option<Arc<OpenFile>>,
) -> Result<(Answer, Option<Arc<OpenFile>>)> {
    let who = Credentials::process();
    let file = |slot: &usize| {
        files[*slot]
            .as_ref()
            .ok_or(adit_base::Error::new(Errno::BADF))
    };
    /// The path of a task's name, until the end of the statement.
    macro_rules! at {
        ($name:expr) => {
            near(names, At::root(&who, $name.path(task).as_bytes()))
        };
    }
    let mut answer = Answer::Done;
    match op {
        Op::Open { name, flags, .. } => {
            if let Some(old) = taken {
                close(fs, old).await?;
            }
            let file = fs.open(at!(name), *flags, 0o644).await?;
            return Ok((answer, Some(file)));
        }
        Op::Close { .. } => {
            let file = taken.ok_or(adit_base::Error::new(Errno::BADF))?;
            fs.close(&file).await?;
        }
        Op::Write { slot, offset, len } => {
            let file = file(slot)?;
            if file.flags().contains(OpenFlags::APPEND) {
                // Where it will be isn't known yet: append's bytes begin at the end that the model
                // knows.
                let data = append_bytes(file, number, *len);
                answer = Answer::At(fs.append(file, &data).await?);
            } else {
                let data = stamped(number, *offset, *len);
                // Like a client. No task waits for the end of the grant: each step of a task is
                // alone.
                if !file.try_write(*offset, &data).written {
                    fs.write(file, *offset, &data).await?;
                }
            }
        }
        Op::Append { slot, len } => {
            let file = file(slot)?;
            let data = append_bytes(file, number, *len);
            answer = Answer::At(fs.append(file, &data).await?);
        }
        Op::Atomic {
            slot,
            ranges,
            durable,
        } => {
            let data = data_of(number, ranges);
            fs.write_atomic(file(slot)?, &borrowed(&data), *durable)
                .await?;
        }
        Op::Together {
            slot,
            ranges,
            name,
            to,
            gone,
        } => {
            let data = data_of(number, ranges);
            let names = |stage: &mut Stage<'_, '_>| {
                stage.rename(at!(name), at!(to), RenameFlags::empty())?;
                stage.unlink(at!(gone))
            };
            fs.write_with(file(slot)?, &borrowed(&data), false, names)
                .await?;
        }
        Op::Truncate { slot, size } => fs.ftruncate(file(slot)?, *size).await?,
        Op::Allocate {
            slot,
            flags,
            offset,
            len,
        } => fs.allocate(file(slot)?, *flags, *offset, *len).await?,
        Op::Copy {
            from,
            from_offset,
            to,
            to_offset,
            len,
        } => {
            let (from, to) = (file(from)?, file(to)?);
            let copied = fs
                .copy_range(from, *from_offset, to, *to_offset, *len)
                .await?;
            answer = Answer::Copied(copied);
        }
        Op::Read { slot, offset, len } => {
            let mut bytes = vec![0; *len as usize];
            let read = fs.read(file(slot)?, *offset, &mut bytes).await?;
            bytes.truncate(read);
            answer = Answer::Bytes(bytes);
        }
        Op::Fsync { slot } => fs.fsync(file(slot)?).await?,
        Op::Fdatasync { slot } => {
            let file = file(slot)?;
            match file.try_sync().synced {
                Synced::Durable => {}
                Synced::Home => fs.flush_granted(file).await?,
                Synced::No => fs.fdatasync(file).await?,
            }
        }
        Op::FsyncDirectory { name } => {
            let directory = fs.open(at!(name), OpenFlags::DIRECTORY, 0).await?;
            fs.within(directory.blob_id(), move |fs| {
                Box::pin(async move {
                    let synced = fs.fsync(&directory).await;
                    fs.close(&directory).await?;
                    synced
                })
            })
            .await?;
        }
        Op::SyncAll => fs.syncfs().await?,
        Op::Checkpoint => fs.store().checkpoint().await?,
        Op::Grow { bytes } => fs.store().grow(*bytes).await?,
        Op::Mkdir { name } => drop(fs.mkdir(at!(name), 0o755).await?),
        Op::Rmdir { name } => fs.rmdir(at!(name)).await?,
        Op::Unlink { name } => fs.unlink(at!(name)).await?,
        Op::Link { name, to } => drop(fs.link(at!(name), Follow::No, at!(to)).await?),
        Op::Rename { name, to, flags } => fs.rename(at!(name), at!(to), *flags).await?,
        Op::Symlink { name } => {
            let target = target(&name.path(task));
            fs.symlink(target.as_bytes(), at!(name)).await?;
        }
        Op::SetMode { name, mode } => {
            fs.change(at!(name), Follow::No, Change::Mode(*mode))
                .await?
        }
        Op::SetXattr { name, key, len } => {
            let (key, value) = (format!("user.{key}"), stamped(number, 0, *len));
            let (key, any) = (key.as_bytes(), XattrMode::Any);
            fs.xattr_set(at!(name), Follow::No, key, &value, any)
                .await?;
        }
        Op::RemoveXattr { name, key } => {
            let key = format!("user.{key}");
            fs.xattr_remove(at!(name), Follow::No, key.as_bytes())
                .await?;
        }
        Op::Idle { .. } => drop(fs.statfs().await?),
    }
    Ok((answer, None))
}

/// A task is the only one that changes its files, so it knows where an append will begin.
fn append_bytes(file: &OpenFile, number: u32, len: u64) -> Vec<u8> {
    stamped(number, file.size_bytes(), len)
}
