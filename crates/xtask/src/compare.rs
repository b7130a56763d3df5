//! `cargo xtask compare`: everything that `adit compare` can use is installed and built, and it
//! runs on `/dev/zram0`, set up for it.

use std::process::Command;

use crate::plugin::{self, Profile};
use crate::process::{self, Outcome};
use crate::setup;
use crate::zram::{DEVICE, Zram};

/// Packages besides those of the tests.
const PACKAGES: &[&str] = &[
    "xfsprogs",
    "e2fsprogs",
    "rocksdb-tools",
    "librocksdb-dev",
    "libleveldb-dev",
    "g++",
];

/// Size of the device, whose content is in memory.
pub(crate) const DEVICE_SIZE: &str = "4G";

/// The help text.
pub(crate) const HELP: &str = "\
  compare [OPTION]...   `adit compare` on /dev/zram0, set up for it (root; refuses when it is in use), with its options:
                        --suite quick|full, --only GROUPS, --repetitions N, --with NAMES, --images DIR, --out DIR
";

/// The whole comparison.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let zram = Zram::claim()?;
    setup::run(PACKAGES)?;
    process::build_release(&["adit-cli", "adit-preload", "adit-sqlite-bench"])?;
    plugin::build(Profile::Release)?;
    zram.set_up(DEVICE_SIZE)?;
    let mut compare = Command::new(Profile::Release.program("adit"));
    compare.args(["compare", "--yes", "--device", DEVICE]);
    process::run(compare.args(words))
}
