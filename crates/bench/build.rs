//! Tells the report from which revision it was built, where git knows that.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let said = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        Some(text.trim().to_owned()).filter(|text| output.status.success() && !text.is_empty())
    };
    // It grows with each commit and each checkout.
    if let Some(log) = said(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    if let Some(revision) = said(&["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo::rustc-env=ADIT_REVISION={revision}");
    }
}
