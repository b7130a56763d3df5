//! Which image or device an address names, and the sockets at which processes find who has that
//! volume open.

use crate::connection::connected;
use adit_base::fork::Registered;
use adit_base::{Result, from_rustix, numbers, random};
use adit_wire::socket::unconnected;
use rustix::fs::{major, minor};
use rustix::net::{SocketAddrUnix, SocketFlags, bind, listen};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::Duration;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Of which image or device a socket is. All paths that lead to it give the same.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Beginning of the names of its sockets.
    prefix: String,
    /// User that the image belongs to.
    pub(crate) uid: u32,
}

impl Identity {
    pub(crate) fn of(address: &str) -> Result<Identity> {
        let metadata = std::fs::metadata(address)?;
        let (kind, device, inode) = if metadata.file_type().is_block_device() {
            ("device", metadata.rdev(), 0)
        } else {
            ("image", metadata.dev(), metadata.ino())
        };
        let (major, minor) = (major(device), minor(device));
        Ok(Identity {
            prefix: format!("adit/{kind}/{major:x}:{minor:x}/{inode}/"),
            uid: metadata.uid(),
        })
    }

    /// A socket that processes of this machine find by the identity.
    pub(crate) fn listen(&self) -> rustix::io::Result<Registered<OwnedFd>> {
        let name = format!("{}{:032x}", self.prefix, random::os_random_u128());
        let socket = numbers::registered(|| unconnected(SocketFlags::NONBLOCK))?;
        bind(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    /// Names of the sockets that there are, ours or somebody's who pretends.
    pub(crate) fn names(&self) -> Vec<String> {
        // "ffff8d0f0c2d6a80: 00000002 00000000 00010000 0005 01 12345 @adit/…"
        let table = std::fs::read("/proc/net/unix").unwrap_or_default();
        let table = String::from_utf8_lossy(&table);
        let names = table.lines().filter_map(|line| line.split_once(" @"));
        names
            .map(|(_, name)| name)
            .filter(|name| name.starts_with(&self.prefix))
            // Accepted connections have the name of their listener.
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .map(str::to_owned)
            .collect()
    }
}

/// A socket at which processes find who has the volume open.
pub(crate) fn listen_at(address: &str) -> Result<Registered<OwnedFd>> {
    let socket = Identity::of(address)?.listen();
    Ok(socket.map_err(from_rustix)?)
}

/// Connects to a name. Blocks for a while when many wait to be accepted.
pub(crate) fn connect_to(name: &str, timeout: Duration) -> rustix::io::Result<Registered<OwnedFd>> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    connected(&address, timeout)
}
