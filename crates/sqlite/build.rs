//! Compiles the VFS of plugins/sqlite for static linking, over the SQLite that libsqlite3-sys
//! links.

fn main() {
    let sources = "../../plugins/sqlite";
    println!("cargo:rerun-if-changed={sources}");
    println!("cargo:rerun-if-changed=../capi/include/adit.h");
    let mut build = cc::Build::new();
    for entry in std::fs::read_dir(sources).expect("the plugin is there") {
        let path = entry.expect("a folder can be read").path();
        if path.extension().is_some_and(|extension| extension == "c") {
            build.file(path);
        }
    }
    if let Some(include) = std::env::var_os("DEP_SQLITE3_INCLUDE") {
        build.include(include);
    }
    build
        .std("c11")
        .define("SQLITE_CORE", None)
        .include("../capi/include")
        .compile("adit_sqlite_vfs");
}
