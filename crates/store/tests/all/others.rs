//! Another machine that shares the device opens the volume, or overwrites it: locks of this machine
//! don't keep it away.

use crate::rig::{
    assert_clean, close, create, drop_dead, errno, format_as, formatted, new_blob, open, pattern,
};
use adit_base::Errno;
use adit_store::{MkfsOptions, SyncKind};

const VOLUME_BYTES: u64 = 32 << 20;

/// Both synced and closed well, and the second one's writes were gone, without a word.
#[test]
fn who_finds_the_superblock_of_another_opening_writes_no_more() {
    let device = formatted(VOLUME_BYTES);
    let first = open(&device);
    new_blob(&first, 5000, 1);
    let second = open(&device);
    let blob = new_blob(&second, 300_000, 2);
    close(second);
    let ended = first.run(|store| async { store.checkpoint().await });
    assert_eq!(errno(ended), Errno::STALE);
    let info = first.run(|store| store.info()).expect("figures");
    assert!(info.failure.expect("it failed").contains("nother process"));
    let closed = first.shutdown(|store| async { store.close().await });
    assert!(closed.is_err());
    let third = open(&device);
    let content = third.run(|store| async {
        let blob = store.blob(blob).await?;
        let mut content = vec![0; 300_000];
        store.read(&blob, 0, &mut content).await?;
        Ok(content)
    });
    assert!(content.unwrap() == pattern(300_000, 2));
    assert_clean(&third);
    close(third);
}

/// Nor does closing, when nothing was to be written before.
#[test]
fn an_idle_opening_does_not_close_what_another_one_has_opened() {
    let device = formatted(VOLUME_BYTES);
    let first = open(&device);
    let second = open(&device);
    new_blob(&second, 300_000, 2);
    let closed = first.shutdown(|store| async { store.close().await });
    assert_eq!(errno(closed), Errno::STALE);
    assert_clean(&second);
    close(second);
}

/// `mkfs` of another machine.
#[test]
fn a_volume_that_was_made_anew_is_left_alone() {
    let device = formatted(VOLUME_BYTES);
    let first = open(&device);
    new_blob(&first, 5000, 1);
    let force = MkfsOptions {
        force: true,
        ..MkfsOptions::default()
    };
    format_as(&device, force);
    let written_back = first.run(|store| async {
        let id = create(store).await?;
        let blob = store.blob(id).await?;
        store.write(&blob, 0, &[1; 5000]).await?;
        store.sync(&blob, SyncKind::All).await?;
        store.checkpoint().await
    });
    assert_eq!(errno(written_back), Errno::STALE);
    drop_dead(first);
    let anew = open(&device);
    assert_clean(&anew);
    close(anew);
}
