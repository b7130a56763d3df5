//! Device addresses, the same everywhere: `PATH` of an image or block device, `mem:SIZE`.
//!
//! `stripe:A,B`, `nvme:BDF`, `vhost-user:SOCKET` and `unix:SOCKET` are reserved: EOPNOTSUPP, not
//! built yet. A file whose name begins like that is reached as `./nvme:…`.

use std::sync::Arc;

use adit_base::size::parse_size;
use adit_base::{Errno, Error, Result};

use crate::{Device, FileDevice, FileEngine, FileOptions, MemoryConfig, MemoryDevice};

/// How to open a device; each driver takes what concerns it.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// The engine that passes requests to the kernel.
    pub engine: FileEngine,
    /// For reading only.
    pub read_only: bool,
    /// Bypass the host's page cache.
    pub direct: bool,
}

impl Default for DeviceOptions {
    /// Probed engine, for writing, direct.
    fn default() -> Self {
        DeviceOptions {
            engine: FileEngine::Probe,
            read_only: false,
            direct: true,
        }
    }
}

const NOT_BUILT: [&str; 4] = ["stripe:", "nvme:", "vhost-user:", "unix:"];

/// Opens what an address names.
pub fn open_device(address: &str, options: &DeviceOptions) -> Result<Arc<dyn Device>> {
    if address.is_empty() {
        return Err(Error::with(
            Errno::INVAL,
            "open a device without an address",
        ));
    }
    if let Some(size) = address.strip_prefix("mem:") {
        let size_bytes =
            parse_size(size).map_err(|error| error.context(format_args!("open {address}")))?;
        return Ok(MemoryDevice::new(MemoryConfig {
            size_bytes,
            ..MemoryConfig::default()
        })?);
    }
    if NOT_BUILT.iter().any(|scheme| address.starts_with(scheme)) {
        let what = format!("open {address}: this kind of device is not built yet");
        return Err(Error::with(Errno::OPNOTSUPP, what));
    }
    let DeviceOptions {
        engine,
        read_only,
        direct,
    } = *options;
    Ok(FileDevice::open(
        address,
        &FileOptions {
            engine,
            read_only,
            direct,
        },
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(address: &str) -> Errno {
        match open_device(address, &DeviceOptions::default()) {
            Ok(device) => panic!("opened {}", device.name()),
            Err(error) => error.errno(),
        }
    }

    #[test]
    fn a_memory_address_says_its_size() {
        let device = open_device("mem:64M", &DeviceOptions::default()).expect("a device");
        assert_eq!(
            (device.name().as_str(), device.geometry().size_bytes),
            ("mem:64M", 64 << 20)
        );
    }

    #[test]
    fn what_is_not_built_or_not_there_is_refused_with_its_errno() {
        assert_eq!(refused("mem:much"), Errno::INVAL);
        assert_eq!(refused("mem:100"), Errno::INVAL);
        assert_eq!(refused("nvme:0000:01:00.0"), Errno::OPNOTSUPP);
        assert_eq!(refused("stripe:a,b"), Errno::OPNOTSUPP);
        assert_eq!(refused("/nonexistent/x.adit"), Errno::NOENT);
        assert_eq!(refused("/dev/null"), Errno::INVAL);
        assert_eq!(refused("/"), Errno::INVAL);
        assert_eq!(refused(""), Errno::INVAL);
    }
}
