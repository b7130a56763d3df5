//! Gives `libadit.so` the name by which programs ask for it when they are started, and a link of
//! that name beside it.

use std::path::Path;

/// `libadit.so.` and the major number of the interface (`ADIT_API_MAJOR` of `adit.h`).
const SONAME: &str = "libadit.so.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // target/PROFILE/build/libadit-HASH/out: where an installation has this link, a program finds
    // what was built here, too.
    let out = std::env::var_os("OUT_DIR").expect("cargo says where");
    let folder = Path::new(&out).ancestors().nth(3).expect("it is deep");
    let link = folder.join(SONAME);
    let made = std::os::unix::fs::symlink("libadit.so", &link);
    if let Err(error) = made
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        println!("cargo:warning=no {}: {error}", link.display());
    }
}
