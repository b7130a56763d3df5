//! Files and trees go into a volume and come out the same.

mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use support::{Place, noise, tree};

fn sample_tree(place: &Place) {
    place.write("tree/small.txt", "hello\n");
    place.write("tree/empty", "");
    place.write("tree/deep/er/and/deeper.bin", noise(1, 70_001));
    place.write("tree/deep/large.bin", noise(2, 5 << 20));
    place.write("tree/odd names/ä \"quoted\" name", "x");
    for i in 0..300 {
        place.write(&format!("tree/many/file-{i:04}"), noise(i, i as usize * 7));
    }
    std::fs::create_dir_all(place.path("tree/empty directory")).expect("made");
}

#[test]
fn a_tree_comes_out_as_it_went_in() {
    let place = Place::with_volume();
    sample_tree(&place);
    place.ok(&["put", "v.adit", "tree", "/"]);
    place.ok(&["get", "v.adit", "/tree", "copy"]);
    assert_eq!(tree(&place.path("tree")), tree(&place.path("copy")));
    place.ok(&["check", "v.adit"]);

    // Into an existing directory it goes under its name.
    std::fs::create_dir(place.path("into")).expect("made");
    place.ok(&["get", "v.adit", "tree/deep", "into"]);
    assert_eq!(
        tree(&place.path("tree/deep")),
        tree(&place.path("into/deep"))
    );
}

#[test]
fn permissions_and_times_are_kept() {
    let place = Place::with_volume();
    place.write("tool", "#!/bin/sh\n");
    let tool = std::fs::File::options()
        .write(true)
        .open(place.path("tool"))
        .expect("open");
    let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_007, 500);
    tool.set_modified(then).expect("set");
    std::fs::set_permissions(place.path("tool"), std::fs::Permissions::from_mode(0o751))
        .expect("set");
    place.ok(&["put", "v.adit", "tool", "/bin"]);
    place.ok(&["get", "v.adit", "bin", "out"]);
    let metadata = std::fs::metadata(place.path("out")).expect("there");
    assert_eq!(metadata.mode() & 0o777, 0o751);
    assert_eq!(metadata.modified().expect("known"), then);
}

#[test]
fn sparse_files_stay_sparse() {
    let place = Place::with_volume();
    let file = std::fs::File::create(place.path("sparse")).expect("made");
    // Larger than the volume.
    file.set_len(1 << 30).expect("set");
    std::os::unix::fs::FileExt::write_all_at(&file, b"in the middle", 500 << 20).expect("written");
    place.ok(&["put", "v.adit", "sparse", "/"]);
    place.ok(&["get", "v.adit", "/sparse", "out"]);
    let metadata = std::fs::metadata(place.path("out")).expect("there");
    assert_eq!(metadata.len(), 1 << 30);
    assert!(
        metadata.blocks() * 512 < 1 << 20,
        "{} blocks",
        metadata.blocks()
    );
    let mut middle = [0; 13];
    let out = std::fs::File::open(place.path("out")).expect("open");
    std::os::unix::fs::FileExt::read_exact_at(&out, &mut middle, 500 << 20).expect("read");
    assert_eq!(&middle, b"in the middle");
}

#[test]
fn several_files_need_a_directory_to_go_to() {
    let place = Place::with_volume();
    place.write("a", "1");
    place.write("b", "2");
    let errors = place.fails(1, &["put", "v.adit", "a", "b", "/nowhere"]);
    assert!(errors.contains("not a directory"), "{errors}");
    place.ok(&["mkdir", "v.adit", "/d"]);
    place.ok(&["put", "v.adit", "a", "b", "/d"]);
    assert_eq!(place.ok(&["cat", "v.adit", "d/a", "d/b"]), "12");
}

#[test]
fn what_cannot_be_copied_is_named_and_the_rest_arrives() {
    let place = Place::with_volume();
    place.write("tree/a", "1");
    place.write("tree/taken", "2");
    place.ok(&["mkdir", "-p", "v.adit", "/tree/taken"]);
    let errors = place.fails(1, &["put", "v.adit", "tree", "/"]);
    assert!(
        errors.contains("tree/taken: there is a directory"),
        "{errors}"
    );
    assert_eq!(place.ok(&["cat", "v.adit", "/tree/a"]), "1");
}

#[test]
fn a_full_volume_says_so_and_deleting_gives_the_space_back() {
    let place = Place::with_volume();
    place.write("large", noise(3, 200 << 20));
    let errors = place.fails(1, &["put", "v.adit", "large", "/"]);
    assert!(errors.contains("/large is not there"), "{errors}");
    assert!(errors.contains("ENOSPC"), "{errors}");
    place.ok(&["check", "v.adit"]);
    assert_eq!(place.ok(&["ls", "v.adit"]), "");
    place.write("half", noise(3, 60 << 20));
    place.ok(&["put", "v.adit", "half", "/"]);
    place.ok(&["rm", "v.adit", "/half"]);
    place.write("fits", noise(4, 20 << 20));
    place.ok(&["put", "v.adit", "fits", "/"]);
    place.ok(&["get", "v.adit", "/fits", "out"]);
    assert!(
        std::fs::read(place.path("fits")).expect("read")
            == std::fs::read(place.path("out")).expect("read")
    );
}

#[test]
fn a_put_that_is_killed_leaves_a_sound_volume_and_can_be_repeated() {
    let place = Place::with_volume();
    place.write("tree/a", "before");
    place.write("tree/large", noise(5, 60 << 20));
    place.write("tree/z/below", "after");
    let image_bytes = || {
        let image = std::fs::metadata(place.path("v.adit")).expect("there");
        image.blocks() * 512
    };
    let before = image_bytes();
    let mut put = place
        .command(&["put", "--cache-size", "16M", "v.adit", "tree", "/"])
        .spawn()
        .expect("the binary runs");
    // Until a part is there.
    while put.try_wait().expect("a child").is_none() && image_bytes() < before + (10 << 20) {
        std::thread::yield_now();
    }
    put.kill().expect("killed");
    put.wait().expect("ended");
    place.ok(&["check", "v.adit"]);
    place.ok(&["put", "v.adit", "tree", "/"]);
    place.ok(&["get", "v.adit", "/tree", "copy"]);
    assert!(tree(&place.path("tree")) == tree(&place.path("copy")));
    place.ok(&["check", "v.adit"]);
}

/// `put` removed the file that it replaces before it wrote the new one: a full volume cost the old
/// content, too.
#[test]
fn a_file_that_cannot_be_replaced_is_as_it_was() {
    let place = Place::with_volume();
    let old = noise(6, 20 << 20);
    place.write("f", &old);
    place.ok(&["put", "v.adit", "f", "/"]);
    place.write("f", noise(7, 130 << 20));
    let errors = place.fails(1, &["put", "v.adit", "f", "/"]);
    assert!(errors.contains("/f is as it was"), "{errors}");
    assert!(errors.contains("ENOSPC"), "{errors}");
    assert_eq!(place.ok(&["ls", "v.adit"]), "f\n");
    assert!(place.run(&["cat", "v.adit", "/f"]).stdout == old);
    let new = noise(8, 80 << 20); // more than half of the volume: nothing is left of the failure
    place.write("f", &new);
    place.ok(&["put", "v.adit", "f", "/"]);
    assert!(place.run(&["cat", "v.adit", "/f"]).stdout == new);
    place.ok(&["check", "v.adit"]);
}

/// A killed `put` left a part of the new content under the name of the old file. Between the two is
/// nothing now.
#[test]
fn a_file_whose_replacement_is_killed_is_as_it_was() {
    let (old, new) = (noise(9, 12 << 20), noise(10, 60 << 20));
    for attempt in 1.. {
        let place = Place::with_volume();
        place.write("f", &old);
        place.ok(&["put", "v.adit", "f", "/"]);
        place.write("f", &new);
        let image_bytes = || {
            let image = std::fs::metadata(place.path("v.adit")).expect("there");
            image.blocks() * 512
        };
        let before = image_bytes();
        let mut put = place
            .command(&["put", "--cache-size", "16M", "v.adit", "f", "/"])
            .spawn()
            .expect("the binary runs");
        while put.try_wait().expect("a child").is_none() && image_bytes() < before + (10 << 20) {
            std::thread::yield_now();
        }
        put.kill().expect("killed");
        let killed = !put.wait().expect("ended").success();
        let found = place.run(&["cat", "v.adit", "/f"]).stdout;
        let left = place.ok(&["ls", "v.adit"]);
        if killed && left == ".f.adit-put\nf\n" {
            assert!(found == old);
            // What it left is gone with the next one.
            place.ok(&["put", "v.adit", "f", "/"]);
            assert!(place.run(&["cat", "v.adit", "/f"]).stdout == new);
            assert_eq!(place.ok(&["ls", "v.adit"]), "f\n");
            place.ok(&["check", "v.adit"]);
            return;
        }
        assert!(found == old || found == new, "{left}");
        assert!(attempt < 20, "no kill came while it copied");
    }
}

/// A killed `put` left a part of a new file under its name, with nothing to tell it from a whole
/// one.
#[test]
fn a_new_file_whose_copy_is_killed_is_not_there() {
    let new = noise(11, 60 << 20);
    for attempt in 1.. {
        let place = Place::with_volume();
        place.write("f", &new);
        let image_bytes = || {
            let image = std::fs::metadata(place.path("v.adit")).expect("there");
            image.blocks() * 512
        };
        let before = image_bytes();
        let mut put = place
            .command(&["put", "--cache-size", "16M", "v.adit", "f", "/"])
            .spawn()
            .expect("the binary runs");
        while put.try_wait().expect("a child").is_none() && image_bytes() < before + (10 << 20) {
            std::thread::yield_now();
        }
        put.kill().expect("killed");
        let killed = !put.wait().expect("ended").success();
        let left = place.ok(&["ls", "v.adit"]);
        if killed && left == ".f.adit-put\n" {
            place.ok(&["put", "v.adit", "f", "/"]);
            assert!(place.run(&["cat", "v.adit", "/f"]).stdout == new);
            assert_eq!(place.ok(&["ls", "v.adit"]), "f\n");
            return;
        }
        assert!(
            left.is_empty() || place.run(&["cat", "v.adit", "/f"]).stdout == new,
            "{left}"
        );
        assert!(attempt < 20, "no kill came while it copied");
    }
}

/// `get` removed the old file before it wrote the new one under its name: a kill left a part of the
/// new content, and nothing of the old.
#[test]
fn a_file_of_the_host_whose_replacement_is_killed_is_as_it_was() {
    let (old, new) = (noise(12, 1 << 20), noise(13, 60 << 20));
    let place = Place::with_volume();
    place.write("f", &new);
    place.ok(&["put", "v.adit", "f", "/"]);
    for attempt in 1.. {
        place.write("out/f", &old);
        let out_bytes = || {
            let names = std::fs::read_dir(place.path("out")).expect("readable");
            let sizes = names.flatten().flat_map(|name| name.metadata());
            sizes.map(|metadata| metadata.len()).sum::<u64>()
        };
        let mut get = place
            .command(&["get", "v.adit", "/f", "out"])
            .spawn()
            .expect("the binary runs");
        while get.try_wait().expect("a child").is_none() && out_bytes() < 4 << 20 {
            std::thread::yield_now();
        }
        get.kill().expect("killed");
        let killed = !get.wait().expect("ended").success();
        let found = std::fs::read(place.path("out/f")).expect("there");
        assert!(found == old || found == new);
        if killed && place.path("out/.f.adit-get").exists() {
            assert!(found == old);
            place.ok(&["get", "v.adit", "/f", "out"]);
            assert!(std::fs::read(place.path("out/f")).expect("there") == new);
            assert!(!place.path("out/.f.adit-get").exists());
            return;
        }
        assert!(attempt < 20, "no kill came while it copied");
    }
}

#[test]
fn everything_else_is_replaced_by_a_rename_too_and_nothing_is_left_behind() {
    let place = Place::with_volume();
    let long = "n".repeat(255);
    place.write(&format!("tree/{long}"), "1");
    place.write("tree/f", "old");
    std::fs::hard_link(place.path("tree/f"), place.path("tree/g")).expect("linked");
    std::os::unix::fs::symlink("old", place.path("tree/link")).expect("made");
    for content in ["old", "new"] {
        place.write("tree/f", content);
        std::fs::remove_file(place.path("tree/link")).expect("removed");
        std::os::unix::fs::symlink(content, place.path("tree/link")).expect("made");
        for _ in 0..2 {
            place.ok(&["put", "v.adit", "tree", "/"]);
        }
        let names = format!("f\ng\nlink\n{long}\n");
        assert_eq!(place.ok(&["ls", "v.adit", "/tree"]), names);
        assert_eq!(
            place.ok(&["cat", "v.adit", "/tree/f", "/tree/g"]),
            content.repeat(2)
        );
        let stat: serde_json::Value = serde_json::from_str(&place.ok(&[
            "stat",
            "--json",
            "v.adit",
            "/tree/f",
            "/tree/g",
            "/tree/link",
        ]))
        .expect("JSON");
        assert_eq!(stat[0]["inode"], stat[1]["inode"]);
        assert_eq!(stat[0]["links"], 2);
        assert_eq!(stat[2]["target"], content);
    }
    // Two names of one file, of which both are there already.
    place.ok(&[
        "put", "v.adit", "tree/f", "tree/g", "tree/f", "tree/g", "/tree",
    ]);
    assert_eq!(place.ok(&["ls", "v.adit", "/tree"]).lines().count(), 4);
    place.ok(&["check", "v.adit"]);
}
