//! The machine on which something was measured.

use serde::Serialize;

/// The machine and the place.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// Version of Adit.
    pub adit: String,
    /// Kernel release.
    pub kernel: String,
    /// The processor's name for itself.
    pub processor: String,
    /// Processors that may be used.
    pub cores: usize,
    /// Where the images and files were.
    pub place: String,
}

impl Environment {
    pub(crate) fn here(place: String) -> Environment {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = cpu
            .lines()
            .find_map(|line| line.strip_prefix("model name"))
            .and_then(|rest| rest.split_once(": "))
            .map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned());
        let uname = rustix::system::uname();
        Environment {
            adit: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            processor,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            place,
        }
    }
}
