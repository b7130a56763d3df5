//! The world around the image changes between the death and the opening: it was copied, put back,
//! moved, is reached in another way, or looked at. Acknowledged writes are there, or the opening is
//! refused with a message and everything is there later.

use super::mappings::{one_blob, rewrite, version, version_with};
use super::moment::{
    Mappings, Moment, RING_PAGES, VOLUME_BYTES, field, formatted, open_alone, open_with, options,
    superblock, unprotected,
};
use super::world::content;
use crate::checksums::repair;
use crate::rig::{PAGE, assert_clean, close, create, drop_dead, pattern};
use adit_base::{Errno, Error};
use adit_block::{Device, FaultDevice, OverlayDevice};
use adit_store::{BlobId, StoreOptions, Takeover};
use std::sync::Arc;

fn with(takeover: Takeover) -> StoreOptions {
    StoreOptions {
        takeover,
        ..options()
    }
}

/// Opens the volume like `adit ls`: nothing is written.
fn look(device: &Arc<FaultDevice>, id: BlobId, case: &str) -> adit_base::Result<Vec<u8>> {
    let read_only = StoreOptions {
        read_only: true,
        ..options()
    };
    let engine = match open_with(device.clone(), &read_only) {
        Err(error) if error.errno() == Errno::ROFS => {
            let in_memory = StoreOptions {
                in_memory: true,
                ..read_only
            };
            let over: Arc<dyn Device> = OverlayDevice::new(device.clone());
            open_with(over, &in_memory)?
        }
        opened => opened?,
    };
    let found = content(&engine, id).unwrap_or_else(|error| panic!("{case}: {error}"));
    let written = engine.run(|store| async move {
        let blob = store.blob(id).await?;
        store.write(&blob, 0, b"no").await
    });
    assert_eq!(written.unwrap_err().errno(), Errno::ROFS, "{case}");
    close(engine);
    Ok(found)
}

/// Image and mappings as bytes, to check that they are unchanged.
fn all(device: &FaultDevice, mappings: &Mappings) -> (u64, Vec<Vec<u8>>) {
    let files = mappings.paths();
    let bytes = files.iter().map(|path| std::fs::read(path).unwrap());
    (superblock(&device.image()).sequence, bytes.collect())
}

fn refusal(device: &Arc<FaultDevice>, options: &StoreOptions, errno: Errno, case: &str) -> Error {
    let error = open_with(device.clone(), options).map(drop);
    let error = error.expect_err(case);
    assert_eq!(error.errno(), errno, "{case}: {error}");
    error
}

/// A volume is open, a crash-consistent copy of it is made, work goes on, the process is killed,
/// and the copy is put back over the image. (The mapping was replayed over the older image: 65
/// problems, no root directory.)
#[test]
fn an_older_image_that_was_put_back_is_refused() {
    for checkpoint in [false, true] {
        let case = format!("checkpoint: {checkpoint}");
        let device = formatted(VOLUME_BYTES);
        let mappings = Mappings::of(&device);
        let engine = open_alone(device.clone(), &options()).unwrap();
        let id = engine.run(create).unwrap();
        rewrite(&engine, id, 1);
        let older = device.image();
        rewrite(&engine, id, 2);
        // Something that the journal hears of.
        let other = engine.run(create).unwrap();
        rewrite(&engine, other, 2);
        if checkpoint {
            engine.run(|store| store.checkpoint()).unwrap();
        }
        let write = engine.run(|store| async move {
            for _ in 0..20 {
                create(store).await?;
            }
            let blob = store.blob(id).await?;
            store.write(&blob, 0, &pattern(50_000, 3)).await
        });
        write.unwrap();
        let left = Moment::of(&device, &mappings);
        drop_dead(engine);
        let newer = left.restore(&device, &mappings);
        let device = newer.reopen(older);
        let before = all(&device, &mappings);
        for options in [options(), with(Takeover::Adopt)] {
            let error = refusal(&device, &options, Errno::OWNERDEAD, &case);
            assert!(error.what().contains("older"), "{error}");
            assert!(error.what().contains("pages of metadata"), "{error}");
        }
        let error = look(&device, id, &case).unwrap_err();
        assert_eq!(error.errno(), Errno::OWNERDEAD);
        assert_eq!(all(&device, &mappings), before, "{case}");
        // The right image is put back.
        assert_eq!(version(&left.restore(&device, &mappings), id, &case), 3);
        assert!(mappings.paths().is_empty());
        // Or the user chooses the older one.
        for (takeover, stays) in [(Takeover::Leave, 1), (Takeover::Discard, 0)] {
            drop(left.restore(&device, &mappings));
            let device = device.reopen(device.image());
            assert_eq!(version_with(&device, id, &with(takeover), &case), 1);
            assert_eq!(mappings.paths().len(), stays, "{case}, {takeover:?}");
            // The mapping left is no reason to refuse it again.
            assert_eq!(version(&device, id, &case), 1);
        }
    }
}

/// An image that was closed before the last opening of the volume is refused while that opening's
/// data is left.
#[test]
fn an_image_of_an_earlier_opening_that_was_put_back_is_refused() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let engine = open_alone(device.clone(), &options()).unwrap();
    let id = engine.run(create).unwrap();
    rewrite(&engine, id, 1);
    close(engine);
    let closed = device.image();
    let engine = open_alone(device.clone(), &options()).unwrap();
    let write = engine.run(|store| async move {
        let blob = store.blob(id).await?;
        store.write(&blob, 0, &pattern(50_000, 2)).await
    });
    write.unwrap();
    let left = Moment::of(&device, &mappings);
    drop_dead(engine);
    let device = left.restore(&device, &mappings).reopen(closed);
    let before = all(&device, &mappings);
    refusal(&device, &options(), Errno::OWNERDEAD, "closed");
    assert!(look(&device, id, "closed").is_err());
    assert_eq!(all(&device, &mappings), before);
    assert_eq!(version(&left.restore(&device, &mappings), id, "newer"), 2);
}

/// SIGKILL; `cp r.adit bak.adit`; `adit ls bak.adit`. (The copy took the mapping: 20 acknowledged
/// files were gone from the original.)
#[test]
fn a_copy_never_takes_what_belongs_to_the_original() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, left) = one_blob(&device, &mappings);
    for takeover in [Takeover::Leave, Takeover::Discard, Takeover::Adopt] {
        let device = left.restore(&device, &mappings);
        let copy = device.copy(left.image.clone(), 2);
        let before = all(&device, &mappings);
        // A look shows the copy's content.
        assert_eq!(look(&copy, id, "copy").unwrap(), pattern(50_000, 1));
        let error = refusal(&copy, &options(), Errno::OWNERDEAD, "copy");
        for word in ["another file", "leave", "adopt", "fault:"] {
            assert!(error.what().contains(word), "{word}: {error}");
        }
        assert_eq!(all(&device, &mappings), before);
        // The copy must not delete the original's mapping.
        if takeover != Takeover::Adopt {
            assert_eq!(version_with(&copy, id, &with(takeover), "copy"), 1);
            assert_eq!(version(&copy, id, "copy again"), 1);
            assert_eq!(version(&device, id, "the original"), 2);
        } else {
            // It isn't a copy: the image was moved.
            assert_eq!(version_with(&copy, id, &with(takeover), "moved"), 2);
        }
        assert!(mappings.paths().is_empty());
    }
}

/// A mapping of another image that holds nothing is no reason to refuse anything.
#[test]
fn a_copy_of_a_volume_that_was_synced_needs_no_words() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let engine = open_alone(device.clone(), &options()).unwrap();
    let id = engine.run(create).unwrap();
    rewrite(&engine, id, 1);
    let left = Moment::of(&device, &mappings);
    drop_dead(engine);
    let device = left.restore(&device, &mappings);
    let copy = device.copy(left.image.clone(), 2);
    assert_eq!(version(&copy, id, "copy"), 1);
    assert_eq!(version(&device, id, "original"), 1);
}

/// An image and a loop device of it, or a file system without locks: only the bytes show that
/// another process has the volume open. (Two writers: 600 synced files were gone, and a check said
/// "clean".)
#[test]
fn a_living_owner_is_found_however_the_opener_came_to_the_bytes() {
    for options in [options(), unprotected()] {
        let case = format!("{:?}", options.survive);
        let device = formatted(VOLUME_BYTES);
        let mappings = Mappings::of(&device);
        let engine = open_alone(device.clone(), &options).unwrap();
        let id = engine.run(create).unwrap();
        rewrite(&engine, id, 1);
        assert_eq!(mappings.paths().len(), 1, "{case}");
        // Another device object on the same storage, then one with another identity.
        for device in [
            device.reopen(device.image()),
            device.copy(device.image(), 2),
        ] {
            let identity = device.identity().number;
            let before = all(&device, &mappings).0;
            for takeover in [Takeover::Complete, Takeover::Adopt] {
                let options = with(takeover);
                let error = refusal(&device, &options, Errno::BUSY, &case);
                let pid = std::process::id().to_string();
                assert!(error.what().contains(&pid), "{error}");
            }
            assert_eq!(all(&device, &mappings).0, before, "{case}");
            if identity == 1 {
                for takeover in [Takeover::Leave, Takeover::Discard] {
                    refusal(&device, &with(takeover), Errno::BUSY, &case);
                }
                let error = look(&device, id, &case).unwrap_err();
                assert_eq!(error.errno(), Errno::BUSY);
            } else {
                // A copy beyond doubt: a look at it is allowed, and an opening if the user says
                // that it is one.
                assert_eq!(look(&device, id, &case).unwrap(), pattern(50_000, 1));
                assert_eq!(version_with(&device, id, &with(Takeover::Leave), &case), 1);
            }
        }
        rewrite(&engine, id, 2);
        close(engine);
        assert!(mappings.paths().is_empty(), "{case}");
        assert_eq!(version(&device, id, &case), 2);
    }
}

/// ls, stat, cat, du, df, info, get on a volume whose process was killed: everything is seen, and
/// nothing changes.
#[test]
fn a_look_after_a_kill_sees_everything_and_writes_nothing() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, left) = one_blob(&device, &mappings);
    let device = left.restore(&device, &mappings);
    let before = all(&device, &mappings);
    let requests = device.counts().writes;
    for _ in 0..3 {
        assert_eq!(look(&device, id, "killed").unwrap(), pattern(50_000, 2));
    }
    assert_eq!(device.counts().writes, requests);
    assert_eq!(all(&device, &mappings), before);
    assert_eq!(version(&device, id, "then"), 2);
    // After a power cut as well.
    let cut = left.restore(&device, &mappings);
    mappings.delete();
    assert_eq!(look(&cut, id, "cut").unwrap(), pattern(50_000, 1));
    assert_eq!(superblock(&cut.image()).sequence, before.0);
}

/// A device that lost both superblocks of an opening, so that the older ones say *closed*. (`ls`
/// and `open` succeeded in silence on stale metadata, and might have written.)
#[test]
fn a_closed_superblock_is_not_believed_when_the_journal_goes_on_behind_it() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let engine = open_alone(device.clone(), &options()).unwrap();
    let id = engine.run(create).unwrap();
    rewrite(&engine, id, 1);
    close(engine);
    let mut closed = vec![0; 2 * PAGE as usize];
    device.image().read(0, &mut closed);
    let engine = open_alone(device.clone(), &options()).unwrap();
    rewrite(&engine, id, 2);
    // Something that the journal hears of.
    let other = engine.run(create).unwrap();
    rewrite(&engine, other, 2);
    let mut image = device.image();
    drop_dead(engine);
    mappings.delete();
    image.write(0, &closed);
    let device = device.reopen(image);
    let error = refusal(&device, &options(), Errno::UCLEAN, "for writing");
    assert!(
        error.what().contains("newest superblock is lost"),
        "{error}"
    );
    let error = look(&device, id, "for reading").unwrap_err();
    assert_eq!(error.errno(), Errno::UCLEAN);
    // Only the closed state counts.
    let engine = open_alone(formatted(VOLUME_BYTES), &unprotected()).unwrap();
    assert_clean(&engine);
    close(engine);
}

/// The device damaged the last page of the journal, which nothing behind it proves. The killed
/// process knew that it was durable. (The volume counted as an older copy, and neither an opening
/// nor a repair went on.)
#[test]
fn a_damaged_end_of_the_journal_is_repaired_and_no_older_image() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let engine = open_alone(device.clone(), &options()).unwrap();
    let id = engine.run(create).unwrap();
    rewrite(&engine, id, 1);
    let write = engine.run(|store| async move {
        let blob = store.blob(id).await?;
        store.write(&blob, 0, &pattern(50_000, 2)).await
    });
    write.unwrap();
    let mut left = Moment::of(&device, &mappings);
    drop_dead(engine);
    let word = |at: usize| u64::from_ne_bytes(left.mappings[0].1[at..at + 8].try_into().unwrap());
    let last = word(field::HORIZON) - 1;
    assert!(
        superblock(&left.image).tail <= last,
        "recovery needs the page"
    );
    let place = (2 + last % RING_PAGES) * PAGE;
    let mut page = [0; PAGE as usize];
    left.image.read(place, &mut page);
    page[2000..2100].fill(0xaa);
    left.image.write(place, &page);
    let device = left.restore(&device, &mappings);
    let error = refusal(&device, &options(), Errno::UCLEAN, "damaged");
    assert!(error.what().contains("check --repair"), "{error}");
    assert_eq!(mappings.paths().len(), 1);
    let (engine, findings) = repair(&device);
    assert!(!findings.list.is_empty());
    close(engine);
    // Only the damaged page's changes are lost, as the finding says.
    let engine = open_with(device, &options()).unwrap();
    assert_clean(&engine);
    close(engine);
}

/// The process that took over was killed too; then the first mapping turned up with another image.
#[test]
fn a_chain_of_takeovers_belongs_to_one_image() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, left) = one_blob(&device, &mappings);
    let device = left.restore(&device, &mappings);
    // Dies as soon as the superblock says that it takes over.
    device.cut_after(12);
    let died = open_alone(device.clone(), &options());
    assert!(died.is_err(), "it died");
    let again = Moment::of(&device, &mappings);
    let image = device.image();
    let device = device.reopen(image.clone());
    drop(again.restore(&device, &mappings));
    let device = device.reopen(image.clone());
    let copy = device.copy(image, 2);
    refusal(&copy, &options(), Errno::OWNERDEAD, "a copy");
    assert_eq!(version(&device, id, "the original"), 2);
    assert!(mappings.paths().is_empty());
}
