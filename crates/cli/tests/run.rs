//! `adit run`: programs that know nothing of a volume see one as a directory.

#[macro_use]
mod support;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use support::{Place, assert_clean, noise, run};

#[test]
fn calls_of_a_c_program_act_as_on_linux() {
    need!();
    let place = Place::with_volume();
    let program = place.compiled("calls");
    assert_eq!(run(&place, &[&program, "/adit"]), "as on Linux\n");
    assert_eq!(place.ok(&["cat", "v.adit", "/mapped"]), "mapped at the end");
    // Streams are written at the end of the process, and so is what `atexit` writes.
    assert_eq!(place.ok(&["cat", "v.adit", "/left"]), "in the buffer");
    assert_eq!(place.ok(&["cat", "v.adit", "/at-exit"]), "written");
    assert_clean(&place);
}

/// The C program also runs on the host's own file system, so what it demands is what Linux does
/// (but for what is refused by intent).
#[test]
fn calls_of_python_act_as_on_linux() {
    need!("python3");
    let place = Place::with_volume();
    place.write("tree/a/b", noise(1, 100_000));
    place.write("tree/c", "text");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/calls.py");
    assert_eq!(run(&place, &["python3", script, "tree"]), "as on Linux\n");
    assert_clean(&place);
}

#[test]
fn programs_of_every_day_work_on_a_volume() {
    need!();
    let place = Place::with_volume();
    for (name, len) in [
        ("one", 0),
        ("two", 1),
        ("deep/three", 100_000),
        ("deep/er/four", 3_000_000),
    ] {
        place.write(&format!("tree/{name}"), noise(len as u64, len));
    }
    run(&place, &["cp", "-r", "tree", "/adit/copied"]);
    run(&place, &["diff", "-r", "tree", "/adit/copied"]);
    run(&place, &["tar", "-cf", "/adit/a.tar", "-C", "tree", "."]);
    run(&place, &["mkdir", "/adit/unpacked"]);
    run(
        &place,
        &["tar", "-xf", "/adit/a.tar", "-C", "/adit/unpacked"],
    );
    run(&place, &["diff", "-r", "tree", "/adit/unpacked"]);
    let from = "if=tree/deep/er/four";
    run(
        &place,
        &[
            "dd",
            from,
            "of=/adit/dd",
            "bs=64K",
            "oflag=direct",
            "conv=fsync",
            "status=none",
        ],
    );
    run(&place, &["cmp", "tree/deep/er/four", "/adit/dd"]);
    let found = run(
        &place,
        &["find", "/adit/copied", "-type", "f", "-size", "+50k"],
    );
    let mut found: Vec<&str> = found.lines().collect();
    found.sort_unstable();
    assert_eq!(
        found,
        ["/adit/copied/deep/er/four", "/adit/copied/deep/three"]
    );
    run(&place, &["mv", "/adit/copied/one", "/adit/copied/deep/one"]);
    run(&place, &["rm", "-r", "/adit/unpacked"]);
    // Out of the volume, and between it and the host.
    run(&place, &["mv", "/adit/dd", "out"]);
    assert_eq!(
        std::fs::read(place.path("out")).expect("moved"),
        noise(3_000_000, 3_000_000)
    );
    assert_eq!(place.ok(&["ls", "v.adit", "/"]), "a.tar\ncopied/\n");
    assert_clean(&place);
}

#[test]
fn sqlite_keeps_a_database_on_a_volume() {
    need!("sqlite3");
    let place = Place::with_volume();
    let fill = "create table t (a integer primary key, b);
        with recursive c(x) as (select 1 union all select x + 1 from c where x < 5000)
        insert into t select x, hex(randomblob(40)) from c;
        delete from t where a % 3 = 0;
        pragma integrity_check;";
    let done = run(&place, &["sqlite3", "/adit/app.db", fill]);
    assert_eq!(done, "ok\n");
    let wal = "pragma journal_mode = wal; update t set b = 'new' where a < 100;
        select count(*) from t; pragma integrity_check;";
    assert_eq!(
        run(&place, &["sqlite3", "/adit/app.db", wal]),
        "wal\n3334\nok\n"
    );
    let again = "select count(*) from t where b = 'new'";
    assert_eq!(run(&place, &["sqlite3", "/adit/app.db", again]), "66\n");
    assert_clean(&place);
}

/// A process with the plugin is killed in a commit over several databases: `c.db` is half written,
/// and its journal names the super-journal.
const HALF: &str = "
import os, sqlite3
for number, address in enumerate([os.path.realpath('v.adit'), 'unix:/run/adit.sock']):
    a = f'/adit/a{number}.db'
    db = sqlite3.connect(a, isolation_level=None)
    db.execute('create table t (n, filler)')
    db.execute('begin')
    db.executemany('insert into t values (0, zeroblob(900))', [()] * 500)
    db.execute('commit')
    db.execute('pragma cache_size = 10')
    db.execute('begin')
    db.execute('update t set n = 1')
    # Most pages are in the file, and all old ones in the journal.
    content, journal = open(a, 'rb').read(), open(a + '-journal', 'rb').read()
    db.execute('rollback')
    name = f'{address}//c{number}.db-mj0123459AB'.encode()
    journal += b'1234' + name + len(name).to_bytes(4, 'big') + sum(name).to_bytes(4, 'big')
    journal += bytes([0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7])
    c = f'/adit/c{number}.db'
    open(c, 'wb').write(content)
    open(c + '-journal', 'wb').write(journal)
    children = f'{address}//c{number}.db-journal\\0{address}//other.db-journal\\0'
    open(c + '-mj0123459AB', 'wb').write(children.encode())
    found = sqlite3.connect(c).execute('select min(n), max(n) from t').fetchone()
    print(found, os.path.exists(c + '-mj0123459AB'))
";

/// SQLite looked for the super-journal at the address of the volume, which is no path, found none,
/// and left the half as it was.
#[test]
fn a_transaction_of_the_plugin_over_several_databases_is_undone() {
    need!("python3");
    let place = Place::with_volume();
    let done = run(&place, &["python3", "-c", HALF]);
    assert_eq!(done, "(0, 0) False\n(0, 0) False\n");
    assert_clean(&place);
}

/// A mistaken path of the host removed what has that name in the volume.
#[test]
fn a_path_behind_an_image_leads_into_the_volume_only_to_journals() {
    need!("python3");
    let place = Place::with_volume();
    let script = "import os\n\
        os.close(os.open('/adit/data', os.O_CREAT))\n\
        image = os.path.abspath('v.adit')\n\
        for name in '//', '//data', '//data-mj0A1B2C8FF':\n\
        \x20   try: print(os.stat(image + name))\n\
        \x20   except NotADirectoryError: print('nowhere')\n\
        try: os.stat(image + '//data-mj0A1B2C9FF')\n\
        except FileNotFoundError: print('not there')\n";
    let said = run(&place, &["python3", "-c", script]);
    assert_eq!(said, "nowhere\nnowhere\nnowhere\nnot there\n");
    assert_clean(&place);
}

#[test]
fn the_list_of_calls_is_that_of_the_library() {
    need!();
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/using/programs.md");
    let text = std::fs::read_to_string(text).expect("the page");
    let (_, list) = text.split_once("<!-- symbols:").expect("a list");
    let (list, _) = list.split_once("| call |").expect("a table behind it");
    let mut told: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    told.sort_unstable();
    let symbols = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(support::library())
        .output()
        .expect("nm, of the compiler's package");
    let symbols = String::from_utf8(symbols.stdout).expect("text");
    let functions = symbols.lines().filter_map(|line| line.split_once(" T "));
    let mut functions: Vec<&str> = functions.map(|(name, _)| name).collect();
    functions.sort_unstable();
    assert!(functions.len() > 150, "{functions:?}");
    assert_eq!(told, functions);
}

#[test]
fn writes_can_be_whole_or_not_at_all() {
    need!();
    let place = Place::with_volume();
    place.write("pages", noise(3, 16 << 14));
    let copy = [
        "dd",
        "if=pages",
        "of=/adit/pages",
        "bs=16K",
        "oflag=direct",
        "conv=fsync",
        "status=none",
    ];
    let whole = |size: &'static str| {
        [&["run", "v.adit", "--atomic-writes", size, "--"], &copy[..]].concat()
    };
    place.ok(&whole("16K"));
    run(&place, &["cmp", "pages", "/adit/pages"]);
    let refused = place.fails(1, &whole("1M"));
    assert!(
        refused.contains("--atomic-writes: at most 64K"),
        "{refused}"
    );
    assert_clean(&place);
}

/// A shell looks at the volume, and starts programs that use it: `fork`, `vfork`, `posix_spawn`.
#[test]
fn a_program_of_which_nothing_is_open_leaves_the_volume_to_its_children() {
    need!("python3");
    let place = Place::with_volume();
    let script = "test -d /adit/a || mkdir /adit/a
        for i in 1 2 3; do test -e /adit/a/$i || echo $i > /adit/a/$i && cp /adit/a/$i /adit/a/c$i; done
        (cd /adit/a && echo four > 4)
        echo $(cat /adit/a/c2) $(ls /adit/a)";
    assert_eq!(run(&place, &["sh", "-c", script]), "2 1 2 3 4 c1 c2 c3\n");
    // bash forks where dash calls vfork.
    let script = "test -d /adit/a && cp /adit/a/1 /adit/one; test -e /adit/one && cat /adit/one";
    assert_eq!(run(&place, &["bash", "-c", script]), "1\n");
    run(&place, &["rm", "-r", "/adit/a"]);
    let script = r#"
import os, subprocess
open("/adit/a", "w").write("a")
print(subprocess.run(["cat", "/adit/a"], capture_output=True).stdout)
print(subprocess.run(["cat", "/adit/a"], capture_output=True, preexec_fn=os.getpid).stdout)
print(os.popen("cat /adit/a").read(), os.system("cat /adit/a >/dev/null"))
os.waitpid(os.posix_spawnp("cp", ["cp", "/adit/a", "/adit/b"], os.environ), 0)
print(open("/adit/b").read())
"#;
    let said = run(&place, &["python3", "-c", script]);
    assert_eq!(said, "b'a'\nb'a'\na 0\na\n");
    assert_clean(&place);
}

/// What was written, the program that was killed said so, is there: without any sync.
#[test]
fn what_a_killed_program_wrote_is_there() {
    need!();
    let place = Place::with_volume();
    let program = place.compiled("calls");
    for round in 0..3 {
        let (mut command, served) =
            place.begin(&["run", "v.adit", "--", &program, "/adit", "append"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        for _ in 0..=round * 1000 + 10 {
            lines.next().expect("a line").expect("text");
        }
        child.kill().expect("killed");
        child.wait().expect("ended");
        let told = lines.map_while(Result::ok).count() + round * 1000 + 11;
        drop(served);
        let log = run(&place, &["cat", "/adit/log"]);
        let mut expected = String::new();
        (0..told - 1).for_each(|line| writeln!(expected, "{line}").expect("text"));
        // The last line that was told may have been cut in the pipe; more may have been written.
        assert!(
            log.starts_with(&expected),
            "{told} lines were told, the log has {}",
            log.lines().count()
        );
        run(&place, &["rm", "/adit/log"]);
    }
    assert_clean(&place);
}

#[test]
fn a_volume_that_cannot_be_had_is_told_in_words() {
    need!();
    let place = Place::with_volume();
    let missing = place.fails(1, &["run", "missing.adit", "--", "true"]);
    assert!(missing.contains("missing.adit"), "{missing}");
    let root = place.fails(1, &["run", "v.adit", "--prefix", "//", "--", "true"]);
    assert!(root.contains("--prefix //"), "{root}");
    let program = place.fails(1, &["run", "v.adit", "--", "no-such-program"]);
    assert!(
        program.contains("no-such-program: no such program"),
        "{program}"
    );
    place.write(
        "text",
        "no volume, but long enough to be looked at\n".repeat(500),
    );
    let text = place.fails(1, &["run", "text", "--", "cat", "/adit/a"]);
    assert!(text.contains("adit: ") && text.contains("text"), "{text}");
    // What goes past the C library would find the host's directory, and nobody would say so.
    place.write("taken/file", "the host's");
    let taken = place.path("taken");
    let taken = taken.to_str().expect("text");
    let refused = place.fails(1, &["run", "v.adit", "--prefix", taken, "--", "true"]);
    assert!(refused.contains("--cover"), "{refused}");
    let list = ["--", "ls", taken];
    let covered = ["run", "v.adit", "--cover", "--prefix", taken];
    assert_eq!(place.ok(&[&covered[..], &list].concat()), "");
    // A program that doesn't touch the volume doesn't open it.
    run(&place, &["true"]);
    place.ok(&["run", "text", "--", "true"]);
    let prefix = place.ok(&[
        "run",
        "v.adit",
        "--prefix",
        "/some/where/",
        "--",
        "ls",
        "-a",
        "/some//where/.",
    ]);
    assert_eq!(prefix, ".\n..\n");
}

/// All volumes had one `st_dev`: PostgreSQL took the memory of a cluster on another volume for its
/// own, and did not start.
#[test]
fn files_of_each_volume_have_a_device_number_of_its_own() {
    need!("python3");
    let place = Place::with_volume();
    place.ok(&["mkfs", "w.adit", "--size", "64M"]);
    // By stat, and by statx.
    let look = "import os; print(os.stat('/adit').st_dev, end=' ', flush=True); \
                os.execlp('stat', 'stat', '-c', '%d', '/adit')";
    let look = |volume| place.ok(&["run", volume, "--", "python3", "-c", look]);
    let (one, other) = (look("v.adit"), look("w.adit"));
    for numbers in [&one, &other] {
        let (stat, statx) = numbers.trim().split_once(' ').expect("two numbers");
        assert_eq!(stat, statx);
    }
    assert_ne!(one, other);
    assert_eq!(look("v.adit"), one, "each time the same");
    let served = support::servers::Served::start(&place, &[]);
    assert_eq!(look("unix:s"), one, "in a server, too");
    drop(served);
}

/// A program with a limit of file sizes below the image's was killed by SIGXFSZ.
#[test]
fn a_program_with_a_limit_of_file_sizes_is_told_and_lives() {
    need!();
    let place = Place::with_volume();
    let limited = "ulimit -c 0; ulimit -f 1024; cat /adit/f; echo it lives";
    let run = place.command(&["run", "v.adit", "--", "sh", "-c", limited]);
    let output = place.end(run);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.stdout, b"it lives\n", "{said}");
    assert!(said.contains("raise it (ulimit -f)"), "{said}");
    assert_clean(&place);
}

/// With --share the programs that a program starts use the volume beside it, and others do.
#[test]
fn programs_share_the_volume_that_one_of_them_has() {
    need!("python3");
    support::servers::go_before_others();
    let place = Place::with_volume();
    let run = |program: &[&str]| {
        let all = [&["run", "--share", "sh", "v.adit", "--"], program].concat();
        place.ok(&all)
    };
    // The shell has the volume: it has a file open while the others run.
    let said = run(&[
        "sh",
        "-c",
        "set -e; umask 022; exec 9>/adit/open; echo one >/adit/a; cp /adit/a /adit/b; \
         cat /adit/a /adit/b; sh -c 'echo two >>/adit/b'; ls /adit",
    ]);
    assert_eq!(said, "one\none\na\nb\nopen\n");
    // The socket was made without the program's mask, which is the program's.
    let listed = place.ok(&["ls", "-l", "v.adit", "/a"]);
    assert!(listed.starts_with("-rw-r--r--"), "{listed}");
    assert_eq!(place.ok(&["cat", "v.adit", "/b"]), "one\ntwo\n");
    // A process of another program, while the owner lives, and after its death.
    let script = "f=open('/adit/own','a'); f.write('x'); f.flush(); print('=on',flush=True)\n\
                  import time; time.sleep(600)";
    let start = || {
        let mut owner = place
            .command(&[
                "run", "--share", "sh", "v.adit", "--", "python3", "-c", script,
            ])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut line = String::new();
        let output = owner.stdout.as_mut().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("read");
        assert_eq!(line, "=on\n");
        owner
    };
    let mut owner = start();
    let address = format!("unix:{}", place.path("sh").display());
    // The next program may take longer to begin than a session waits by default.
    let mut patient = adit::VolumeOptions::new();
    patient.reconnect(std::time::Duration::from_secs(120));
    let volume = adit::Volume::open_with(&address, &patient).expect("connected");
    let mut options = adit::OpenOptions::new();
    let file = volume.open_file("/own", options.read(true).append(true));
    let file = file.expect("opened");
    file.append(b"y").expect("appended");
    owner.kill().expect("killed");
    owner.wait().expect("ended");
    let mut owner = start();
    file.append(b"z").expect("with the next owner");
    assert_eq!(volume.read("/own").expect("read"), b"xyxz");
    owner.kill().expect("killed");
    owner.wait().expect("ended");
    drop((file, volume));
    assert_clean(&place);
}

/// A shell closes number 1 and puts a file there: a thread of the server had the number in between,
/// and what the shell wrote was lost. A session's connection had a low number as long as it lived.
#[test]
fn who_shares_the_volume_keeps_its_low_numbers() {
    const SESSIONS: usize = 200;
    need!();
    support::servers::go_before_others();
    let place = Place::with_volume();
    let program = place.compiled("numbers");
    let here = place.path("").display().to_string();
    let command = ["run", "--share", "sh", "v.adit", "--", &program, &here];
    let mut owner = place
        .command(&command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(owner.stdout.take().expect("piped")).lines();
    let on = lines.next().map(|line| line.expect("text"));
    assert_eq!(on.as_deref(), Some("=on"));
    let address = format!("unix:{}", place.path("sh").display());
    let mut patient = adit::VolumeOptions::new();
    patient.reconnect(std::time::Duration::from_secs(120));
    let connect = || adit::Volume::open_with(&address, &patient).expect("connected");
    // One is there all the time.
    let stays = connect();
    let mut options = adit::OpenOptions::new();
    options.read(true).append(true).create(true);
    for session in 0..SESSIONS {
        let volume = connect();
        let file = volume.open_file("/theirs", &options).expect("opened");
        file.append(b"y").expect("appended");
        file.sync_all().expect("synced");
        if owner.try_wait().expect("known").is_some() {
            panic!("the program has ended beside session {session}");
        }
    }
    assert_eq!(stays.read("/theirs").expect("read").len(), SESSIONS);
    place.write("enough", "");
    let rounds = lines.next().expect("a line").expect("text");
    assert!(owner.wait().expect("ended").success());
    let count = rounds.strip_suffix(" rounds").expect("their number");
    assert!(count.parse::<u64>().expect("a number") > 0, "{rounds}");
    drop(stays);
    assert_clean(&place);
}

/// The loader divides `LD_PRELOAD` at spaces and colons: the program started without the library, and
/// its files went to the host.
#[test]
fn a_library_lies_where_its_path_has_a_space_and_a_colon() {
    need!();
    let place = Place::with_volume();
    let library = place.path("a b:c").join("libadit_preload.so");
    std::fs::create_dir(place.path("a b:c")).expect("made");
    std::fs::copy(support::library(), &library).expect("copied");
    let library = library.to_str().expect("text");
    let script = "echo text > /adit/f; cat /adit/f";
    let words = [
        "run",
        "v.adit",
        "--library",
        library,
        "--",
        "sh",
        "-c",
        script,
    ];
    assert_eq!(place.ok(&words), "text\n");
    assert_eq!(place.ok(&["cat", "v.adit", "/f"]), "text\n");
}
