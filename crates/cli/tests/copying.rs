//! What put and get must not touch, and that one thing that can't be copied stops nothing else.

mod support;

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};
use support::{Place, noise, tree};

fn pipe(path: &Path) {
    let mode = rustix::fs::Mode::from(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).expect("made");
}

/// Runs it to its end, which must come soon.
fn soon(place: &Place, arguments: &[&str]) -> (Option<i32>, String) {
    let mut child = place
        .command(arguments)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let begin = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if begin.elapsed() > Duration::from_secs(240) {
            child.kill().expect("killed");
            panic!("adit {arguments:?} waits for somebody");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("ended");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), errors)
}

/// Opening a pipe to write to it waits for its reader, which never came.
#[test]
fn get_waits_for_no_pipe_and_writes_only_to_files() {
    let place = Place::with_volume();
    place.write("f", "1");
    place.ok(&["put", "v.adit", "f", "/"]);
    pipe(&place.path("pipe"));
    let (code, errors) = soon(&place, &["get", "v.adit", "/f", "pipe"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("pipe: there is a fifo"), "{errors}");
    let kind = std::fs::metadata(place.path("pipe")).expect("there");
    assert!(kind.file_type().is_fifo());

    // With a reader the pipe can be opened, and is refused all the same.
    let reader = rustix::fs::open(
        place.path("pipe"),
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK,
        rustix::fs::Mode::empty(),
    )
    .expect("opened");
    let (code, errors) = soon(&place, &["get", "v.adit", "/f", "pipe"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("pipe: there is a fifo"), "{errors}");
    drop(reader);

    let errors = place.fails(1, &["get", "v.adit", "/f", "/dev/null"]);
    assert!(
        errors.contains("/dev/null: there is a character device"),
        "{errors}"
    );
}

#[test]
fn get_replaces_the_whole_content_of_a_longer_file() {
    let place = Place::with_volume();
    place.write("f", "short");
    place.ok(&["put", "v.adit", "f", "/"]);
    place.write("out", noise(1, 300_000));
    place.ok(&["get", "v.adit", "/f", "out"]);
    assert_eq!(std::fs::read(place.path("out")).expect("read"), b"short");
}

/// The first error of an argument ended the command: `adit put v.adit a missing b /` copied nothing
/// at all, and of `adit put v.adit taken b /`, where `taken` is a directory in the volume, `b` was
/// left out.
#[test]
fn one_argument_that_cannot_be_copied_stops_no_other() {
    let place = Place::with_volume();
    place.write("a", "1");
    place.write("taken", "no room for me");
    place.write("b", "2");
    place.ok(&["mkdir", "v.adit", "/taken"]);
    let errors = place.fails(1, &["put", "v.adit", "a", "missing", "taken", "b", "/"]);
    assert!(errors.contains("missing"), "{errors}");
    assert!(errors.contains("taken"), "{errors}");
    assert_eq!(place.ok(&["cat", "v.adit", "/a", "/b"]), "12");
}

/// A file where a directory has to go ended the copy of the whole tree, in both directions.
#[test]
fn a_name_that_is_taken_stops_only_what_is_below_it() {
    let place = Place::with_volume();
    place.write("tree/a", "1");
    place.write("tree/clash/below", "2");
    place.write("tree/z/deep", "3");
    place.write("taken", "in the way");
    place.ok(&["mkdir", "v.adit", "/tree"]);
    place.ok(&["put", "v.adit", "taken", "/tree/clash"]);
    let errors = place.fails(1, &["put", "v.adit", "tree", "/"]);
    assert!(errors.contains("tree/clash"), "{errors}");
    let all = ["cat", "v.adit", "/tree/a", "/tree/clash", "/tree/z/deep"];
    assert_eq!(place.ok(&all), "1in the way3");

    // And out again: a file here where the volume has a directory.
    place.write("into/z", "in the way");
    let errors = place.fails(1, &["get", "v.adit", "/tree/z", "into"]);
    assert!(errors.contains("into/z"), "{errors}");
    std::fs::create_dir(place.path("into/tree")).expect("made");
    place.write("into/tree/z", "in the way");
    let errors = place.fails(1, &["get", "v.adit", "/tree", "into"]);
    assert!(errors.contains("into/tree/z"), "{errors}");
    let read = |name: &str| std::fs::read_to_string(place.path(name)).expect("read");
    assert_eq!(read("into/tree/a"), "1");
    assert_eq!(read("into/tree/clash"), "in the way");
    assert_eq!(read("into/tree/z"), "in the way");
}

/// A directory's mode was set before the directory was opened to set its times: without `r` in the
/// mode only root could do that, and everybody else's `get` ended there.
#[test]
fn a_directory_that_its_owner_may_not_read_comes_out_with_its_mode_and_time() {
    let place = Place::with_volume();
    place.write("tree/secret/f", "1");
    place.write("tree/z/f", "2");
    place.ok(&["put", "v.adit", "tree", "/"]);
    let then = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_007);
    let image = place.path("v.adit");
    let volume = adit::Volume::open(image.to_str().expect("text")).expect("opened");
    volume
        .set_times("/tree/secret", None, Some(then))
        .expect("set");
    volume.set_mode("/tree/secret", 0o300).expect("set");
    volume.close().expect("closed");

    let mut get = place.command(&["get", "v.adit", "/tree", "copy"]);
    // SAFETY: the closure makes two system calls and nothing else.
    unsafe {
        get.pre_exec(|| {
            // Root that permissions apply to, from the next exec on. Who isn't root fails here, and
            // needs nothing.
            for capability in [CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH] {
                libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
            }
            Ok(())
        });
    }
    let output = get.output().expect("the binary runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    let secret = std::fs::metadata(place.path("copy/secret")).expect("there");
    assert!(output.status.success(), "{errors}");
    assert_eq!(secret.mode() & 0o777, 0o300);
    assert_eq!(secret.modified().expect("known"), then);
    std::fs::set_permissions(
        place.path("copy/secret"),
        std::fs::Permissions::from_mode(0o700),
    )
    .expect("set");
    assert_eq!(tree(&place.path("tree")), tree(&place.path("copy")));
}

const CAP_DAC_OVERRIDE: libc::c_ulong = 1;
const CAP_DAC_READ_SEARCH: libc::c_ulong = 2;

/// One file that could not be read with EIO counted as a failure of everything and ended the copy.
#[test]
fn a_bad_sector_below_one_file_stops_no_other() {
    let place = Place::with_volume();
    place.write("b", "2");
    // A regular file whose first page can't be read.
    let errors = place.fails(1, &["put", "v.adit", "/proc/self/mem", "b", "/"]);
    assert!(errors.contains("/proc/self/mem"), "{errors}");
    assert_eq!(place.ok(&["cat", "v.adit", "/b"]), "2");
}

/// `put` made a pipe of that name, said nothing, and read nothing of what the pipe had.
#[test]
fn a_pipe_without_a_name_is_refused() {
    let place = Place::with_volume();
    for name in ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"] {
        let mut put = place.command(&["put", "v.adit", name, "/f"]);
        let (reader, writer) = std::io::pipe().expect("made");
        drop(writer);
        let output = put.stdin(reader).output().expect("the binary runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {errors}");
        let expected = format!("copy {name}: it is a pipe or socket without a name");
        assert!(errors.contains(&expected), "{errors}");
        assert_eq!(place.ok(&["ls", "v.adit"]), "");
    }
    // A file is the file that it is.
    place.write("f", "content");
    let file = std::fs::File::open(place.path("f")).expect("opened");
    let mut put = place.command(&["put", "v.adit", "/dev/stdin", "/f"]);
    let output = put.stdin(file).output().expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(place.ok(&["cat", "v.adit", "/f"]), "content");

    let mut get = place.command(&["get", "v.adit", "/f", "/dev/stdout"]);
    let output = get.output().expect("the binary runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("`adit cat`"), "{errors}");
}

/// The temporary name of a replacement was always taken for what a killed process had left: of two
/// processes that put a file of one name, one removed the file that the other one was writing, or
/// gave its half a name.
#[test]
fn two_copies_to_one_name_do_not_mix() {
    let place = Place::with_volume();
    place.write("f", "old");
    place.ok(&["put", "v.adit", "f", "/"]);
    place.write("f", "new");
    let image = place.path("v.adit");
    let volume = adit::Volume::open(image.to_str().expect("text")).expect("opened");
    let directory = tempfile::tempdir().expect("made");
    let socket = directory.path().join("s");
    let server = adit::Server::start(&[("v", &volume)], &socket, &adit::ServeOptions::new());
    let server = server.expect("served");
    let address = format!("unix:{}", socket.display());
    let mut options = adit::OpenOptions::new();
    options.write(true).create_new(true);
    let theirs = volume.open_file("/.f.adit-put", &options).expect("made");
    let exclusive = adit::FlockOperation::Exclusive { wait: false };
    theirs.flock(exclusive).expect("locked");
    theirs.append(b"half").expect("written");
    let errors = place.fails(1, &["put", &address, "f", "/"]);
    assert!(
        errors.contains("copy to /f: another process copies to it, as .f.adit-put"),
        "{errors}"
    );
    assert_eq!(volume.read("/f").expect("there"), b"old");
    assert_eq!(volume.read("/.f.adit-put").expect("there"), b"half");
    drop(theirs); // as if it had been killed
    place.ok(&["put", &address, "f", "/"]);
    assert_eq!(place.ok(&["ls", &address]), "f\n");
    assert_eq!(volume.read("/f").expect("there"), b"new");

    // And on the host.
    place.write("out/f", "old");
    place.write("out/.f.adit-get", "half");
    let theirs = std::fs::File::open(place.path("out/.f.adit-get")).expect("opened");
    theirs.lock().expect("locked");
    let errors = place.fails(1, &["get", &address, "/f", "out"]);
    assert!(
        errors.contains("copy to out/f: another process copies to it, as .f.adit-get"),
        "{errors}"
    );
    let read = |name: &str| std::fs::read_to_string(place.path(name)).expect("there");
    assert_eq!(
        (read("out/f"), read("out/.f.adit-get")),
        ("old".into(), "half".into())
    );
    // A child of another test may still have the file.
    theirs.unlock().expect("unlocked");
    drop(theirs);
    place.ok(&["get", &address, "/f", "out"]);
    assert_eq!(read("out/f"), "new");
    assert!(!place.path("out/.f.adit-get").exists());
    server.stop();
    volume.close().expect("closed");
}

/// The copy of `f` would remove the copy of `.f.adit-put` as what a killed copy left.
#[test]
fn a_file_with_the_temporary_name_of_another_one_is_named() {
    let place = Place::with_volume();
    for name in ["f", ".f.adit-put", ".f.adit-get", ".g.adit-put"] {
        place.write(&format!("tree/{name}"), name);
    }
    let errors = place.fails(1, &["put", "v.adit", "tree", "/"]);
    assert!(
        errors.contains("copy tree/.f.adit-put: f, beside it"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let names = ".f.adit-get\n.g.adit-put\nf\n";
    assert_eq!(place.ok(&["ls", "v.adit", "/tree"]), names);
    let errors = place.fails(1, &["get", "v.adit", "/tree", "out"]);
    assert!(
        errors.contains("copy /tree/.f.adit-get: f, beside it"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert_eq!(
        std::fs::read_dir(place.path("out")).expect("made").count(),
        2
    );
}

/// `put` made directories with the mode 0755, and gave them theirs at its end: until then, and
/// after a copy that did not get there, everybody could read what a private directory hides.
#[test]
fn a_directory_is_private_until_the_copy_ends() {
    let place = Place::with_volume();
    place.write("tree/secret", "1");
    place.write("tree/too large", noise(2, 200 << 20));
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(place.path("tree"), private).expect("set");
    let errors = place.fails(1, &["put", "v.adit", "tree", "/"]);
    assert!(errors.contains("ENOSPC"), "{errors}");
    let listed = place.ok(&["ls", "-l", "v.adit"]);
    assert!(listed.starts_with("drwx------ "), "{listed}");
    assert_eq!(place.ok(&["ls", "v.adit", "/tree"]), "secret\n");
}

/// A user who put files of others through a server was told of each that its owner stayed, and the
/// command failed; `get` takes that for granted.
#[test]
fn a_user_of_a_server_puts_files_of_others() {
    if !support::is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let place = Place::with_volume();
    let directory = tempfile::tempdir().expect("made");
    for path in [place.path(""), directory.path().to_owned()] {
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, all).expect("set");
    }
    place.write("tree/f", "1");
    let volume = adit::Volume::open(place.path("v.adit").to_str().expect("text")).expect("opened");
    volume.set_mode("/", 0o777).expect("set");
    let socket = directory.path().join("s");
    let mut options = adit::ServeOptions::new();
    options.mode(0o666);
    let server = adit::Server::start(&[("v", &volume)], &socket, &options).expect("served");
    let address = format!("unix:{}", socket.display());
    let mut put = place.command(&["put", &address, "tree", "/"]);
    put.uid(support::USER).gid(support::USER);
    let output = place.end(put);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    let stat = volume.metadata("/tree/f").expect("there");
    assert_eq!((stat.uid(), stat.gid()), (support::USER, support::USER));
    server.stop();
    volume.close().expect("closed");
}
