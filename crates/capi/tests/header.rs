//! `adit.h` as a contract: it compiles, and it is what the library exports.

mod support;

use std::collections::BTreeSet;
use support::{compiler, find_missing, include, library, run, scratch};

fn compile_header(cplusplus: bool) {
    let folder = scratch();
    let source = folder
        .path()
        .join(if cplusplus { "use.cc" } else { "use.c" });
    std::fs::write(
        &source,
        "#include \"adit.h\"\n#include \"adit.h\"\n\
         adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;\n\
         adit_open_options open_options = ADIT_OPEN_OPTIONS_INIT;\n\
         adit_queue_options queue_options = ADIT_QUEUE_OPTIONS_INIT;\n\
         adit_health_options health_options = ADIT_HEALTH_OPTIONS_INIT;\n\
         adit_info info = ADIT_INFO_INIT;\n\
         adit_check_result check = ADIT_CHECK_RESULT_INIT;\n\
         adit_scrub_result scrub = ADIT_SCRUB_RESULT_INIT;\n",
    )
    .expect("a scratch folder can be written");
    run(compiler(cplusplus)
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(folder.path().join("use.o")));
}

#[test]
fn the_header_compiles_as_c11() {
    compile_header(false);
}

#[test]
fn the_header_compiles_as_cplusplus17() {
    if let Some(missing) = find_missing(&[("g++", "g++")], None, &mut compiler(true)) {
        return adit_skip::skip(missing);
    }
    compile_header(true);
}

/// Names of the functions that the header declares: `adit_` words before a parenthesis, outside
/// comments.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(include().join("adit.h")).expect("the header is there");
    let mut code = String::new();
    let mut rest = header.as_str();
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    code.push_str(rest);
    code.match_indices('(')
        .filter_map(|(at, _)| {
            let word = code[..at]
                .rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .next()?;
            word.starts_with("adit_").then(|| word.to_owned())
        })
        .collect()
}

#[test]
fn the_library_exports_exactly_what_the_header_declares() {
    let symbols = run(std::process::Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library("libadit.so")));
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().rev();
            let (name, kind) = (words.next()?, words.next()?);
            (kind == "T").then(|| name.to_owned())
        })
        .collect();
    let declared = declared();
    assert!(
        declared.len() > 50,
        "only {declared:?} were found in the header"
    );
    assert_eq!(declared, exported);
}
