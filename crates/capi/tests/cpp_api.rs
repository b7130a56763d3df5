//! `adit.hpp` with g++ and clang++, as C++17 and C++20: the programs of `tests/cpp`, and the
//! lessons of `examples/cpp`.

#[macro_use]
mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use support::*;

const STANDARDS: [&str; 2] = ["c++17", "c++20"];

/// What is not installed here of what each test needs.
fn missing() -> Option<String> {
    find_missing(&[("g++", "g++")], None, &mut Command::new("g++"))
}

/// A compiler with every warning an error.
fn strict(compiler: &str, standard: &str) -> Command {
    let mut command = Command::new(compiler);
    command
        .arg(format!("-std={standard}"))
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-g1"])
        .arg("-I")
        .arg(include());
    command
}

/// Links with `libadit.so`.
fn link(command: &mut Command) {
    let shared = library("libadit.so");
    let folder = shared.parent().expect("a library lies in a folder");
    command
        .arg(&shared)
        .arg(format!("-Wl,-rpath,{}", folder.display()));
}

fn source(name: &str) -> PathBuf {
    root().join("crates/capi/tests/cpp").join(name)
}

/// Compiles a program and runs it on a volume in memory, on an image, and in a server.
fn claims_hold_with(mut compile: Command, name: &str, flags: &[&str]) {
    let folder = scratch();
    let program = folder.path().join(name);
    compile.arg(source(&format!("{name}.cc"))).args(flags);
    compile.arg("-o").arg(&program).arg("-pthread");
    link(&mut compile);
    run(&mut compile);
    let image = folder.path().join("volume.adit");
    let served = serve("256M");
    let addresses = ["mem:128M".into(), image, served.address().into()];
    for address in addresses as [PathBuf; 3] {
        let output = run(Command::new(&program).arg(address));
        assert!(output.contains("claims hold"), "{name}: {output}");
    }
}

/// Compiles and runs the test that brings its own stand-in for the library.
fn futures_hold_with(mut compile: Command, flags: &[&str]) {
    let folder = scratch();
    let program = folder.path().join("future_test");
    compile.arg(source("future_test.cc")).args(flags);
    run(compile.arg("-o").arg(&program).arg("-pthread"));
    let output = run(&mut Command::new(&program));
    assert!(output.contains("claims hold"), "{output}");
}

/// All programs, with one compiler.
fn everything_holds_with(compiler: &str) {
    for standard in STANDARDS {
        futures_hold_with(strict(compiler, standard), &[]);
        claims_hold_with(strict(compiler, standard), "objects_test", &[]);
        claims_hold_with(strict(compiler, standard), "api_test", &[]);
    }
    claims_hold_with(strict(compiler, "c++20"), "coroutine_test", &[]);
}

#[test]
fn everything_holds_with_gcc() {
    need!();
    everything_holds_with("g++");
}

#[test]
fn everything_holds_with_clang() {
    let clang = find_missing(&[("clang++", "clang")], None, &mut Command::new("clang++"));
    if let Some(missing) = clang {
        return adit_skip::skip(missing);
    }
    everything_holds_with("clang++");
}

/// An operation whose memory is gone would be seen here.
#[test]
fn the_address_sanitizer_finds_nothing() {
    need!();
    let flags = [
        "-O0", // takes half the time to compile, and keeps every access
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
    ];
    futures_hold_with(strict("g++", "c++20"), &flags);
    for name in ["objects_test", "api_test", "coroutine_test"] {
        claims_hold_with(strict("g++", "c++20"), name, &flags);
    }
}

/// Several threads take from a pool, and submit to and fetch from one io_context.
#[test]
fn the_thread_sanitizer_finds_nothing() {
    need!();
    futures_hold_with(strict("g++", "c++20"), &["-fsanitize=thread"]);
}

/// Each header may be included alone, twice, in two files of a program, without exceptions and
/// without run-time types.
#[test]
fn each_header_compiles_alone_and_links_twice() {
    need!();
    let mut headers = vec!["adit.hpp".to_owned()];
    for entry in std::fs::read_dir(include().join("adit")).expect("there are headers") {
        let name = entry.expect("a folder can be read").file_name();
        headers.push(format!("adit/{}", name.to_str().expect("text")));
    }
    assert!(headers.len() > 5, "{headers:?}");
    let folder = scratch();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("written");
        file
    };
    let bare = |standard| {
        let mut compile = strict("g++", standard);
        compile.args(["-fno-exceptions", "-fno-rtti"]);
        compile
    };
    let mut all = String::new();
    for header in &headers {
        let twice = format!("#include \"{header}\"\n#include \"{header}\"\n");
        let alone = write("alone.cc", &twice);
        for standard in STANDARDS {
            run(bare(standard).arg("-fsyntax-only").arg(&alone));
        }
        all += &twice;
    }
    let one = write("one.cc", &all);
    let other = write("other.cc", &format!("{all}int main() {{}}\n"));
    for standard in STANDARDS {
        let mut compile = bare(standard);
        compile.args([&one, &other]).arg("-o");
        compile.arg(folder.path().join("both"));
        link(&mut compile);
        run(&mut compile);
    }
}

/// The words `adit_…` of a header, outside comments.
fn names_in(header: &str) -> BTreeSet<String> {
    let mut code = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    code.push_str(rest);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    code.split(|c: char| !is_part(c))
        .filter(|word| word.starts_with("adit_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_function_of_the_c_interface_is_reachable() {
    need!();
    let read = |name: &str| std::fs::read_to_string(include().join(name)).expect("a header");
    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only", "--format=just-symbols"])
        .arg(library("libadit.so")));
    let used: BTreeSet<String> = ["api", "file", "future", "queue", "result", "volume"]
        .iter()
        .flat_map(|name| names_in(&read(&format!("adit/{name}.hpp"))))
        .collect();
    let missing: Vec<&str> = symbols
        .lines()
        .filter(|name| name.starts_with("adit_") && !used.contains(*name))
        .collect();
    assert!(symbols.lines().count() > 50, "{symbols}");
    assert!(missing.is_empty(), "adit.hpp doesn't use {missing:?}");
}

/// As their first comments say, and with every warning.
#[test]
fn the_cplusplus_examples_run_as_they_say() {
    need!();
    for source in sources("examples/cpp", "cpp") {
        let (folder, output) = run_as_it_says(&source);
        assert!(output.contains("copied at depth 128"), "{output}");
        let strictly = folder.path().join("strict.o");
        run(strict("g++", "c++17")
            .arg("-c")
            .arg(&source)
            .arg("-o")
            .arg(strictly));
    }
}

/// The page's example, to the letter.
#[test]
fn the_example_of_the_documentation_runs() {
    need!();
    let page = std::fs::read_to_string(root().join("docs/using/cpp.md")).expect("the page");
    for (number, block) in page.split("```cpp\n").skip(1).enumerate() {
        let code = block.split("```").next().expect("it has an end");
        let folder = scratch();
        let file = folder.path().join("example.cc");
        std::fs::write(&file, code).expect("written");
        let program = folder.path().join("example");
        let mut compile = strict("g++", "c++20");
        compile.arg(&file).arg("-o").arg(&program);
        link(&mut compile);
        run(&mut compile);
        let output = outcome(&mut Command::new(&program));
        assert!(
            output.status.success() && !output.stdout.is_empty(),
            "example {number}: {output:?}"
        );
    }
    assert_eq!(page.matches("```cpp\n").count(), 2);
}
