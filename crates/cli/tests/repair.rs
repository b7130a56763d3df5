//! `adit check --repair`, as somebody at a prompt or a script sees it.

mod support;

use std::os::unix::fs::FileExt;
use support::{Place, noise};

const PAGE: u64 = 4096;

/// A volume with files, and the pages of its first group that hold metadata with this kind number.
fn damaged(kind: u8) -> Place {
    let place = Place::new();
    place.ok(&["mkfs", "v.adit", "--size", "16M"]);
    for i in 0..40 {
        place.write(&format!("tree/d{}/f{i}", i % 3), noise(i, 3000));
    }
    place.ok(&["put", "v.adit", "tree", "/"]);
    let image = std::fs::File::options()
        .read(true)
        .write(true)
        .open(place.path("v.adit"))
        .expect("open");
    let pages = image.metadata().expect("metadata").len() / PAGE;
    let mut page = [0; PAGE as usize];
    let found = (1026..pages).find(|number| {
        image.read_exact_at(&mut page, number * PAGE).expect("read");
        // Checksum algorithm, kind, level, flags, and an owner that can be.
        page[4..8] == [1, kind, 0, 0] && page[12..16] == [0; 4]
    });
    let found = found.expect("such a page");
    page[1000..1100].fill(0xa5);
    image.write_all_at(&page, found * PAGE).expect("written");
    place
}

fn files(place: &Place) -> usize {
    let json: serde_json::Value =
        serde_json::from_str(&place.ok(&["check", "v.adit", "--json"])).expect("JSON");
    assert_eq!(json["clean"], true);
    json["files"].as_u64().expect("a number") as usize
}

#[test]
fn a_problem_is_told_with_its_place_its_consequence_and_what_a_repair_does() {
    let place = damaged(2);
    let before = std::fs::read(place.path("v.adit")).expect("read");
    let output = place.run(&["check", "v.adit"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("the map of group 0: its checksum does not match"),
        "{said}"
    );
    assert!(said.contains("repair: it is made anew"), "{said}");
    let output = place.run(&["check", "v.adit", "--json"]);
    assert_eq!(output.status.code(), Some(3));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let problem = &json["problems"][0];
    assert_eq!(problem["kind"], "group-map");
    assert_eq!(problem["page"], 1027);
    assert_eq!(problem["repairable"], true);
    assert!(
        std::fs::read(place.path("v.adit")).expect("read") == before,
        "check wrote"
    );
}

#[test]
fn without_a_terminal_nothing_is_repaired_unless_yes_is_said() {
    let place = damaged(2);
    let before = std::fs::read(place.path("v.adit")).expect("read");
    let errors = place.fails(1, &["check", "v.adit", "--repair"]);
    assert!(errors.contains("--yes"), "{errors}");
    assert!(
        std::fs::read(place.path("v.adit")).expect("read") == before,
        "it wrote"
    );
    let said = place.ok(&["check", "v.adit", "--repair", "--yes"]);
    assert!(said.contains("repaired"), "{said}");
    assert_eq!(files(&place), 40);
    assert!(place.ok(&["check", "v.adit", "--repair"]).contains("clean"));
}

#[test]
fn files_of_a_lost_directory_page_are_in_lost_and_found() {
    let place = damaged(5);
    place.ok(&["check", "v.adit", "--repair", "--yes"]);
    assert_eq!(files(&place), 40);
    let lost = place.ok(&["ls", "v.adit", "/lost+found"]);
    assert!(lost.lines().count() > 0 && lost.starts_with('#'), "{lost}");
}

/// `ls -l` and `du` ended at the first inode that they could not read.
#[test]
fn commands_say_which_inodes_they_cannot_read_and_go_on_with_the_rest() {
    let place = Place::new();
    place.ok(&["mkfs", "v.adit", "--size", "16M"]);
    for path in ["a", "b", "c", "d/e", "f/g"] {
        place.write(&format!("tree/{path}"), noise(1, 3000));
    }
    place.ok(&["put", "v.adit", "tree", "/"]);
    let image = std::fs::File::options()
        .write(true)
        .open(place.path("v.adit"));
    let image = image.expect("open");
    for path in ["/tree/b", "/tree/d"] {
        let about = place.ok(&["stat", "v.adit", path, "--json"]);
        let about: serde_json::Value = serde_json::from_str(&about).expect("JSON");
        let inode = about[0]["inode"].as_u64().expect("a number");
        let written = image.write_all_at(&[0xa5; 100], inode * 512 + 200);
        written.expect("written");
    }
    let partly = |arguments: &[&str]| {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let errors: Vec<&str> = said
            .lines()
            .filter(|line| line.starts_with("adit: "))
            .collect();
        assert_eq!(errors.len(), 2, "{arguments:?}: {said}");
        for path in ["/tree/b", "/tree/d"] {
            let named = errors
                .iter()
                .filter(|line| line.contains(&format!("{path}:")));
            assert_eq!(named.count(), 1, "{arguments:?}: {said}");
        }
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let names = |said: &str| {
        let names = said.lines().filter_map(|line| line.rsplit(' ').next());
        names.map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(
        names(&partly(&["ls", "-l", "v.adit", "/tree"])),
        ["a", "c", "f"]
    );
    let listed = partly(&["ls", "--json", "v.adit", "/tree"]);
    assert!(
        listed.contains("\"c\"") && !listed.contains("\"b\""),
        "{listed}"
    );
    assert_eq!(
        names(&partly(&["du", "v.adit", "/tree"])),
        ["/tree/f", "/tree"]
    );
    partly(&["get", "v.adit", "/tree", "copy"]);
    assert!(place.path("copy/c").exists() && place.path("copy/f/g").exists());
    // Names alone are no attributes.
    assert_eq!(place.ok(&["ls", "v.adit", "/tree"]), "a\nb\nc\nd/\nf/\n");
    let errors = place.fails(1, &["rm", "-r", "v.adit", "/tree"]);
    assert!(errors.contains("/tree/"), "{errors}");
    // All else is gone.
    assert_eq!(place.ok(&["ls", "v.adit", "/tree"]), "b\nd/\n");
}
