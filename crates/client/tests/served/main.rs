//! A volume in a server, from the same process and from others.

use adit::{OpenOptions, ServeOptions, Server, Volume};

#[test]
fn a_file_is_written_synced_and_read_through_a_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let volume = Volume::open("mem:64M").expect("opened");
    let server = Server::start(&[("v", &volume)], &socket, &ServeOptions::new()).expect("served");
    let there = Volume::open(&format!("unix:{}", socket.display())).expect("connected");
    there.create_dir("/d").expect("made");
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    let file = there.open_file("/d/f", &options).expect("opened");
    assert_eq!(file.append(b"hello ").expect("appended"), 0);
    assert_eq!(file.append(b"world").expect("appended"), 6);
    file.sync_data().expect("synced");
    assert_eq!(file.len().expect("size"), 11);
    assert_eq!(volume.read("/d/f").expect("read"), b"hello world");
    assert_eq!(there.read("/d/f").expect("read"), b"hello world");
    let error = there.read("/nothing").expect_err("there is none");
    assert_eq!(error.errno(), adit::Errno::NOENT);
    assert!(error.what().contains("/nothing"), "{error}");
    assert_eq!(server.sessions().len(), 1);
    drop(file);
    there.close().expect("closed");
    server.stop();
    volume.close().expect("closed");
}

/// Pages are read from the server's cache itself, while others write, cut and punch them: each read
/// shows one version of a page, never an older one than was acknowledged, and no byte behind the
/// end.
#[test]
fn mapped_reads_show_what_was_written_last() {
    use adit::VolumeOptions;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const PAGES: u64 = 64;
    const PAGE: usize = 4096;
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("v.adit");
    let image = image.to_str().expect("text");
    Volume::mkfs(image, adit::MkfsOptions::new().size_bytes(64 << 20)).expect("formatted");
    let mut options = VolumeOptions::new();
    // A small cache, so that pages are evicted.
    options.published(true).cache_bytes(8 << 20);
    let volume = Volume::open_with(image, &options).expect("opened");
    let socket = directory.path().join("s");
    let server = Server::start(&[("v", &volume)], &socket, &ServeOptions::new()).expect("served");
    let address = format!("unix:{}", socket.display());

    let mut write = OpenOptions::new();
    write.read(true).write(true).create(true);
    let file = volume.open_file("/f", &write).expect("opened");
    // The version that each page was last written with, in all of its words.
    let acknowledged: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let page_of = |version: u64| version.to_le_bytes().repeat(PAGE / 8);
    for page in 0..PAGES {
        file.write_at(&page_of(0), page * PAGE as u64)
            .expect("written");
    }
    let ended = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2u64)
            .map(|reader| {
                let (address, acknowledged, ended) = (&address, &acknowledged, &ended);
                scope.spawn(move || {
                    let there = Volume::open(address).expect("connected");
                    let file = there
                        .open_file("/f", OpenOptions::new().read(true))
                        .expect("opened");
                    let mut buffer = vec![0; PAGE];
                    let mut turn = reader;
                    let mut reads = 0u64;
                    while !ended.load(Ordering::Relaxed) {
                        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let page = (turn >> 33) % PAGES;
                        let least = acknowledged[page as usize].load(Ordering::Acquire);
                        let got = file.read_at(&mut buffer, page * PAGE as u64).expect("read");
                        assert_eq!(got, PAGE, "page {page}");
                        let first = u64::from_le_bytes(buffer[..8].try_into().expect("8 bytes"));
                        assert_eq!(
                            buffer,
                            first.to_le_bytes().repeat(PAGE / 8),
                            "page {page} is torn"
                        );
                        assert!(
                            first >= least,
                            "page {page} has {first}, {least} was acknowledged"
                        );
                        reads += 1;
                    }
                    reads
                })
            })
            .collect();
        let mut filler = 0;
        for version in 1..4_000u64 {
            let page = version.wrapping_mul(2_654_435_761) % PAGES;
            file.write_at(&page_of(version), page * PAGE as u64)
                .expect("written");
            acknowledged[page as usize].store(version, Ordering::Release);
            if version % 500 == 0 {
                // Other files push pages out of the cache.
                let name = format!("/other{filler}");
                filler += 1;
                volume.write(&name, vec![1; 4 << 20]).expect("written");
                volume.sync().expect("synced");
                volume.remove_file(&name).expect("removed");
            }
        }
        ended.store(true, Ordering::Relaxed);
        let done = readers
            .into_iter()
            .map(|reader| reader.join().expect("a reader"));
        done.collect::<Vec<_>>()
    });
    assert!(reads.iter().all(|reads| *reads > 0), "{reads:?}");

    // A shorter file, at once and everywhere.
    let there = Volume::open(&address).expect("connected");
    let reader = there
        .open_file("/f", OpenOptions::new().read(true))
        .expect("opened");
    let mut buffer = vec![7; PAGE];
    for round in 0..50 {
        file.set_len(2 * PAGE as u64).expect("grown");
        file.write_at(&page_of(round), PAGE as u64)
            .expect("written");
        for _ in 0..2 {
            assert_eq!(
                reader.read_at(&mut buffer, PAGE as u64).expect("read"),
                PAGE
            );
            assert_eq!(buffer, page_of(round));
        }
        let cut = PAGE as u64 + 100 + round;
        file.set_len(cut).expect("cut");
        for _ in 0..2 {
            let got = reader.read_at(&mut buffer, PAGE as u64).expect("read");
            assert_eq!(got as u64, cut - PAGE as u64, "round {round}");
        }
        file.set_len(PAGE as u64).expect("cut");
        assert_eq!(reader.read_at(&mut buffer, PAGE as u64).expect("read"), 0);
        file.set_len(2 * PAGE as u64).expect("grown");
        assert_eq!(
            reader.read_at(&mut buffer, PAGE as u64).expect("read"),
            PAGE
        );
        assert_eq!(buffer, vec![0; PAGE], "what was cut off stays so");
    }
    // And it was no message each time.
    reader.read_at(&mut buffer, 0).expect("read");
    let messages = || server.sessions()[0].served;
    let before = messages();
    for _ in 0..100 {
        assert_eq!(reader.read_at(&mut buffer, 0).expect("read"), PAGE);
    }
    assert!(messages() - before < 10, "{} messages", messages() - before);
    drop(reader);
    there.close().expect("closed");
    server.stop();
    drop(file);
    volume.close().expect("closed");
}
