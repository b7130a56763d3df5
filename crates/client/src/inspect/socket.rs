//! Sockets of volumes: their names, who is at the other end, and whole messages.

use super::message::Message;
use adit_base::{Errno, Error, Result, from_rustix, random};
use rustix::fs::{major, minor};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    listen, recv, send, socket_with,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::Duration;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Of which image or device a socket is. All paths that lead to it give the same.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    /// Beginning of the names of its sockets.
    prefix: String,
    /// User that the image belongs to.
    pub(super) uid: u32,
}

impl Identity {
    pub(super) fn of(address: &str) -> Result<Identity> {
        let metadata = std::fs::metadata(address)?;
        let (kind, device, inode) = match metadata.file_type().is_block_device() {
            true => ("device", metadata.rdev(), 0),
            false => ("image", metadata.dev(), metadata.ino()),
        };
        let (major, minor) = (major(device), minor(device));
        Ok(Identity {
            prefix: format!("adit/{kind}/{major:x}:{minor:x}/{inode}/"),
            uid: metadata.uid(),
        })
    }

    /// A socket that processes of this machine find by the identity.
    pub(super) fn listen(&self) -> rustix::io::Result<OwnedFd> {
        let name = format!("{}{:032x}", self.prefix, random::os_random_u128());
        let socket = unconnected(SocketFlags::NONBLOCK)?;
        bind(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    /// Names of the sockets that there are, ours or somebody's who pretends.
    pub(super) fn names(&self) -> Vec<String> {
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

/// Connects to a name. Blocks for a while when many wait to be accepted.
pub(super) fn connect_to(name: &str, timeout: Duration) -> rustix::io::Result<OwnedFd> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    let socket = unconnected(SocketFlags::empty())?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(timeout))?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    // With a timeout, a signal interrupts it even where handlers restart calls.
    rustix::io::retry_on_intr(|| connect(&socket, &address))?;
    Ok(socket)
}

fn unconnected(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socket_with(family, kind, flags, None)
}

/// The process at the other end, as the kernel knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// None: it has no number here.
    pub(super) pid: Option<u32>,
    pub(super) uid: u32,
}

impl Peer {
    pub(super) fn of(socket: BorrowedFd<'_>) -> Result<Peer> {
        let mut found = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // Not by rustix: its type has no place for the number 0 of a process outside our pid
        // namespace. SAFETY: both pointers are to values that live here, of the length given.
        let failed = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        if failed != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(Peer {
            pid: u32::try_from(found.pid).ok().filter(|&pid| pid != 0),
            uid: found.uid,
        })
    }
}

/// The user this process acts for.
pub(super) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Sends a message, whole or not at all.
pub(super) fn send_message(socket: impl AsFd, message: &impl Message) -> Result<()> {
    let bytes = message.encode();
    let sent = rustix::io::retry_on_intr(|| send(&socket, &bytes, SendFlags::NOSIGNAL))
        .map_err(from_rustix)?;
    match sent == bytes.len() {
        true => Ok(()),
        false => Err(Errno::MSGSIZE.into()),
    }
}

/// Receives a message into `buffer`, its bound. `EPROTO` when it is none, `EPIPE` when the other
/// end is closed.
pub(super) fn receive_message<T: Message>(socket: impl AsFd, buffer: &mut [u8]) -> Result<T> {
    let (_, len) = rustix::io::retry_on_intr(|| recv(&socket, &mut *buffer, RecvFlags::TRUNC))
        .map_err(from_rustix)?;
    let received = buffer.get(..len).ok_or(Error::new(Errno::PROTO))?;
    if received.is_empty() {
        return Err(Errno::PIPE.into());
    }
    T::decode(received).ok_or(Errno::PROTO.into())
}
