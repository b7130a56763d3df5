//! Every dependency that a crate declares is used by it, and each of the workspace by some crate.
//!
//! Rustc's own lint (`unused_crate_dependencies`) looks at one target at a time, and a test program
//! uses few of its crate's dependencies. So the sources are searched: a dependency is used where a
//! path begins with its name, `name::`, or where it is imported by it. A dependency that only tests
//! use belongs below `[dev-dependencies]`; in a file with a `mod tests {` the two uses are not told
//! apart.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Sources of one kind, without their comments.
struct Sources(String);

impl Sources {
    /// Everything below these files and folders, and what is included from elsewhere by a path.
    fn read(roots: &[PathBuf]) -> Sources {
        let mut text = String::new();
        let mut seen = BTreeSet::new();
        let mut pending = roots.to_vec();
        while let Some(path) = pending.pop() {
            // An included file may include another one, and a missing folder is an empty one.
            let Ok(path) = path.canonicalize() else {
                continue;
            };
            if !seen.insert(path.clone()) {
                continue;
            }
            if path.is_dir() {
                let entries = std::fs::read_dir(&path).expect("a folder of sources");
                pending.extend(entries.map(|entry| entry.expect("an entry").path()));
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let source = std::fs::read_to_string(&path).expect("a source");
                let folder = path.parent().unwrap_or(Path::new("/"));
                pending.extend(included(&source).map(|name| folder.join(name)));
                text.push_str(&without_comments(&source));
            }
        }
        Sources(text)
    }

    fn mention(&self, name: &str) -> bool {
        let name = name.replace('-', "_");
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        self.0.match_indices(&name).any(|(at, _)| {
            let (before, after) = (&self.0[..at], &self.0[at + name.len()..]);
            let global = before.strip_suffix("::").unwrap_or(before);
            let imported = ["use ", "extern crate "].iter().any(|keyword| {
                (global.strip_suffix(keyword)).is_some_and(|before| !before.ends_with(is_word))
            });
            let begins = imported || !before.ends_with(is_word) && !before.ends_with("::");
            let ends = after.starts_with("::") || imported && !after.starts_with(is_word);
            begins && ends
        })
    }
}

/// Names of other sources: `#[path = "…"]`, by itself or by a macro's argument.
fn included(source: &str) -> impl Iterator<Item = &str> {
    let strings = source.split('"').skip(1);
    strings.filter(|string| string.ends_with(".rs") && !string.contains('\n'))
}

fn without_comments(source: &str) -> String {
    let lines = source.lines().map(|line| match line.split_once("//") {
        Some((code, _)) => code,
        None => line,
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Dependencies of a package, as `cargo metadata` tells it, that nothing mentions.
fn unused(package: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let manifest = PathBuf::from(text(&package["manifest_path"]));
    let root = manifest.parent().expect("a folder");
    let mut code = vec![root.join("src")];
    let (mut tests, mut build) = (vec![root.join("src")], Vec::new());
    for target in package["targets"].as_array().expect("a list") {
        let of_kind = match target["kind"][0].as_str() {
            Some("custom-build") => &mut build,
            Some("test" | "bench" | "example") => &mut tests,
            _ => &mut code,
        };
        let source = PathBuf::from(text(&target["src_path"]));
        of_kind.push(source);
    }
    // The modules of a test program lie beside it.
    tests.extend(["tests", "benches", "examples"].map(|folder| root.join(folder)));
    let [code, tests, build] = [&code, &tests, &build].map(|roots| Sources::read(roots));
    let dependencies = package["dependencies"].as_array().expect("a list");
    let unused = dependencies.iter().filter(|dependency| {
        let sources = match dependency["kind"].as_str() {
            None => &code,
            Some("dev") => &tests,
            _ => &build,
        };
        let name = dependency["rename"].as_str();
        !sources.mention(name.unwrap_or_else(|| dependency["name"].as_str().expect("a name")))
    });
    let named = |dependency: &Value| {
        let by = text(&package["name"]);
        format!(
            "{by} declares {} and does not use it",
            text(&dependency["name"])
        )
    };
    unused.map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::{Sources, unused};
    use crate::process;
    use serde_json::{Value, json};

    fn metadata() -> Value {
        let mut cargo = process::cargo();
        let text =
            process::read(cargo.args(["metadata", "--format-version=1", "--no-deps", "--offline"]));
        serde_json::from_str(&text.expect("cargo metadata answers")).expect("it is JSON")
    }

    #[test]
    fn every_crate_uses_what_it_declares() {
        let metadata = metadata();
        let packages = metadata["packages"].as_array().expect("a list of packages");
        assert!(packages.len() > 10);
        let unused: Vec<String> = packages.iter().flat_map(unused).collect();
        assert_eq!(unused, [""; 0]);
    }

    #[test]
    fn every_dependency_of_the_workspace_is_one_of_a_crate() {
        let root = process::workspace_root().join("Cargo.toml");
        let manifest = std::fs::read_to_string(root).expect("the workspace has a manifest");
        let (_, list) = (manifest.split_once("[workspace.dependencies]\n")).expect("a list");
        let names = list.lines().take_while(|line| !line.is_empty());
        let names = names.map(|line| line.split(' ').next().expect("a name"));
        let metadata = metadata();
        let packages = metadata["packages"].as_array().expect("a list of packages");
        let declared: Vec<&str> = packages
            .iter()
            .flat_map(|package| package["dependencies"].as_array().expect("a list"))
            .map(|dependency| dependency["name"].as_str().expect("a name"))
            .collect();
        let unused: Vec<&str> = names.filter(|name| !declared.contains(name)).collect();
        assert_eq!(unused, [""; 0]);
    }

    /// The same packages, each with a dependency more.
    #[test]
    fn a_planted_dependency_is_found_in_every_crate() {
        let metadata = metadata();
        for package in metadata["packages"].as_array().expect("a list of packages") {
            for kind in [Value::Null, json!("dev"), json!("build")] {
                let mut package = package.clone();
                let planted = json!({ "name": "nobody-uses-me", "kind": kind, "rename": null });
                let list = package["dependencies"].as_array_mut().expect("a list");
                list.push(planted);
                let found = unused(&package);
                let planted = "declares nobody-uses-me and does not use it";
                assert!(
                    found.iter().any(|line| line.ends_with(planted)),
                    "{found:?}"
                );
            }
        }
    }

    #[test]
    fn a_mention_is_a_path_or_an_import_of_that_very_name() {
        for used in [
            "plant_ed::grow()",
            "use plant_ed;",
            "use plant_ed as p;",
            "pub use ::plant_ed::x;",
            "x = <plant_ed::T>::new()",
            "#[derive(plant_ed::Plant)]",
        ] {
            assert!(Sources(format!("\n{used}")).mention("plant-ed"), "{used}");
        }
        for unused in [
            "plant_ed = 1",
            "x.plant_ed()",
            "im_plant_ed::x",
            "plant_edge::x",
            "crate::plant_ed::x",
            "use plant_edge;",
            "reuse plant_ed;",
        ] {
            assert!(
                !Sources(format!("\n{unused}")).mention("plant-ed"),
                "{unused}"
            );
        }
        assert_eq!(super::without_comments("a // plant_ed::x\nb"), "a \nb\n");
    }
}
