//! Addresses of volumes and devices, the same everywhere: parsed here, and nowhere else.

use crate::{Errno, Error};
use std::path::Path;

/// An address, by its scheme. It borrows the text, which stays as it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address<'a> {
    /// `PATH` of an image or a block device.
    Path(&'a Path),
    /// `mem:SIZE`: the size, in memory of the process that opens it.
    Memory(&'a str),
    /// `unix:SOCKET`, or `unix:SOCKET,NAME`: a volume that a server has. The part behind the scheme.
    Served(&'a str),
    /// Reserved for a driver that is not built yet.
    Reserved,
}

impl<'a> Address<'a> {
    /// How the address of a volume in a server begins.
    pub const SERVED: &'static str = "unix:";
    const MEMORY: &'static str = "mem:";
    const RESERVED: [&'static str; 4] = ["stripe:", "mirror:", "nvme:", "vhost-user:"];

    /// Any text is one: a file whose name begins like a scheme is reached as `./nvme:…`.
    pub fn parse(text: &'a str) -> Address<'a> {
        if let Some(size) = text.strip_prefix(Self::MEMORY) {
            return Address::Memory(size);
        }
        if let Some(place) = text.strip_prefix(Self::SERVED) {
            return Address::Served(place);
        }
        if Self::RESERVED.iter().any(|scheme| text.starts_with(scheme)) {
            return Address::Reserved;
        }
        Address::Path(Path::new(text))
    }

    /// The error for an address whose driver is not built yet: `EOPNOTSUPP`.
    #[cold]
    pub fn not_built(text: &str) -> Error {
        let what = format!("open {text}: this kind of device is not built yet");
        Error::with(Errno::OPNOTSUPP, what)
    }

    /// True if the volume is in a server.
    pub fn is_served(&self) -> bool {
        matches!(self, Address::Served(_))
    }

    /// True if the volume is gone when the process that opened it ends.
    pub fn is_ephemeral(&self) -> bool {
        matches!(self, Address::Memory(_))
    }

    /// The image or device of the host that it names, if it names one by itself.
    pub fn host_path(&self) -> Option<&'a Path> {
        match self {
            Address::Path(path) => Some(path),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_says_what_it_names() {
        let cases = [
            ("mem:64M", Address::Memory("64M")),
            ("unix:/run/s,v", Address::Served("/run/s,v")),
            ("nvme:0000:01:00.0", Address::Reserved),
            ("mirror:a,b", Address::Reserved),
            ("./nvme:1", Address::Path(Path::new("./nvme:1"))),
            ("memory", Address::Path(Path::new("memory"))),
            ("", Address::Path(Path::new(""))),
        ];
        for (text, address) in cases {
            assert_eq!(Address::parse(text), address, "{text}");
        }
    }
}
