//! The layers, and the lower ones that each may use. A test compares this table with `cargo
//! metadata`.
//!
//! An arrow never points up: a crate may use what stands above it in the table (the lower layers),
//! and of those only what its row names. Dependencies of tests count as dependencies, except that
//! any crate's tests may use [`FOR_TESTS`]. The parts of one crate: `rooms.rs`.

/// Crate, and the crates of this workspace that it may use. Lower layers first.
pub(crate) const LAYERS: &[(&str, &[&str])] = &[
    ("adit-skip", &[]),
    ("adit-base", &[]),
    ("adit-block", &["adit-base"]),
    ("adit-reactor", &["adit-base", "adit-block"]),
    ("adit-store", &["adit-base", "adit-block", "adit-reactor"]),
    (
        "adit-fs",
        &["adit-base", "adit-block", "adit-reactor", "adit-store"],
    ),
    ("adit-load", &[]),
    ("adit-operations", &["adit-base", "adit-reactor", "adit-fs"]),
    // Its calls carry the plain types of `fs` and `store`.
    ("adit-wire", &["adit-base", "adit-store", "adit-fs"]),
    (
        "adit-server",
        &[
            "adit-base",
            "adit-block",
            "adit-reactor",
            "adit-store",
            "adit-fs",
            "adit-load",
            "adit-wire",
        ],
    ),
    (
        "adit",
        &[
            "adit-base",
            "adit-block",
            "adit-reactor",
            "adit-store",
            "adit-fs",
            "adit-wire",
            "adit-server",
        ],
    ),
    ("adit-capi", &["adit"]),
    ("libadit", &["adit-capi"]),
    // Its tests cut the power of a device.
    (
        "adit-sqlite",
        &["adit-base", "adit-block", "adit", "adit-capi"],
    ),
    // Its breakdown reads the clocks of `base`.
    ("adit-bench", &["adit-base", "adit-block", "adit"]),
    ("adit-sqlite-bench", &["adit", "adit-sqlite", "adit-bench"]),
    ("adit-power-cut", &["adit", "adit-sqlite"]),
    ("adit-fuse", &["adit-base", "adit-fs", "adit"]),
    ("adit-interposed", &[]),
    (
        "adit-preload",
        &["adit-base", "adit-fs", "adit", "adit-interposed"],
    ),
    (
        "adit-cli",
        &["adit-base", "adit", "adit-bench", "adit-fuse"],
    ),
    (
        "adit-posix",
        &["adit-base", "adit-fs", "adit-operations", "adit"],
    ),
    (
        "adit-sim",
        &[
            "adit-base",
            "adit-block",
            "adit-reactor",
            "adit-store",
            "adit-fs",
            "adit-wire",
            "adit-server",
            "adit",
        ],
    ),
    (
        "adit-fuzz",
        &[
            "adit-base",
            "adit-block",
            "adit-reactor",
            "adit-store",
            "adit-fs",
            "adit-operations",
            "adit-wire",
            "adit-server",
        ],
    ),
    ("xtask", &[]),
];

/// Crates that the tests of any crate may use.
#[cfg(test)]
const FOR_TESTS: &[&str] = &["adit-skip", "adit-operations"];

/// The crates that `name` may use; `None` for a crate that the table does not know.
pub(crate) fn allowed(name: &str) -> Option<&'static [&'static str]> {
    let row = LAYERS.iter().find(|(layer, _)| *layer == name);
    row.map(|(_, uses)| *uses)
}

#[cfg(test)]
mod tests {
    use super::{FOR_TESTS, LAYERS, allowed};
    use crate::process;

    #[test]
    fn an_arrow_never_points_up() {
        for (rank, (name, uses)) in LAYERS.iter().enumerate() {
            for used in *uses {
                let below = LAYERS[..rank].iter().any(|(layer, _)| layer == used);
                assert!(below, "{name} may not use {used}: it is not a lower layer");
            }
        }
    }

    #[test]
    fn every_crate_uses_only_what_its_layer_may() {
        let text = process::read(process::cargo().args([
            "metadata",
            "--format-version=1",
            "--no-deps",
            "--offline",
        ]))
        .expect("cargo metadata answers");
        let metadata: serde_json::Value =
            serde_json::from_str(&text).expect("cargo metadata is JSON");
        let packages = metadata["packages"].as_array().expect("a list of packages");
        assert!(packages.len() >= LAYERS.len());
        for package in packages {
            let name = package["name"].as_str().expect("a package has a name");
            let uses = allowed(name).unwrap_or_else(|| {
                panic!("{name} is not in the table of layers: add it, lower layers first")
            });
            for dependency in package["dependencies"].as_array().expect("a list") {
                // Only dependencies inside the workspace have a path.
                if dependency["path"].is_null() {
                    continue;
                }
                let used = dependency["name"]
                    .as_str()
                    .expect("a dependency has a name");
                let by_tests = FOR_TESTS.contains(&used) && dependency["kind"] == "dev";
                assert!(
                    used == name || uses.contains(&used) || by_tests,
                    "{name} depends on {used}, which its layer may not use"
                );
            }
        }
    }
}
