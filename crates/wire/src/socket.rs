//! Sockets of sessions: the process at the other end, and whole messages, with a descriptor or
//! without.

use crate::value::OwnedValue;
use adit_base::fork::Registered;
use adit_base::{Errno, Error, Result, from_rustix, numbers};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg,
    send, sendmsg, socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A socket that isn't connected: messages stay whole, and the end of the other side is seen.
pub fn unconnected(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The socket, and those that are accepted from it, take no descriptors from their peers, on Linux
/// 6.16 and newer; `ENOPROTOOPT` before. A peer could send one whose last close waits, and that is
/// the receiver's then.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> Result<()> {
    /// Of Linux's `asm-generic/socket.h`.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    // SAFETY: the pointer is to a value that lives here, of the length given.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match failed {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// The process at the other end, as the kernel knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// None: it has no number here.
    pub pid: Option<u32>,
    /// Its effective user when it connected.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl Peer {
    /// Of a connected socket.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Peer> {
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
            gid: found.gid,
        })
    }

    /// The supplementary groups of the process at the other end, when it connected.
    pub fn groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>> {
        // Linux has no more than 65,536 of them.
        let mut groups = vec![0u32; 65_536];
        let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the pointer is to so many bytes.
        let failed = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if failed != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        groups.truncate(len as usize / size_of::<u32>());
        Ok(groups)
    }
}

/// The user this process acts for.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Sends a message, whole or not at all.
pub fn send_message(socket: impl AsFd, message: &impl OwnedValue) -> Result<()> {
    let bytes = message.encode();
    let sent = retry_on_intr(|| send(&socket, &bytes, SendFlags::NOSIGNAL)).map_err(from_rustix)?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(Errno::MSGSIZE.into())
    }
}

fn foreign() -> Error {
    let what = "understand the other side of a socket: both need the same version of Adit";
    Error::with(Errno::PROTO, what)
}

/// Receives a message into `buffer`, its bound. `EPROTO` when it is none, `EPIPE` when the other
/// end is closed.
pub fn receive_message<T: OwnedValue>(socket: impl AsFd, buffer: &mut [u8]) -> Result<T> {
    let (_, len) =
        retry_on_intr(|| recv(&socket, &mut *buffer, RecvFlags::TRUNC)).map_err(from_rustix)?;
    let received = buffer.get(..len).ok_or_else(foreign)?;
    if received.is_empty() {
        return Err(Errno::PIPE.into());
    }
    T::decode(received).ok_or_else(foreign)
}

/// Descriptors that come with a message at most.
pub const DESCRIPTORS_MAX: usize = 3;

/// As [`send_message`], with descriptors.
pub fn send_message_with(
    socket: impl AsFd,
    message: &impl OwnedValue,
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    let bytes = message.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fits = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    assert!(fits, "there is space for the descriptors");
    let pieces = [IoSlice::new(&bytes)];
    retry_on_intr(|| sendmsg(&socket, &pieces, &mut ancillary, SendFlags::NOSIGNAL))
        .map_err(from_rustix)?;
    Ok(())
}

/// As [`receive_message`], with the descriptors that came with it. `EMFILE` if this process may not
/// have them all.
pub fn receive_message_with<T: OwnedValue>(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> Result<(T, Vec<Registered<OwnedFd>>)> {
    // The message is waited for before descriptors are made.
    retry_on_intr(|| recv(&socket, &mut [0; 1], RecvFlags::PEEK)).map_err(from_rustix)?;
    let received = numbers::alone(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let mut pieces = [IoSliceMut::new(buffer)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            recvmsg(&socket, &mut pieces, &mut ancillary, flags)
        })?;
        let is_whole = !received.flags.contains(ReturnFlags::CTRUNC);
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                let raised = received.map(numbers::raised);
                descriptors.extend(raised.map(Registered::new));
            }
        }
        Ok((received.bytes, descriptors, is_whole))
    });
    let (len, descriptors, is_whole) = received.map_err(from_rustix)?;
    if !is_whole {
        // The kernel drops those for which this process has no number, and doesn't fail.
        let what = "receive descriptors: this process may have no more open (ulimit -n)";
        return Err(Error::with(Errno::MFILE, what));
    }
    let bytes = &buffer[..len];
    if bytes.is_empty() {
        return Err(Errno::PIPE.into());
    }
    let message = T::decode(bytes).ok_or_else(foreign)?;
    Ok((message, descriptors))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::handshake::Greeting;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn of_a_message_without_a_meaning_the_reader_hears_that_versions_differ() {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("a pair");
        for len in [1, 8, 100, 4096] {
            send(&theirs, &vec![0xff; len], SendFlags::NOSIGNAL).expect("sent");
            let heard = receive_message::<Greeting>(&ours, &mut [0; 1024]).expect_err("none");
            assert_eq!(heard.errno(), Errno::PROTO);
            assert!(
                heard.to_string().contains("same version of Adit"),
                "{heard}"
            );
        }
    }
}
