//! Chooses the driver for an [`Address`]. Addresses of future drivers are refused: EOPNOTSUPP.

use std::sync::Arc;

use adit_base::size::parse_size;
use adit_base::{Address, Errno, Error, Result};

use crate::{Device, FileDevice, FileOptions, MemoryConfig, MemoryDevice};

/// How to open a device; each driver reads its own options.
pub type DeviceOptions = FileOptions;

/// Opens the device that an address names.
pub fn open_device(address: &str, options: &DeviceOptions) -> Result<Arc<dyn Device>> {
    if address.is_empty() {
        return Err(Error::with(
            Errno::INVAL,
            "open a device without an address",
        ));
    }
    match Address::parse(address) {
        Address::Memory(size) => {
            let size_bytes =
                parse_size(size).map_err(|error| error.context(format_args!("open {address}")))?;
            Ok(MemoryDevice::new(MemoryConfig {
                size_bytes,
                // It ends with the process: there is nothing to flush.
                volatile_cache: false,
                ..MemoryConfig::default()
            })?)
        }
        Address::Served(_) | Address::Reserved => Err(Address::not_built(address)),
        Address::Path(path) => Ok(FileDevice::open(path, options)?),
    }
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
