//! Programs, scripts and libraries that lie in the volume: they are executed and loaded as on the
//! host's file system.

#[macro_use]
mod support;

use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use support::servers::{Served, Watchdog};
use support::{Place, USER, is_root};

/// What a program prints on both of its outputs.
fn output_of(mut command: Command) -> String {
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .expect("it runs");
    both(&output)
}

fn both(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "{}{}{}\n",
        text(&output.stdout),
        text(&output.stderr),
        output.status
    )
}

/// A word with another directory in the place of `/adit`. (A clone may lie in a folder `adit`.)
fn with_top(word: &str, top: &str) -> String {
    let mut pieces = word.split("/adit");
    let mut changed = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        let is_inner = changed.ends_with(is_name);
        changed.push_str(if is_inner { "/adit" } else { top });
        changed.push_str(piece);
    }
    changed
}

/// The same program in a directory of the host, with the paths of a volume.
fn on_host(place: &Place, program: &[&str]) -> String {
    let top = place.path("host");
    std::fs::create_dir(&top).expect("made");
    let top = top.to_str().expect("text");
    let mut command = Command::new(program[0]);
    let arguments = program[1..].iter();
    command.args(arguments.map(|word| with_top(word, top)));
    command.current_dir(place.path("")).env("LC_ALL", "C");
    output_of(command).replace(top, "/adit")
}

/// Runs a program with the volume, and what ends both.
fn run(place: &Place, options: &[&str], program: &[&str]) -> String {
    let words = [&["run"], options, &["--"], program].concat();
    both(&place.end(place.command(&words)))
}

fn end(place: &Place, served: Served) {
    served.signal(Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success(), "{errors}");
    place.ok(&["check", "v.adit"]);
}

fn assert_same(of_volume: &str, of_host: &str) {
    for (volume, host) in of_volume.lines().zip(of_host.lines()) {
        assert_eq!(
            volume, host,
            "in the volume, on the host; all:\n{of_volume}"
        );
    }
    assert_eq!(of_volume, of_host);
}

#[test]
fn programs_and_scripts_are_executed_in_every_way_as_on_linux() {
    need!("cc");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = place.compiled("execute");
    let served = Served::start(&place, &[]);
    let words = [&program[..], "all", "/adit"];
    let host = on_host(&place, &words);
    assert_eq!(host.matches("many at once: done\n").count(), 4, "{host}");
    assert_same(&run(&place, &["unix:s"], &words), &host);
    end(&place, served);
}

/// `./script` was ENOENT, a commit with a hook failed, and make didn't find what it had built.
#[test]
fn shells_make_git_and_python_execute_what_lies_in_the_volume() {
    need!("bash" "dash" "cc" "make" "git" "python3" "perl" "find" "xargs" "env");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/execute.sh");
    let other = place.path("other");
    std::fs::create_dir(&other).expect("made");
    let words = ["bash", script, "/adit", other.to_str().expect("text")];
    let host = on_host(&place, &words);
    assert!(host.contains("alias 1\n"), "{host}");
    assert_same(&run(&place, &["unix:s"], &words), &host);
    end(&place, served);
}

/// As far as a volume in one process at a time allows: a program that is started has the volume, if
/// its parent has nothing of it open.
#[test]
fn an_embedded_volume_is_closed_before_what_lies_in_it_is_executed() {
    need!("bash" "dash" "cc" "python3");
    let place = Place::with_volume();
    let program = place.compiled("execute");
    let run = |program: &[&str]| run(&place, &["v.adit"], program);
    run(&["cp", &program, "/adit/tool"]);
    let script =
        "printf '#!/bin/sh\\necho \"$0 $*\"; read line < /adit/text; echo $line\\n' > /adit/s
        chmod +x /adit/s; echo text > /adit/text";
    assert_eq!(run(&["bash", "-c", script]), "exit status: 0\n");
    let said = "/adit/s 1 2\ntext\n";
    assert_eq!(
        run(&["bash", "-c", "/adit/s 1 2; test -f /adit/s; /adit/s 1 2"]),
        format!("{said}{said}exit status: 0\n")
    );
    assert_eq!(
        run(&["dash", "-c", "exec /adit/s 1 2"]),
        format!("{said}exit status: 0\n")
    );
    // The program itself.
    let said = run(&["/adit/tool", "1"]);
    assert!(
        said.starts_with("[/adit/tool][1] exe=/adit/tool real name=tool"),
        "{said}"
    );
    assert!(said.ends_with("exit status: 7\n"), "{said}");
    let spawn = "import os\n\
        for name in '/adit/s', '/adit/tool':\n\
        \x20   child = os.posix_spawn(name, [name, '1', '2'], os.environ)\n\
        \x20   print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n\
        try: os.posix_spawn('/adit/text', ['text'], os.environ)\n\
        except PermissionError: print('not executable', flush=True)\n\
        os.execv('/adit/tool', ['tool', open('/adit/text').read().strip()])\n";
    let said = run(&["python3", "-c", spawn]);
    let tool = "exe=/adit/tool real name=tool";
    let expected = [
        "/adit/s 1 2",
        "text",
        "0",
        &format!("[/adit/tool][1][2] {tool}"),
        "7",
        "not executable",
        &format!("[tool][text] {tool}"),
        "exit status: 7",
    ];
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{said}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}, not {expected}");
    }
    place.ok(&["check", "v.adit"]);
}

/// A program without the library, or with an environment that doesn't name it, can't open a script
/// of the volume: it gets a copy.
#[test]
fn an_interpreter_without_the_volume_reads_a_copy() {
    need!("cc" "bash");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    place.write(
        "cat.c",
        "#include <stdio.h>\nint main(int n, char **a) {\n\
        FILE *f = fopen(a[n - 1], \"r\"); int c; while (f && (c = getc(f)) != EOF) putchar(c);\n\
        printf(\"%d of %s\\n\", f != 0, a[0]); return 0; }\n",
    );
    let built = Command::new("cc")
        .args(["-static", "-o", "static", "cat.c"])
        .current_dir(place.path(""))
        .status();
    if !built.is_ok_and(|built| built.success()) {
        return adit_skip::skip("there is no static C library (apt install libc6-dev)");
    }
    let run = |script: &str| {
        let script = script.replace("HOST", place.path("").to_str().expect("text"));
        run(&place, &["unix:s"], &["bash", "-c", &script])
    };
    let said = run(
        "cd /adit; printf '#!/bin/sh\\necho \"$0 $1 $LEFT\"; exit 3\\n' > s; chmod +x s
        LEFT=not env -i ./s a; echo $?; env -i LEFT=kept PATH=/adit s b",
    );
    let lines: Vec<&str> = said.lines().collect();
    // The shells then say that their working directory was removed.
    let [a, three, b, ..] = lines[..] else {
        panic!("{said}");
    };
    assert!(a.starts_with("/dev/fd/") && a.ends_with(" a "), "{said}");
    assert_eq!(three, "3");
    assert!(
        b.starts_with("/dev/fd/") && b.ends_with(" b kept"),
        "{said}"
    );
    // Static: an interpreter of the host, one of the volume, and a program.
    let said = run("cd /adit; cp HOSTstatic own; ./own missing
        printf '#!%s\\n' HOSTstatic > s; chmod +x s; ./s; printf '#!/adit/own\\n' > s; ./s");
    let host = place.path("static");
    let expected = format!(
        "0 of ./own\n#!{0}\n1 of {0}\n#!/adit/own\n1 of /adit/own\nexit status: 0\n",
        host.display()
    );
    assert_eq!(said, expected);
    end(&place, served);
}

#[test]
fn other_users_execute_what_the_bits_allow() {
    need!("bash" "cc");
    if !is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let all = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
    };
    all(&place.path(""), 0o755);
    let served = Served::start(&place, &["--mode", "0666"]);
    let make = "cd \"$1\"; chmod 755 .; printf '#!/bin/sh\\necho s\\n' > s; cp /bin/true t
        mkdir closed; cp s t closed; chmod 700 closed; chmod 755 s t closed/*
        for mode in 700 070 007 744 755 644 000 4755; do
            cp s s$mode; cp t t$mode; chmod $mode s$mode t$mode
        done
        cp t t070g; chown 0:4711 t070g; chmod 070 t070g; cp t t700u; chown 4711 t700u; chmod 700 t700u";
    let look = "cd \"$1\"; for f in s* t* closed/s closed/t; do
            test -x $f; may=$?; ./$f > /dev/null 2>&1; echo \"$f: $may $?\"
        done";
    let host = place.path("host");
    std::fs::create_dir(&host).expect("made");
    let host = host.to_str().expect("text");
    let mut as_user = Command::new("bash");
    as_user.args(["-c", look, "look", host]);
    as_user.uid(USER).gid(USER);
    let mut as_root = Command::new("bash");
    assert!(
        as_root
            .args(["-c", make, "make", host])
            .status()
            .expect("run")
            .success()
    );
    let expected = output_of(as_user);
    assert!(
        expected.contains("s755: 0 0\n") && expected.contains("t644: 1 126\n"),
        "{expected}"
    );
    let made = run(&place, &["unix:s"], &["bash", "-c", make, "make", "/adit"]);
    assert_eq!(made, "exit status: 0\n");
    let mut command = place.command(&["run", "unix:s", "--", "bash", "-c", look, "look", "/adit"]);
    command.uid(USER).gid(USER);
    assert_same(&output_of(command), &expected);
    // Root executes what anybody may.
    let look = "cd /adit; ./t644; echo $?; ./t000; echo $?; ./t070; echo $?; ./closed/s";
    let said = run(&place, &["unix:s"], &["bash", "-c", look]);
    let codes: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("bash:"))
        .collect();
    assert_eq!(codes, ["126", "126", "0", "s", "exit status: 0"], "{said}");
    end(&place, served);
}

/// Set-user-ID bits of the volume change nobody.
#[test]
fn a_copy_has_no_set_user_id() {
    need!("bash");
    if !is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.path(""), all).expect("set");
    let served = Served::start(&place, &["--mode", "0666"]);
    run(
        &place,
        &["unix:s"],
        &[
            "bash",
            "-c",
            "cp /usr/bin/id /adit/id; chmod 4755 /adit/id; chmod 755 /adit",
        ],
    );
    let mut command = place.command(&["run", "unix:s", "--", "bash", "-c", "/adit/id -u"]);
    command.uid(USER).gid(USER);
    assert_eq!(output_of(command), format!("{USER}\nexit status: 0\n"));
    end(&place, served);
}

/// A copy takes a descriptor, and memory that counts as a file.
#[test]
fn a_copy_that_the_limits_forbid_is_refused() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let script = "import os, resource, shutil\n\
        shutil.copy('/bin/true', '/adit/t')\n\
        open('/adit/s', 'w').write('#!/bin/true\\n'); os.chmod('/adit/s', 0o755)\n\
        def run(name):\n\
        \x20   try: return os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(name, [name], os.environ), 0)[1])\n\
        \x20   except OSError as error: return os.strerror(error.errno)\n\
        def both(): return run('/adit/t'), run('/adit/s')\n\
        print(both())\n\
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n\
        print(both())\n\
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n\
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))\n\
        held = []\n\
        try:\n\
        \x20   while True: held.append(os.dup(0))\n\
        except OSError: pass\n\
        print(both())\n\
        for fd in held: os.close(fd)\n\
        print(both())\n";
    let said = run(&place, &["unix:s"], &["python3", "-c", script]);
    let expected = "(0, 0)\n('File too large', 0)\n('Too many open files', 0)\n(0, 0)\n\
        adit: a program in the volume is larger than RLIMIT_FSIZE allows its copy to be: EFBIG\n\
        exit status: 0\n";
    assert_eq!(said, expected);
    end(&place, served);
}

#[test]
fn libraries_of_the_volume_are_loaded_as_on_linux() {
    need!("cc");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = place.compiled("libraries");
    for (name, first, more) in [
        ("one", 1, ""),
        ("two", 1001, ""),
        (
            "three",
            2001,
            "#include <dlfcn.h>\n__attribute__((constructor)) static void begin(void) {\n\
             int (*next)(void) = (int (*)(void))dlsym(dlopen(\"./one.so\", RTLD_NOW), \"next\");\n\
             next(); }\n",
        ),
    ] {
        let source =
            format!("{more}static int count = {first}; int next(void) {{ return count++; }}\n");
        place.write(&format!("{name}.c"), source);
        let built = Command::new("cc")
            .args([
                "-shared",
                "-fPIC",
                "-o",
                &format!("{name}.so"),
                &format!("{name}.c"),
            ])
            .current_dir(place.path(""))
            .status();
        assert!(built.expect("a compiler").success());
    }
    // One that needs another one, in a directory below its own.
    place.write(
        "five.c",
        "static int count = 3001; int five(void) { return count++; }\n",
    );
    place.write(
        "four.c",
        "int five(void); int next(void) { return five(); }\n",
    );
    place.write(
        "lib/next.c",
        "int five(void); int next(void) { return five() + 500; }\n",
    );
    let build = "cc -shared -fPIC -Wl,-soname,libfive.so -o lib/libfive.so five.c lib/next.c &&
        cc -shared -fPIC -o four.so four.c -Wl,-rpath,'$ORIGIN/lib' -Llib -lfive";
    let built = Command::new("sh")
        .args(["-c", build])
        .current_dir(place.path(""))
        .status();
    assert!(built.expect("a shell").success());
    let libraries = place.path("").to_str().expect("text").to_owned();
    let words = [&program[..], "/adit", &libraries];
    let host = on_host(&place, &words);
    assert!(
        host.ends_with("exit status: 0\n") && !host.contains("another"),
        "{host}"
    );
    let served = Served::start(&place, &[]);
    assert_same(&run(&place, &["unix:s"], &words), &host);
    end(&place, served);
}

#[test]
fn python_imports_an_extension_of_the_volume() {
    need!("cc" "python3" "bash");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    place.write(
        "extension.c",
        "#include <Python.h>\n\
        static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, \"extension\", NULL, -1, NULL};\n\
        PyMODINIT_FUNC PyInit_extension(void) {\n\
        PyObject *made = PyModule_Create(&module);\n\
        PyModule_AddIntConstant(made, \"answer\", 42); return made; }\n",
    );
    let script = "import sysconfig, subprocess, sys\n\
        include = sysconfig.get_path('include')\n\
        sys.exit(subprocess.call(['cc', '-shared', '-fPIC', '-I', include, '-o', 'extension.so', 'extension.c']))\n";
    let mut build = Command::new("python3");
    let built = build
        .args(["-c", script])
        .current_dir(place.path(""))
        .output();
    if !built.is_ok_and(|built| built.status.success()) {
        return adit_skip::skip("no headers of Python (apt install python3-dev)");
    }
    let import =
        "import sys; sys.path.insert(0, '/adit'); import extension; print(extension.answer)";
    let python = ["python3", "-c", import];
    let answer = "42\nexit status: 0\n";
    // Embedded, and in a server.
    run(&place, &["v.adit"], &["cp", "extension.so", "/adit"]);
    assert_eq!(run(&place, &["v.adit"], &python), answer);
    let served = Served::start(&place, &[]);
    assert_eq!(run(&place, &["unix:s"], &python), answer);
    end(&place, served);
}

#[test]
fn with_noexec_nothing_of_the_volume_is_executed() {
    need!("cc" "python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let script = "import ctypes, os, shutil\n\
        shutil.copy('/bin/true', '/adit/t')\n\
        open('/adit/s', 'w').write('#!/bin/true\\n'); os.chmod('/adit/s', 0o755)\n\
        os.chdir('/adit')\n\
        def spawn(name): os.waitpid(os.posix_spawn(name, [name], os.environ), 0)\n\
        def execute(name): os.execv(name, [name])\n\
        def number(name): os.execve(os.open(name, os.O_RDONLY), [name], os.environ)\n\
        for name in '/adit/t', './t', '/adit/s', '/adit/missing':\n\
        \x20   for start in spawn, execute, number:\n\
        \x20       try: print('started', start(name))\n\
        \x20       except OSError as error: print(os.path.basename(name), error.errno)\n\
        print(os.access('t', os.X_OK), os.access('.', os.X_OK), os.access('t', os.R_OK), os.system('true'))\n\
        try: ctypes.CDLL('/adit/t')\n\
        except OSError: print('not loaded')\n";
    let said = run(&place, &["unix:s", "--noexec"], &["python3", "-c", script]);
    let refused = |name: &str, errno: u32| format!("{name} {errno}\n").repeat(3);
    let expected = [
        refused("t", 13),
        refused("t", 13),
        refused("s", 13),
        refused("missing", 2),
        "False True True 0\nnot loaded\nexit status: 0\n".to_owned(),
    ];
    assert_eq!(said, expected.concat());
    end(&place, served);
}
