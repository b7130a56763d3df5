//! Operations that overlap on one worker: suspended at a known place while another one runs.

use crate::common::*;
use adit_base::Errno;
use adit_base::clock::Timestamp;
use adit_block::{Latency, MemoryConfig, MemoryDevice};
use adit_fs::*;
use adit_reactor::sync::join_all;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Polls once; the result, if it is done.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        })
    })
    .await
}

/// How long a write of a [`slow`] device takes.
const WRITE: Duration = Duration::from_millis(60);

fn slow() -> Arc<MemoryDevice> {
    MemoryDevice::new(MemoryConfig {
        latency: Some(Latency {
            read_us: 0,
            write_us: WRITE.as_micros() as u32,
            flush_us: 0,
            bytes_per_us: 0,
        }),
        ..MemoryConfig::default()
    })
    .unwrap()
}

/// A write that waited for room in the cache while its empty file was closed and unlinked went on
/// in a slot that was another file's by then: that file got its bytes.
#[test]
fn a_write_whose_file_is_deleted_meanwhile_reaches_no_other_file() {
    let volume = Volume::format(memory(64 << 20), 8 << 20);
    let big = volume.open("/big", CREATE).unwrap();
    let small: Vec<_> = (0..9)
        .map(|number| volume.open(&format!("/s{number}"), CREATE).unwrap())
        .collect();
    let file = volume.open("/f", CREATE).unwrap();
    let (written, slots) = volume
        .run(async |fs: &Fs| {
            for at in 0..3 {
                fs.write(&big, at << 20, &stamped(1, at << 20, 1 << 20))
                    .await?;
            }
            for small in &small {
                fs.write(small, 0, &stamped(1, 0, 30 * 4096)).await?;
            }
            let data = stamped(2, 0, 8192);
            let mut write = pin!(fs.write(&file, 0, &data));
            // More than a half of the cache is dirty.
            assert!(poll_once(write.as_mut()).await.is_none());
            fs.close(&file).await?;
            fs.unlink(at("/f")).await?;
            let other = fs.open(at("/g"), CREATE, 0o644).await?;
            let written = write.await.map_err(|error| error.errno());
            fs.write(&other, 4000, &[1]).await?;
            fs.close(&other).await?;
            Ok((written, (file.blob_id().slot, other.blob_id().slot)))
        })
        .unwrap();
    assert_eq!(slots.0, slots.1, "the slot is used again");
    assert_eq!(written, Err(Errno::STALE));
    let mut expected = vec![0; 4001];
    expected[4000] = 1;
    assert!(volume.get("/g").unwrap() == expected);
    volume.sync().unwrap();
    assert!(volume.get("/g").unwrap() == expected);
    assert_eq!(volume.check(), [""; 0]);
}

/// A write-back noted the time of the last write, then waited for a page of the map; it overwrote a
/// time set meanwhile with the one it had noted.
#[test]
fn a_time_set_during_an_fsync_stays() {
    let volume = Volume::format(memory(64 << 20), 8 << 20);
    let big = volume.open("/big", CREATE).unwrap();
    for at in 0..20 {
        volume
            .write(&big, at << 20, &stamped(1, at << 20, 1 << 20))
            .unwrap();
    }
    // Enough extents for a separate page.
    let file = volume.open("/f", CREATE).unwrap();
    for number in 0..40 {
        volume.write(&file, number * 8192, &[1; 4096]).unwrap();
        volume.write(&big, 0, &[1; 4096]).unwrap();
        volume.fsync(&file).unwrap();
    }
    volume.sync().unwrap();
    volume.run(|fs| fs.store().checkpoint()).unwrap();
    let time = Timestamp {
        seconds: 77,
        nanoseconds: 7,
    };
    let results = volume
        .run(async |fs: &Fs| {
            fs.append(&file, &[2; 100]).await?;
            // Clean pages leave the cache: the slot, and the leaf of the map.
            let mut buffer = vec![0; 1 << 20];
            for at in 0..40 {
                fs.read(&big, (at % 20) << 20, &mut buffer).await?;
            }
            let set = async {
                fs.change_file(&file, Change::Times(SetTime::Omit, SetTime::To(time)))
                    .await
            };
            let both: [Pin<Box<dyn Future<Output = adit_base::Result<()>>>>; 2] =
                [Box::pin(fs.fsync(&file)), Box::pin(set)];
            Ok(join_all(both)
                .await
                .into_iter()
                .all(|result| result.is_ok()))
        })
        .unwrap();
    assert!(results);
    assert_eq!(volume.stat("/f").unwrap().modified, time);
    volume.fsync(&file).unwrap();
    assert_eq!(volume.stat("/f").unwrap().modified, time);
}

/// Renaming over a file first writes the source's data home; but where a write-back had it in its
/// hands already, and the time was set since, the source looked clean, and the name could become
/// durable before the data.
#[test]
fn a_rename_over_a_file_waits_for_the_data_that_is_being_written() {
    let volume = Volume::format(slow(), 16 << 20);
    volume.put("/old", b"old").unwrap();
    let file = volume.open("/new", CREATE).unwrap();
    volume.write(&file, 0, &stamped(1, 0, 65536)).unwrap();
    volume.sync().unwrap();
    volume.run(|fs| fs.store().checkpoint()).unwrap();
    volume.write(&file, 0, &stamped(2, 0, 65536)).unwrap();
    let took = volume
        .run(async |fs: &Fs| {
            let started = Instant::now();
            fs.start_write_back(&file).await?;
            fs.store().reactor().yield_now().await;
            fs.change_file(&file, Change::Times(SetTime::Now, SetTime::Now))
                .await?;
            fs.rename(at("/new"), at("/old"), RenameFlags::empty())
                .await?;
            Ok(started.elapsed())
        })
        .unwrap();
    assert!(took >= WRITE, "{took:?}");
    assert!(volume.get("/old").unwrap() == stamped(2, 0, 65536));
}

/// A blob is there until it is deleted, and then it is ENOENT; in between it was ESTALE.
#[test]
fn a_blob_that_is_being_deleted_cannot_be_opened() {
    let volume = Volume::format(slow(), 16 << 20);
    let opened_meanwhile = |_| {
        let id = volume.run(|fs| fs.create_blob()).unwrap();
        let file = volume.run(|fs| fs.open_blob(id, RW)).unwrap();
        volume.write(&file, 0, &stamped(1, 0, 65536)).unwrap();
        let opened = volume.run(async |fs: &Fs| {
            fs.start_write_back(&file).await?;
            fs.store().reactor().yield_now().await;
            fs.close(&file).await?;
            let mut delete = pin!(fs.delete_blob(id));
            // The write-back goes first, unless it is over: this thread waited for a core.
            if let Some(deleted) = poll_once(delete.as_mut()).await {
                deleted?;
                return Ok(None);
            }
            let opened = fs.open_blob(id, RO).await.map(drop);
            delete.await?;
            Ok(Some(opened.map_err(|error| error.errno())))
        });
        opened.unwrap()
    };
    assert_eq!((0..20).find_map(opened_meanwhile), Some(Err(Errno::NOENT)));
    assert_eq!(volume.check(), [""; 0]);
}

/// A copy whose last piece is a hole set the size of its target, which had been shorter before: it
/// cut off bytes that another write had appended meanwhile.
#[test]
fn a_copy_that_ends_in_a_hole_cuts_off_nothing() {
    const END: u64 = 1 << 20;
    let volume = Volume::format(slow(), 16 << 20);
    let from = volume.open("/from", CREATE).unwrap();
    let to = volume.open("/to", CREATE).unwrap();
    let found = volume
        .run(async |fs: &Fs| {
            fs.ftruncate(&from, END).await?;
            let content = stamped(1, 0, END as usize);
            fs.write(&to, 0, &content).await?;
            let mut first = pin!(fs.fsync(&to));
            assert!(poll_once(first.as_mut()).await.is_none());
            // It waits for the first sync, and then, for its last step, for the second one.
            let mut copy = pin!(fs.copy_range(&from, 0, &to, END, END));
            assert!(poll_once(copy.as_mut()).await.is_none());
            fs.write(&to, 0, &content).await?;
            let mut second = pin!(fs.fsync(&to));
            assert!(poll_once(second.as_mut()).await.is_none());
            first.await?;
            assert!(poll_once(copy.as_mut()).await.is_none());
            fs.write(&to, 2 * END, b"later").await?;
            second.await?;
            assert_eq!(copy.await?, END);
            let mut found = [0; 10];
            let len = fs.read(&to, 2 * END, &mut found).await?;
            Ok(found[..len].to_vec())
        })
        .unwrap();
    assert_eq!(found, b"later");
    assert_eq!(volume.check(), [""; 0]);
}
