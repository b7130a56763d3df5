//! What the mutations rest on: unmutated, the volume opens and is clean; mutated, it really is
//! opened.

use super::*;
use adit_base::Errno;

/// A mutation can only be told from none if none passes.
#[test]
fn the_volume_that_is_mutated_opens_and_is_clean() {
    for (closed, data_checksums) in [(true, false), (false, false), (true, true), (false, true)] {
        let base = base::base(closed, data_checksums);
        assert!(base.metadata.len() > 15, "{:?}", base.metadata);
        assert!(base.metadata.len() < 256, "a byte can name each");
        let device = device_of(base, VOLUME_BYTES);
        let engine = volume::open(device.clone(), &volume::options(false)).expect("opened");
        let info = engine.run(|fs| async { fs.store().info().await });
        assert_eq!(info.expect("known").data_checksums, data_checksums);
        let report = engine.run(|fs| async { fs.store().check(&mut |_, _| ()).await });
        assert!(
            report.as_ref().is_ok_and(|report| report.is_clean()),
            "{report:?}"
        );
        let names = engine.run(|fs| fs.check_names()).expect("checked");
        assert!(names.problems.is_empty(), "{:?}", names.problems);
        let stat = engine.run(|fs| fs.stat(volume::at(b"/d/e/moved"), adit_fs::Follow::No));
        assert_eq!(stat.expect("it was renamed").size_bytes, 20_000);
        engine.shutdown(|fs| fs.close_volume()).expect("closed");
    }
}

/// If checksums weren't renewed, everything would end at the first of them.
#[test]
fn a_mutated_page_has_the_checksum_of_its_new_content() {
    let mut closed = base::base(true, false).clone();
    let mut bytes = VOLUME_BYTES;
    let state = closed
        .metadata
        .iter()
        .position(|page| *page == base::STATE_PAGE);
    let state = u8::try_from(state.expect("the state page describes something")).expect("small");
    // Its field 12: the root.
    let mutation = [1, state, 12, 0, 0, 0, 0, 0];
    mutation::mutate(&mut closed, &mut bytes, &mut Input::new(&mutation));
    let opened = volume::open(device_of(&closed, bytes), &volume::options(false));
    let error = opened.map(drop).expect_err("there is no root");
    assert_eq!(error.errno(), Errno::NOENT, "{error}");
}

/// Pages of checksums are mutated as others are, and data is held against what they say then.
#[test]
fn data_of_a_mutated_checksum_is_an_error() {
    let mut closed = base::base(true, true).clone();
    let read = |base: &Base| {
        let engine = volume::open(device_of(base, VOLUME_BYTES), &volume::options(false));
        let engine = engine.expect("opened");
        let read = engine.run(|fs| async {
            let path = volume::at(b"/d/e/moved");
            let file = fs.open(path, adit_fs::OpenFlags::empty(), 0).await?;
            let read = fs.read(&file, 0, &mut [0; 100]).await;
            fs.close(&file).await?;
            read
        });
        engine.shutdown(|fs| fs.close_volume()).expect("closed");
        read.map_err(|error| error.errno())
    };
    assert_eq!(read(&closed), Ok(100));
    let content = [20_000_u32 as u8; 4096];
    let home = closed.pages.iter().find(|page| *page.1.bytes == content);
    let index = home.expect("its first page").0 - base::STATE_PAGE - 1;
    // The first page of checksums follows the map of the group.
    let sums = (closed.metadata.iter()).position(|page| *page == base::STATE_PAGE + 2);
    let sums = u8::try_from(sums.expect("it has checksums")).expect("small");
    let [low, high, ..] = (32 + 4 * index).to_le_bytes();
    let mutation = [3, sums, low, high, 0, 0, 0, 0];
    mutation::mutate(
        &mut closed,
        &mut { VOLUME_BYTES },
        &mut Input::new(&mutation),
    );
    assert_eq!(read(&closed), Err(Errno::IO));
}
