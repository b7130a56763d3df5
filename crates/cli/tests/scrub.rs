//! `adit mkfs --data-checksums` and `adit scrub`.

mod support;

use std::os::unix::fs::FileExt;
use support::{Place, noise};

/// A volume with two files, of which a page of `/big` was changed behind its back; its image
/// offset.
fn rotten(arguments: &[&str]) -> Place {
    let place = Place::new();
    let mkfs = ["mkfs", "v.adit", "--size", "64M"];
    place.ok(&[&mkfs[..], arguments].concat());
    let content = noise(1, 1 << 20);
    place.write("tree/big", &content);
    place.write("tree/dir/other", noise(2, 10_000));
    place.ok(&["put", "v.adit", "tree", "/"]);
    let image = std::fs::read(place.path("v.adit")).expect("read");
    let wanted = &content[81_920..86_016];
    let at = image.chunks(4096).position(|page| page == wanted);
    let offset = at.expect("the page is on the device") as u64 * 4096;
    let image = std::fs::File::options()
        .write(true)
        .open(place.path("v.adit"))
        .expect("open");
    image.write_all_at(b"rot", offset + 7).expect("written");
    place
}

#[test]
fn what_a_device_changes_silently_is_told_with_file_and_offset() {
    let place = rotten(&["--data-checksums"]);
    let output = place.run(&["scrub", "v.adit"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("/tree/big: bytes 81920 to 86016"), "{said}");
    assert!(said.contains("1 piece of data is lost"), "{said}");
    let output = place.run(&["scrub", "v.adit", "--json", "--read-only"]);
    assert_eq!(output.status.code(), Some(3));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["clean"], false);
    assert_eq!(json["damages"][0]["path"], "/tree/big");
    assert_eq!(json["damages"][0]["offset"], 81_920);
    assert_eq!(json["damages"][0]["len_bytes"], 4096);
    assert_eq!(json["unchecked_bytes"], 0);

    // Reading says so too, and all else can be read.
    let errors = place.fails(1, &["cat", "v.adit", "/tree/big"]);
    assert!(
        errors.contains("/tree/big") && errors.contains("offset 81920"),
        "{errors}"
    );
    assert!(errors.contains("EIO"), "{errors}");
    // `cat` wrote nothing of the 1 MiB that it asked for at once.
    let before = place.run(&["cat", "v.adit", "/tree/big"]).stdout;
    assert!(before == noise(1, 1 << 20)[..81_920]);
    let other = place.run(&["cat", "v.adit", "/tree/dir/other"]);
    assert!(other.status.success() && other.stdout == noise(2, 10_000));
    place.ok(&["check", "v.adit"]);

    // Written again it is whole again.
    place.ok(&["put", "v.adit", "tree", "/"]);
    let said = place.ok(&["scrub", "v.adit"]);
    assert!(
        said.contains("clean") && said.contains("all of it held against checksums"),
        "{said}"
    );
}

#[test]
fn a_volume_without_data_checksums_says_that_it_has_none() {
    let place = rotten(&[]);
    let said = place.ok(&["scrub", "v.adit", "--rate", "100M"]);
    assert!(
        said.contains("clean") && said.contains("no data checksums"),
        "{said}"
    );
    assert!(
        place
            .ok(&["info", "v.adit"])
            .contains("checksums of metadata\n")
    );
}
