//! Sockets with a name in the volume: `bind`, `connect`, and calls that tell or take addresses.
//!
//! `bind` makes the node; the socket itself is bound to an inode of the host's
//! (`adit_server::nodes`), to which `connect` and `sendto` go through `/proc/self/fd/N`. So the
//! kernel has the queues, and tells who the peer is. An address of the host's that the kernel tells
//! becomes the path again to which the socket was bound.
//!
//! With a server, which alone makes names in its directory, `bind` puts a new, bound socket in the
//! place of the program's ([`take_place`]).

use crate::calls::open::masked;
use crate::files::descriptors::is_of_host;
use crate::files::path::{self, HostPath, Location, Spot};
use crate::runtime::answer::{Answer, Number, ToC, checked, errno, failed, set_errno};
use crate::runtime::inside;
use crate::runtime::message::say_once;
use crate::runtime::real::{check_room, real};
use crate::runtime::renewed::{InChild, Renewed};
use crate::volume::{settings, volume};
use adit::calls::{MakeNode, Unlink};
use adit::{Errno, File, FileKind};
use adit_base::fork::Registered;
use adit_base::numbers;
use adit_fs::{BlobId, OpenFlags};
use adit_interposed::interposed;
use libc::{
    c_int, c_uint, c_void, mmsghdr, msghdr, size_t, sockaddr, sockaddr_un, socklen_t, ssize_t,
};
use rustix::fs::{Dir, DirEntry, Mode, OFlags};
use std::collections::HashMap;
use std::convert::identity;
use std::ffi::CString;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Where the path begins in an address.
const PATH: usize = offset_of!(sockaddr_un, sun_path);
/// How an address of the host's begins that stands for one in the volume.
const OF_HOST: &[u8] = b"/proc/self/fd/";

/// Addresses of the host's, and the paths for which they stand. An address is never used again.
static KNOWN: Renewed<Option<HashMap<Vec<u8>, Vec<u8>>>> = Renewed::new(None);
/// When there are so many, they are asked for anew.
const KNOWN_MAX: usize = 1024;

/// In a thread that forks.
pub(crate) fn at_fork() -> InChild {
    KNOWN.at_fork()
}

/// The path in an address: not of one without a name, or with an abstract one.
///
/// # Safety
/// NULL, or an address of this length.
#[inline]
unsafe fn path_of<'a>(address: *const sockaddr, len: socklen_t) -> Option<&'a [u8]> {
    let len = len as usize;
    if address.is_null() || len <= PATH || len > size_of::<sockaddr_un>() {
        return None;
    }
    // SAFETY: so many bytes, says the caller; the family may lie anywhere.
    let (family, bytes) = unsafe {
        let family = address.cast::<libc::sa_family_t>().read_unaligned();
        let path = address.cast::<u8>().add(PATH);
        (family, std::slice::from_raw_parts(path, len - PATH))
    };
    let path = bytes.split(|byte| *byte == 0).next()?;
    (c_int::from(family) == libc::AF_UNIX && !path.is_empty()).then_some(path)
}

/// An address for the kernel.
struct Address {
    un: sockaddr_un,
    len: socklen_t,
}

impl Address {
    /// Of a path that fits.
    fn of(path: &[u8]) -> Answer<Address> {
        // SAFETY: all zeroes are a value.
        let mut un: sockaddr_un = unsafe { std::mem::zeroed() };
        let room = un.sun_path.get_mut(..path.len());
        let room = room.ok_or(Errno::NAMETOOLONG)?;
        un.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, byte) in room.iter_mut().zip(path) {
            *to = *byte as _;
        }
        let len = PATH + path.len() + usize::from(path.len() < un.sun_path.len());
        Ok(Address {
            un,
            len: len as socklen_t,
        })
    }

    fn pointer(&self) -> *const sockaddr {
        (&raw const self.un).cast()
    }
}

/// To where an address leads that a program gives.
enum Leads {
    /// Where the kernel finds it.
    Given,
    /// Out of the volume.
    Host(CString),
    Volume(Spot, Vec<u8>),
}

/// # Safety
/// NULL, or an address of this length.
unsafe fn leads(address: *const sockaddr, len: socklen_t) -> Leads {
    // SAFETY: promised by the caller.
    let Some(path) = settings().and_then(|_| unsafe { path_of(address, len) }) else {
        return Leads::Given;
    };
    let text = CString::new(path).expect("it ends before the first zero");
    // SAFETY: a C string.
    match unsafe { path::find(libc::AT_FDCWD, text.as_ptr()) } {
        Location::Host(HostPath::Given) => Leads::Given,
        Location::Host(HostPath::Absolute(path)) => Leads::Host(path),
        Location::Volume(spot) => Leads::Volume(spot, path.to_vec()),
    }
}

/// The way to a socket of the volume, or out of it: the address, and what must stay open meanwhile.
struct Way {
    address: Address,
    _host: Option<Registered<OwnedFd>>,
}

impl Leads {
    fn way(self) -> Answer<Way> {
        let (name, host) = match self {
            Leads::Given => unreachable!("the caller takes the address that was given"),
            Leads::Host(path) => (path.into_bytes(), None),
            Leads::Volume(spot, _) => {
                let host = inside::call(|| bound_at(&spot))?;
                let name = format!("/proc/self/fd/{}", host.as_raw_fd());
                (name.into_bytes(), Some(host))
            }
        };
        Ok(Way {
            address: Address::of(&name)?,
            _host: host,
        })
    }
}

/// The host's socket behind a node, to which this thread's user may connect.
fn bound_at(spot: &Spot) -> Answer<Registered<OwnedFd>> {
    let flags = OpenFlags::WRITE_ONLY | OpenFlags::NODE;
    let opened = volume()?.open_at(spot.at(), flags, 0).map_err(errno);
    // The kernel asks for the right to write, then for the kind.
    let node = opened.map_err(|failed| match failed {
        Errno::ISDIR | Errno::NXIO => Errno::CONNREFUSED,
        failed => failed,
    })?;
    match node.metadata().map_err(errno)?.kind() {
        FileKind::Socket => node.host_node().map_err(errno),
        _ => Err(Errno::CONNREFUSED),
    }
}

/// Does `call` with an address that leads there. `errno` is the call's.
fn with_way<T: Number>(leads: Leads, call: impl FnOnce(*const sockaddr, socklen_t) -> T) -> T {
    match leads.way() {
        Ok(way) => {
            let done = inside::uncancelled(|| call(way.address.pointer(), way.address.len));
            let after = Errno::last();
            drop(way);
            set_errno(after);
            done
        }
        Err(errno) => failed(errno),
    }
}

#[interposed]
unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { leads(address, len) } {
        Leads::Given => real(fd, address, len),
        led => with_way(led, |address, len| real(fd, address, len)),
    }
}

#[interposed]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    count: size_t,
    flags: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> ssize_t {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { leads(address, len) } {
        Leads::Given => real(fd, bytes, count, flags, address, len),
        led => with_way(led, |address, len| {
            real(fd, bytes, count, flags, address, len)
        }),
    }
}

#[interposed]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { leads_of(message) } {
        Leads::Given => real(fd, message, flags),
        led => with_way(led, |address, len| {
            // SAFETY: as above.
            let mut copy = unsafe { *message };
            (copy.msg_name, copy.msg_namelen) = (address.cast_mut().cast(), len);
            real(fd, &raw const copy, flags)
        }),
    }
}

/// # Safety
/// NULL, or a message.
unsafe fn leads_of(message: *const msghdr) -> Leads {
    // SAFETY: promised by the caller.
    match unsafe { message.as_ref() } {
        // SAFETY: as above.
        Some(message) => unsafe { leads(message.msg_name.cast(), message.msg_namelen) },
        None => Leads::Given,
    }
}

/// One by one, if an address leads into the volume.
#[interposed]
unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let count_max = count.min(libc::UIO_MAXIOV as c_uint);
    // SAFETY: the program vouches for its arguments, as to the C library.
    let is_given = |at: c_uint| unsafe {
        matches!(
            leads_of(&raw const (*messages.add(at as usize)).msg_hdr),
            Leads::Given
        )
    };
    if messages.is_null() || (0..count_max).all(is_given) {
        return real(fd, messages, count, flags);
    }
    for at in 0..count_max {
        // SAFETY: as above.
        let sent = unsafe {
            let message = messages.add(at as usize);
            let sent = sendmsg(fd, &raw const (*message).msg_hdr, flags);
            (*message).msg_len = sent.max(0) as c_uint;
            sent
        };
        if sent < 0 {
            return if at > 0 { at as c_int } else { -1 };
        }
    }
    count_max as c_int
}

// ------------------------------------------------------------------------ bind

#[interposed]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let host = |address: *const sockaddr, len: socklen_t| real(fd, address, len);
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { leads(address, len) } {
        // The kernel says what is wrong with another kind of socket.
        Leads::Volume(spot, path) if option(fd, libc::SO_DOMAIN) == Ok(libc::AF_UNIX) => {
            inside::call(|| bind_at(fd, &spot, &path)).to_c()
        }
        Leads::Host(path) => match Address::of(path.as_bytes()) {
            Ok(way) => host(way.pointer(), way.len),
            Err(errno) => failed(errno),
        },
        _ => host(address, len),
    }
}

fn option(fd: c_int, name: c_int) -> Answer<c_int> {
    let (mut value, mut len) = (0, size_of::<c_int>() as socklen_t);
    // SAFETY: both pointers are to values that live here, of the length given.
    let failed = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, name, value, &raw mut len)
    };
    checked(failed).map(|_| value)
}

/// Has it a name of its own, and a peer?
fn is_bound(fd: c_int) -> (bool, bool) {
    // SAFETY: all zeroes are a value.
    let mut un: sockaddr_un = unsafe { std::mem::zeroed() };
    let address = (&raw mut un).cast::<sockaddr>();
    let mut len = size_of::<sockaddr_un>() as socklen_t;
    let of = &raw mut len;
    real!(getsockname(fd => c_int, address => *mut sockaddr, of => *mut socklen_t) -> c_int);
    let has_name = len as usize > PATH;
    let peer = real!(getpeername(
        fd => c_int, address => *mut sockaddr, of => *mut socklen_t
    ) -> c_int);
    (has_name, peer == 0)
}

/// Makes the node, and binds the socket to it.
fn bind_at(fd: c_int, spot: &Spot, path: &[u8]) -> Answer<()> {
    let kind = option(fd, libc::SO_TYPE)? as u32;
    // SAFETY: the program has it open, or the option would have failed.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let mode = rustix::fs::fstat(socket)
        .map_err(adit_base::from_rustix)?
        .st_mode;
    let volume = volume()?;
    let made = volume.call(MakeNode {
        place: spot.at().into(),
        kind: FileKind::Socket,
        mode: masked(mode & 0o777),
        device: 0,
    });
    let made = made.map_err(|failed| match failed {
        Errno::EXIST => Errno::ADDRINUSE,
        failed => failed,
    })?;
    let made = BlobId {
        slot: made.inode,
        generation: made.generation,
    };
    let bound = match is_bound(fd) {
        (true, _) => Err(Errno::INVAL),
        (false, true) if volume.is_connected() => {
            say_once!(
                "bind of a connected socket to a path in a volume of a server is not supported: \
                 EOPNOTSUPP"
            );
            Err(Errno::OPNOTSUPP)
        }
        _ => node_at(spot, made).and_then(|node| bind_to(socket, &node, kind, path)),
    };
    if bound.is_err() && node_at(spot, made).is_ok() {
        let _ = volume.call(Unlink {
            place: spot.at().into(),
        });
    }
    bound
}

/// The node that this thread has made there, if it is still there.
fn node_at(spot: &Spot, made: BlobId) -> Answer<File> {
    let flags = OpenFlags::PATH | OpenFlags::NOFOLLOW;
    let node = volume()?.open_at(spot.at(), flags, 0).map_err(errno)?;
    (node.id() == made).then_some(node).ok_or(Errno::NOENT)
}

fn bind_to(socket: BorrowedFd<'_>, node: &File, kind: u32, path: &[u8]) -> Answer<()> {
    match node.bind_host(socket, kind, path).map_err(errno)? {
        Some(bound) => take_place(socket.as_raw_fd(), &bound),
        None => Ok(()),
    }
}

/// Options of a socket that a program may have set before it binds it.
const OPTIONS: [c_int; 14] = [
    libc::SO_DEBUG,
    libc::SO_REUSEADDR,
    libc::SO_KEEPALIVE,
    libc::SO_LINGER,
    libc::SO_PRIORITY,
    libc::SO_PASSCRED,
    libc::SO_PASSSEC,
    libc::SO_RCVLOWAT,
    libc::SO_RCVTIMEO,
    libc::SO_SNDTIMEO,
    libc::SO_TIMESTAMP,
    libc::SO_PEEK_OFF,
    SO_PASSPIDFD,
    SO_PASSRIGHTS,
];
/// Of Linux's `asm-generic/socket.h`.
const SO_PASSPIDFD: c_int = 76;
const SO_PASSRIGHTS: c_int = 83;

/// A new socket takes the place of another one, behind all numbers that this process has for it.
fn take_place(old: c_int, new: &OwnedFd) -> Answer<()> {
    copy_options(old, new.as_raw_fd());
    // SAFETY: plain calls on open descriptors.
    unsafe {
        let flags = libc::fcntl(old, libc::F_GETFL);
        libc::fcntl(new.as_raw_fd(), libc::F_SETFL, flags);
    }
    for number in numbers_of(old) {
        // SAFETY: as above.
        let close_on_exec = unsafe { libc::fcntl(number, libc::F_GETFD) } & libc::FD_CLOEXEC != 0;
        let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
        checked(real!(dup3(
            new.as_raw_fd() => c_int, number => c_int, flags => c_int
        ) -> c_int))?;
    }
    Ok(())
}

fn copy_options(old: c_int, new: c_int) {
    let read = |fd: c_int, name: c_int| {
        let (mut value, mut len) = ([0u8; 16], 16);
        // SAFETY: both pointers are to values that live here, of the length given.
        let failed = unsafe {
            let value = value.as_mut_ptr().cast();
            libc::getsockopt(fd, libc::SOL_SOCKET, name, value, &raw mut len)
        };
        (failed == 0).then(|| value[..len as usize].to_vec())
    };
    let set = |name: c_int, value: &[u8]| {
        let (value, len) = (value.as_ptr().cast(), value.len() as socklen_t);
        // SAFETY: the pointer is to so many bytes. The kernel may refuse a value, as it did then.
        unsafe { libc::setsockopt(new, libc::SOL_SOCKET, name, value, len) };
    };
    for name in OPTIONS {
        if let Some(value) = read(old, name).filter(|value| read(new, name).as_ref() != Some(value))
        {
            set(name, &value);
        }
    }
    for name in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        let (wanted, now) = (option(old, name), option(new, name));
        if let Ok(wanted) = wanted
            && wanted != now.unwrap_or(0)
        {
            // The kernel takes twice as much as it is told.
            set(name, &(wanted / 2).to_ne_bytes());
        }
    }
}

/// The numbers of this process for the same socket.
fn numbers_of(socket: c_int) -> Vec<c_int> {
    // Not by the C library, whose functions are ours here.
    let link = |fd: c_int| rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).ok();
    let same = link(socket).filter(|text| text.as_bytes().starts_with(b"socket:["));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = || rustix::fs::open(c"/proc/self/fd", flags, Mode::empty());
    let listed = numbers::high(open).and_then(|fd| Ok(Dir::read_from(&fd)?.flatten().collect()));
    let listed: Vec<DirEntry> = listed.unwrap_or_default();
    let numbers = listed
        .iter()
        .filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok());
    let is_same = |fd: &c_int| *fd != socket && same.is_some() && link(*fd) == same;
    let mut numbers: Vec<c_int> = numbers.filter(is_same).collect();
    numbers.push(socket);
    numbers
}

// ------------------------------------------------------------------------ addresses that are told

/// Where the kernel is to put an address: the program's memory, or memory that has room for an
/// address of the host's, if the program has less.
struct AddressOut {
    address: *mut sockaddr,
    len: *mut socklen_t,
    own: Option<(sockaddr_un, socklen_t)>,
}

impl AddressOut {
    /// # Safety
    /// NULL, or an address with so much room.
    #[inline]
    unsafe fn new(address: *mut sockaddr, len: *mut socklen_t) -> AddressOut {
        let is_small = |room: socklen_t| room < size_of::<sockaddr_un>() as socklen_t;
        // SAFETY: promised by the caller.
        let needs = !address.is_null() && !len.is_null() && is_small(unsafe { *len });
        // SAFETY: all zeroes are a value.
        let own = || unsafe { (std::mem::zeroed(), size_of::<sockaddr_un>() as socklen_t) };
        AddressOut {
            address,
            len,
            own: (needs && settings().is_some()).then(own),
        }
    }

    fn pointers(&mut self) -> (*mut sockaddr, *mut socklen_t) {
        match &mut self.own {
            Some((un, len)) => ((&raw mut *un).cast(), len),
            None => (self.address, self.len),
        }
    }

    /// The kernel has told it: one that stands for a path in the volume becomes that path. `room`:
    /// what the program has for it.
    ///
    /// # Safety
    /// As for `new`.
    unsafe fn give(&mut self, room: socklen_t) {
        if self.address.is_null() || self.len.is_null() || settings().is_none() {
            return;
        }
        let (address, len) = self.pointers();
        // SAFETY: the kernel has written so much of it.
        let (told, len) = unsafe {
            let written = (*len).min(size_of::<sockaddr_un>() as socklen_t);
            (path_of(address, written), *len)
        };
        let of_volume = told.filter(|path| path.starts_with(OF_HOST));
        let path = of_volume.and_then(path_behind);
        match (path.and_then(|path| Address::of(&path).ok()), &self.own) {
            // SAFETY: promised by the caller.
            (Some(of), _) => unsafe { self.copy(of.pointer(), of.len, room) },
            // SAFETY: as above.
            (None, Some((un, _))) => unsafe { self.copy((&raw const *un).cast(), len, room) },
            (None, None) => {}
        }
    }

    /// As much of an address as there is room for.
    ///
    /// # Safety
    /// As for `new`.
    unsafe fn copy(&self, from: *const sockaddr, len: socklen_t, room: socklen_t) {
        let count = len.min(room).min(size_of::<sockaddr_un>() as socklen_t) as usize;
        // SAFETY: both have so many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), self.address.cast::<u8>(), count);
            *self.len = len;
        }
    }
}

/// The path for which an address of the host's stands.
fn path_behind(told: &[u8]) -> Option<Vec<u8>> {
    let known = || {
        let known = KNOWN.read();
        Ok(known.as_ref().and_then(|known| known.get(told).cloned()))
    };
    // In a signal handler its thread may have the lock.
    if let Some(path) = inside::call(known).ok()? {
        return Some(path);
    }
    let ask = || volume()?.socket_path(told).ok_or(Errno::NOENT);
    let path = inside::call(ask).ok()?;
    let note = || {
        let mut known = KNOWN.lock();
        let known = known.get_or_insert_default();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(told.to_vec(), path.clone());
        Ok(())
    };
    inside::call(note).ok()?;
    Some(path)
}

/// # Safety
/// NULL, or a length.
#[inline]
unsafe fn room_of(len: *const socklen_t) -> socklen_t {
    // SAFETY: promised by the caller.
    if len.is_null() { 0 } else { unsafe { *len } }
}

macro_rules! telling {
    ($($name:ident $made:ident ($($more:ident: $type:ty),*);)*) => {$(
        #[interposed]
        unsafe extern "C-unwind" fn $name(
            fd: c_int, address: *mut sockaddr, len: *mut socklen_t $(, $more: $type)*
        ) -> c_int {
            // SAFETY: the program vouches for its arguments, as to the C library.
            let (room, mut told) = unsafe { (room_of(len), AddressOut::new(address, len)) };
            let (address, len) = told.pointers();
            let done = real(fd, address, len$(, $more)*);
            if done >= 0 {
                // SAFETY: as above.
                unsafe { told.give(room) };
            }
            $made(done)
        }
    )*};
}
telling! {
    accept is_of_host();
    accept4 is_of_host(flags: c_int);
    getpeername identity();
    getsockname identity();
}

#[interposed]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    bytes: *mut c_void,
    count: size_t,
    flags: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let (room, mut told) = unsafe { (room_of(len), AddressOut::new(address, len)) };
    let (address, len) = told.pointers();
    let done = real(fd, bytes, count, flags, address, len);
    if done >= 0 {
        // SAFETY: as above.
        unsafe { told.give(room) };
    }
    done
}

#[interposed]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    bytes: *mut c_void,
    count: size_t,
    size: size_t,
    flags: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    check_room(count, size);
    // SAFETY: as for this function.
    unsafe { recvfrom(fd, bytes, count, flags, address, len) }
}

#[interposed]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let Some(given) = (unsafe { message.as_mut() }) else {
        return real(fd, message, flags);
    };
    let room = given.msg_namelen;
    // SAFETY: as above.
    let mut told = unsafe { AddressOut::new(given.msg_name.cast(), &raw mut given.msg_namelen) };
    if let Some((un, len)) = &mut told.own {
        (given.msg_name, given.msg_namelen) = ((&raw mut *un).cast(), *len);
    }
    let done = real(fd, message, flags);
    let written = given.msg_namelen;
    if let Some((_, len)) = &mut told.own {
        *len = written;
        (given.msg_name, given.msg_namelen) = (told.address.cast(), room);
    }
    if done >= 0 {
        // SAFETY: as above.
        unsafe { told.give(room) };
    }
    done
}

/// An address for which there is less room than for one of the host's is cut.
#[interposed]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    let done = real(fd, messages, count, flags, timeout);
    for at in 0..done.max(0) as usize {
        // SAFETY: the program vouches for its arguments, as to the C library. Nobody knows how much
        // room there was: a path that is no longer than the host's address fits.
        unsafe {
            let message = &mut (*messages.add(at)).msg_hdr;
            let (address, len) = (message.msg_name.cast(), &raw mut message.msg_namelen);
            let mut told = AddressOut {
                address,
                len,
                own: None,
            };
            told.give(*len);
        }
    }
    done
}
