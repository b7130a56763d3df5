//! What lies in shared memory while a volume is open, and after a kill: its size and its name, as
//! the commands show them; and `adit run`, which takes it over.

#[macro_use]
mod support;

use adit::{Volume, VolumeOptions};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Output;
use support::{Place, SmallMemory};

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON")
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn open(place: &Place, options: &VolumeOptions) -> Volume {
    let image = place.path("v.adit");
    Volume::open_with(image.to_str().expect("text"), options).expect("opened")
}

/// The size that was asked for was shown, and not the one that was given.
#[test]
fn a_cache_that_shrinks_says_so_and_shows_its_size() {
    let place = Place::with_volume();
    let Some(memory) = SmallMemory::new(&place, "64m") else {
        return adit_skip::skip(adit_skip::MOUNT);
    };
    let asked_bytes = 256 << 20;
    let volume = open(&place, VolumeOptions::new().survive_in(&memory.0));
    let given_bytes = volume.info().expect("known").cache_bytes;
    assert!(
        (32 << 20..64 << 20).contains(&given_bytes),
        "{given_bytes} bytes"
    );
    let mapping = volume.info().expect("known").mapping.expect("it survives");
    let mapping = std::fs::metadata(mapping).expect("it is there");
    assert!((given_bytes..64 << 20).contains(&mapping.len()));
    let info = json(&place.ok(&["info", "--json", "v.adit"]));
    assert_eq!(info["cache_bytes"], given_bytes, "{info}");
    let size = format!("cache     {} at most", adit::format_size(given_bytes));
    assert!(place.ok(&["info", "v.adit"]).contains(&size), "{size}");
    volume.close().expect("closed");

    let mkdir = ["mkdir", "v.adit", "/d", "--survive-in", memory.text()];
    let said = told(&place.run(&mkdir));
    let warning = format!(
        "adit: warning: {}: the cache has {} MiB instead of {}, since {} has no room for more",
        place.path("v.adit").display(),
        given_bytes >> 20,
        asked_bytes >> 20,
        memory.text()
    );
    assert!(said.contains(&warning), "{said}");
    let volume = open(&place, &VolumeOptions::new());
    assert!(volume.info().expect("known").cache_bytes >= given_bytes);
}

/// `ls /dev/shm | grep ID` found nothing: the bytes were in another order.
#[test]
fn the_id_of_a_volume_is_in_the_name_of_its_mapping() {
    let place = Place::with_volume();
    let volume = open(&place, &VolumeOptions::new());
    let path = volume.info().expect("known").mapping.expect("it survives");
    let info = json(&place.ok(&["info", "--json", "v.adit"]));
    let id = info["id"].as_str().expect("text");
    let name = Path::new(&path).file_name().expect("a name");
    let name = name.to_str().expect("text");
    assert!(name.starts_with(&format!("adit-{id}-")), "{name}: {id}");
    assert!(
        place
            .ok(&["info", "v.adit"])
            .contains(&format!("id        {id}\n"))
    );
    let all = json(&place.ok(&["mappings", "--json"]));
    let all = all.as_array().expect("a list");
    let this = all.iter().find(|mapping| mapping["path"] == path.as_str());
    assert_eq!(this.expect("listed")["volume_id"], id);
    // What the C interface gives as two halves.
    let raw = volume.info().expect("known").volume_id;
    assert_eq!(id, format!("{:032x}", u128::from_le_bytes(raw)));
}

/// Anybody makes files in `/dev/shm`: their names forged lines, and commanded the terminal.
#[test]
fn names_of_other_users_are_shown_without_control_characters_and_with_all_bytes() {
    let place = Place::with_volume();
    let Some(memory) = SmallMemory::new(&place, "4m") else {
        return adit_skip::skip(adit_skip::MOUNT);
    };
    let odd = memory.0.join(OsStr::from_bytes(b"adit-\xff\x1b]0;x\x07\n"));
    std::fs::write(&odd, "no mapping").expect("written");
    let survive_in = ["--survive-in", memory.text()];
    let text = place.ok(&[&["mappings"][..], &survive_in].concat());
    let shown = "adit-\u{fffd}\\u{1b}]0;x\\u{7}\\n\n";
    assert!(text.contains(shown), "{text:?}");
    assert_eq!(text.lines().count(), 2, "{text:?}");
    let all = json(&place.ok(&[&["mappings", "--json"][..], &survive_in].concat()));
    let bytes = odd.as_os_str().as_bytes().iter();
    let bytes: String = bytes.map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(all[0]["path_bytes"], bytes.as_str(), "{all}");
    std::fs::remove_file(&odd).expect("removed");

    let volume = open(&place, &VolumeOptions::new());
    volume.write("/a\x1b[2J\nb", "content").expect("written");
    volume.close().expect("closed");
    let text = place.ok(&["stat", "v.adit", "/a\x1b[2J\nb"]);
    assert!(text.starts_with("/a\\u{1b}[2J\\nb\n"), "{text:?}");
}

/// The option was accepted, and did nothing.
#[test]
fn a_program_runs_on_a_copy_if_what_was_left_stays_with_the_original() {
    need!();
    let place = Place::with_volume();
    let writes = "echo left > /adit/f; kill -9 $$";
    let killed = place.run(&["run", "v.adit", "--", "sh", "-c", writes]);
    assert_eq!(killed.status.code(), None, "{}", told(&killed));
    std::fs::copy(place.path("v.adit"), place.path("bak.adit")).expect("copied");
    let made = "echo made > /adit/g";
    let refused = place.run(&["run", "bak.adit", "--", "sh", "-c", made]);
    assert!(!refused.status.success());
    let said = told(&refused);
    assert!(
        said.contains("EOWNERDEAD") && said.contains("leave"),
        "{said}"
    );
    place.ok(&[
        "run",
        "bak.adit",
        "--takeover",
        "leave",
        "--",
        "sh",
        "-c",
        made,
    ]);
    assert_eq!(place.ok(&["ls", "bak.adit"]), "g\n");
    // From now on the copy is a volume of its own.
    place.ok(&["run", "bak.adit", "--", "sh", "-c", made]);
    assert_eq!(
        place.ok(&["run", "v.adit", "--", "cat", "/adit/f"]),
        "left\n"
    );
}

/// A process of the program is killed: what it wrote is not what was to be discarded.
#[test]
fn what_was_left_is_discarded_once_before_the_program_starts() {
    need!();
    let place = Place::with_volume();
    let writes = |name: &str| format!("echo {name} > /adit/{name}; kill -9 $$");
    place.run(&["run", "v.adit", "--", "sh", "-c", &writes("before")]);
    let script = format!("sh -c '{}'; ls /adit", writes("during"));
    let run = ["run", "v.adit", "--takeover", "discard", "--", "sh", "-c"];
    let output = place.run(&[&run[..], &[&script]].concat());
    let said = told(&output);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "during\n",
        "{said}"
    );
    assert_eq!(
        said.matches("unsaved data is discarded").count(),
        1,
        "{said}"
    );
    place.ok(&["check", "v.adit"]);
}
