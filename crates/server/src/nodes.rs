//! The host's pipes and sockets that stand behind nodes of a volume.
//!
//! The kernel finds the bytes of a pipe, and the queue of a socket, by an inode of the host's. This
//! makes such inodes, and hands out descriptors that are open for the path alone (`O_PATH`): a
//! process opens, or connects to, `/proc/self/fd/N`. So no process needs a name, and no address
//! depends on the length of a path in the volume.
//!
//! ```text
//! node of the volume ─► adit-VOLUME-INODE-GENERATION in SOCKET.nodes     a server's volume
//!                    └► a descriptor that is kept, of what has no name   a process's own volume
//! ```
//! Invariants:
//! 1. Only this process's user can make, replace or reach a name in the directory: it belongs to
//!    that user alone, and is opened through no symbolic link.
//! 2. Handed out is only what is a pipe or a socket as the node is, under one name at most.
//! 3. What a server hands out has the node's owner and rights: the kernel decides as the volume
//!    does, also for a process that has only one of two rights.

use adit_base::fork::Registered;
use adit_base::random::os_random_u64;
use adit_base::{Errno, Error, Result, from_rustix, numbers};
use adit_fs::{BlobId, FileKind, Stat};
use adit_wire::socket::own_uid;
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid, XattrFlags, chmod, chownat, fstat, mkdir,
    mknodat, open, openat, readlinkat, removexattr, rmdir, setxattr, symlinkat, unlinkat,
};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Nodes of a volume for which the host has something, at most. A user has half of them.
const NODES_MAX: usize = 4096;
/// How the names begin.
const PREFIX: &str = "adit-";
/// Behind the name of a socket: a link whose text is the path to which it was bound.
const BOUND_AS: &str = ".as";
/// Where a process makes what gets no name.
const MEMORY: &str = "/dev/shm";
const ACL: &str = "system.posix_acl_access";

/// See the module.
#[derive(Debug)]
pub struct Nodes {
    volume_id: (u64, u64),
    /// None: pipes and sockets have no names.
    directory: Option<PathBuf>,
    known: Mutex<BTreeMap<BlobId, HostNode>>,
}

/// The host's pipe or socket of a node.
#[derive(Debug)]
struct HostNode {
    /// The user who had it made.
    uid: u32,
    /// None: it has a name.
    kept: Option<OwnedFd>,
    /// The path to which a socket says that it is bound.
    bound_as: Vec<u8>,
    /// Owner, group and mode that it has now.
    rights: Option<(u32, u32, u32)>,
}

/// The user who wants something of the host's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// Its number.
    pub uid: u32,
    /// May this user have more than half of all?
    pub privileged: bool,
}

/// Those of servers in this process, and those of the process itself.
static OF_SERVERS: Mutex<Vec<Weak<Nodes>>> = Mutex::new(Vec::new());
static OWN: Mutex<Vec<Arc<Nodes>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_gone(error: &Error) -> bool {
    error.errno() == Errno::NOENT
}

impl Nodes {
    /// Those of a volume that this process has open itself: the server's, if it serves the volume.
    /// They outlive an opening: a program that listens at a socket doesn't know that the volume is
    /// closed, and opened again.
    pub fn of_process(volume_id: (u64, u64)) -> Arc<Nodes> {
        let of_servers: Vec<_> = lock(&OF_SERVERS).iter().filter_map(Weak::upgrade).collect();
        let mut own = lock(&OWN);
        let mut all = of_servers.iter().chain(own.iter());
        if let Some(found) = all.find(|of| of.volume_id == volume_id) {
            return found.clone();
        }
        let made = Arc::new(Nodes {
            volume_id,
            directory: None,
            known: Mutex::default(),
        });
        own.push(made.clone());
        made
    }

    /// Those of a server at this socket. `goes_on`: sessions of the last server can come back, so
    /// what it has left stays for the nodes that are there: `owner` says whose.
    pub(crate) fn of_server(
        socket: &Path,
        volume_id: (u64, u64),
        goes_on: bool,
        owner: impl Fn(BlobId) -> Option<u32>,
    ) -> Arc<Nodes> {
        // The process may work in another directory later.
        let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
        let mut directory = socket.into_os_string();
        directory.push(".nodes");
        let nodes = Nodes {
            volume_id,
            directory: Some(directory.into()),
            known: Mutex::default(),
        };
        if let Err(error) = nodes.take_over(goes_on, owner)
            && !is_gone(&error)
        {
            let directory = nodes.directory.as_deref().unwrap_or(Path::new(""));
            let directory = directory.display();
            tracing::warn!(%directory, %error, "pipes and sockets of the volume can't be used");
        }
        let nodes = Arc::new(nodes);
        let mut of_servers = lock(&OF_SERVERS);
        of_servers.retain(|of| of.strong_count() > 0);
        of_servers.push(Arc::downgrade(&nodes));
        nodes
    }

    /// Keeps what the last server has left for nodes that are there, and removes all else of the
    /// volume.
    fn take_over(&self, goes_on: bool, owner: impl Fn(BlobId) -> Option<u32>) -> Result<()> {
        let place = Workplace::open(self.directory.as_deref(), false)?;
        let listed = Dir::read_from(&place.fd).map_err(from_rustix)?;
        for entry in listed.flatten() {
            let name = entry.file_name();
            let Some(id) = self.id_of(name.to_bytes()) else {
                continue;
            };
            match owner(id).filter(|_| goes_on) {
                Some(uid) => _ = lock(&self.known).insert(id, self.left_at(&place, uid, id)),
                None => _ = unlinkat(&place.fd, name, AtFlags::empty()),
            }
        }
        Ok(())
    }

    fn left_at(&self, place: &Workplace, uid: u32, id: BlobId) -> HostNode {
        let bound_as = readlinkat(&place.fd, self.name(id) + BOUND_AS, Vec::new());
        HostNode {
            uid,
            kept: None,
            bound_as: bound_as.map_or(Vec::new(), |path| path.into_bytes()),
            rights: None,
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<BlobId, HostNode>> {
        lock(&self.known)
    }

    fn name(&self, id: BlobId) -> String {
        let (upper, lower) = self.volume_id;
        let BlobId { slot, generation } = id;
        format!("{PREFIX}{upper:016x}{lower:016x}-{slot:x}-{generation:x}")
    }

    /// The node that this name, or address of a socket, stands for.
    pub fn id_of(&self, path: &[u8]) -> Option<BlobId> {
        id_of(path, self.volume_id)
    }

    /// The host's pipe for a node, open for its path alone.
    pub fn pipe(&self, id: BlobId, node: &Stat, asker: Asker) -> Result<Registered<OwnedFd>> {
        let mut known = self.known();
        let found = known.get(&id).map(|of| self.found(id, of, FileType::Fifo));
        let found = match found {
            Some(Err(error)) if is_gone(&error) => None,
            found => found,
        };
        let pipe = match found {
            Some(found) => found?,
            None => {
                check_room(&known, asker)?;
                let (pipe, made) = self.make(id, asker, FileType::Fifo, Vec::new(), |place| {
                    mknodat(&place.fd, &place.name, FileType::Fifo, Mode::empty(), 0)
                })?;
                known.insert(id, made);
                pipe
            }
        };
        self.set_rights(known.get_mut(&id), pipe.as_fd(), node)?;
        Ok(pipe)
    }

    /// The host's socket for a node, open for its path alone. `ECONNREFUSED`: none was bound to it.
    pub fn socket(&self, id: BlobId, node: &Stat) -> Result<Registered<OwnedFd>> {
        let mut known = self.known();
        let none = || Error::with(Errno::CONNREFUSED, "no socket is bound to it");
        let of = known.get_mut(&id).ok_or_else(none)?;
        let socket = match self.found(id, of, FileType::Socket) {
            Err(error) if is_gone(&error) => return Err(none()),
            found => found?,
        };
        self.set_rights(Some(of), socket.as_fd(), node)?;
        Ok(socket)
    }

    /// A new socket that is bound to a node.
    pub(crate) fn bound(
        &self,
        id: BlobId,
        node: &Stat,
        asker: Asker,
        (kind, path): (u32, &[u8]),
    ) -> Result<Registered<OwnedFd>> {
        let mut kinds = [SocketType::STREAM, SocketType::DGRAM, SocketType::SEQPACKET].into_iter();
        let kind = kinds.find(|of| of.as_raw() == kind).ok_or(Errno::INVAL)?;
        let flags = SocketFlags::CLOEXEC;
        let make = || socket_with(AddressFamily::UNIX, kind, flags, None);
        let socket = numbers::high(make).map_err(from_rustix)?;
        self.bind(id, node, asker, socket.as_fd(), path)?;
        Ok(socket)
    }

    /// Binds a socket to a node. `path`: what it says from then on.
    pub fn bind(
        &self,
        id: BlobId,
        node: &Stat,
        asker: Asker,
        socket: BorrowedFd<'_>,
        path: &[u8],
    ) -> Result<()> {
        let mut known = self.known();
        if known.contains_key(&id) {
            return Err(Errno::ADDRINUSE.into());
        }
        check_room(&known, asker)?;
        let bind = |place: &Workplace| {
            let address = format!("/proc/self/fd/{}/{}", place.fd.as_raw_fd(), place.name);
            bind(socket, &SocketAddrUnix::new(address)?)
        };
        let (name, made) = self.make(id, asker, FileType::Socket, path.to_vec(), bind)?;
        known.insert(id, made);
        let set = self.set_rights(known.get_mut(&id), name.as_fd(), node);
        drop(known);
        set.inspect_err(|_| self.forget(id))
    }

    /// The path to which the socket of a node was bound. `ENOENT`: it is not known.
    pub fn bound_as(&self, id: BlobId) -> Result<Vec<u8>> {
        let known = self.known();
        let found = known.get(&id).filter(|of| !of.bound_as.is_empty());
        found
            .map(|of| of.bound_as.clone())
            .ok_or(Errno::NOENT.into())
    }

    /// The node has no name any more: nobody comes to what the host has for it. Processes that have
    /// it open go on.
    pub fn forget(&self, id: BlobId) {
        let gone = self.known().remove(&id);
        // By paths: to have a descriptor may be to wait.
        if let Some(directory) = self.directory.as_ref().filter(|_| gone.is_some()) {
            let name = self.name(id);
            for name in [name.clone() + BOUND_AS, name] {
                let _ = std::fs::remove_file(directory.join(name));
            }
        }
    }

    /// Is there something that the next server is to find?
    pub(crate) fn has_any(&self) -> bool {
        !lock(&self.known).is_empty()
    }

    /// The server ends: the directory goes, unless the next server is to find something in it.
    pub(crate) fn leave(&self) {
        let directory = self.directory.as_deref();
        if directory.is_some() && Workplace::open(directory, false).is_ok() {
            let _ = directory.map(rmdir);
        }
    }

    /// Makes what stands behind a node; a descriptor of it, for its path alone.
    fn make(
        &self,
        id: BlobId,
        asker: Asker,
        kind: FileType,
        bound_as: Vec<u8>,
        make: impl FnOnce(&Workplace) -> rustix::io::Result<()>,
    ) -> Result<(Registered<OwnedFd>, HostNode)> {
        let mut place = Workplace::open(self.directory.as_deref(), true)?;
        place.name = self.name(id);
        // One of a node that is known no more: its server was killed.
        place.remove(&place.name);
        make(&place).map_err(from_rustix)?;
        let made = place
            .found(kind)
            .inspect_err(|_| place.remove(&place.name))?;
        let mut known = HostNode {
            uid: asker.uid,
            kept: None,
            bound_as,
            rights: None,
        };
        if self.directory.is_none() {
            let kept = fcntl_dupfd_cloexec(&made, numbers::FIRST_HIGH);
            place.remove(&place.name);
            known.kept = Some(kept.map_err(from_rustix)?);
        } else if !known.bound_as.is_empty() {
            // Without room for it the next server doesn't know the path.
            let text = std::ffi::OsStr::from_bytes(&known.bound_as);
            let _ = symlinkat(text, &place.fd, place.name.clone() + BOUND_AS);
        }
        Ok((made, known))
    }

    /// The host's pipe or socket of a node. `ENOENT`: somebody has removed the name.
    fn found(&self, id: BlobId, known: &HostNode, kind: FileType) -> Result<Registered<OwnedFd>> {
        match &known.kept {
            Some(kept) => checked(numbers::duplicate(kept).map_err(from_rustix)?, kind),
            None => {
                let mut place = Workplace::open(self.directory.as_deref(), false)?;
                place.name = self.name(id);
                place.found(kind)
            }
        }
    }

    /// Gives the host's inode the owner and rights of the node. In a process's own volume
    /// permission bits bind nobody.
    fn set_rights(
        &self,
        known: Option<&mut HostNode>,
        fd: BorrowedFd<'_>,
        node: &Stat,
    ) -> Result<()> {
        let wanted = match self.directory {
            Some(_) => (node.uid, node.gid, node.mode & 0o777),
            None => (own_uid(), rustix::process::getegid().as_raw(), 0o666),
        };
        let Some(known) = known.filter(|known| known.rights != Some(wanted)) else {
            return Ok(());
        };
        known.rights = None;
        let (uid, gid, mode) = wanted;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let now = fstat(fd).map_err(from_rustix)?;
        let is_owned = (now.st_uid, now.st_gid) == (uid, gid);
        let owned = if is_owned || self.directory.is_none() {
            Ok(())
        } else {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            // The old rights are not for the new owner.
            chmod(&path, Mode::empty())
                .and_then(|()| chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH))
        };
        let set = match owned {
            Ok(()) => {
                let _ = removexattr(&path, ACL);
                chmod(&path, Mode::from_raw_mode(mode))
            }
            // Only root gives files away.
            Err(rustix::io::Errno::PERM | rustix::io::Errno::INVAL) => {
                setxattr(&path, ACL, &access_list(wanted), XattrFlags::empty())
            }
            Err(error) => Err(error),
        };
        set.map_err(|errno| {
            let what = "give the host's pipe or socket the rights of the node";
            Error::with(from_rustix(errno), what)
        })?;
        known.rights = Some(wanted);
        Ok(())
    }
}

/// The node of a volume that this name, or address of a socket, stands for.
pub fn id_of(path: &[u8], volume_id: (u64, u64)) -> Option<BlobId> {
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    let name = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
    let name = name.strip_suffix(BOUND_AS).unwrap_or(name);
    let (upper, lower) = volume_id;
    let rest = name.strip_prefix(&format!("{upper:016x}{lower:016x}-"))?;
    let (slot, generation) = rest.split_once('-')?;
    Some(BlobId {
        slot: u64::from_str_radix(slot, 16).ok()?,
        generation: u32::from_str_radix(generation, 16).ok()?,
    })
}

fn check_room(known: &BTreeMap<BlobId, HostNode>, asker: Asker) -> Result<()> {
    let of_user = || known.values().filter(|of| of.uid == asker.uid).count();
    if known.len() >= NODES_MAX || !asker.privileged && of_user() >= NODES_MAX / 2 {
        let what = "have another pipe or socket of the host's for the volume";
        Err(Error::with(Errno::NFILE, what))
    } else {
        Ok(())
    }
}

/// Is it of this kind, and without another name that somebody else knows?
fn checked(fd: Registered<OwnedFd>, kind: FileType) -> Result<Registered<OwnedFd>> {
    let found = fstat(&fd).map_err(from_rustix)?;
    if FileType::from_raw_mode(found.st_mode) == kind && found.st_nlink <= 1 {
        Ok(fd)
    } else {
        Err(Error::with(Errno::NOENT, "something else has its name"))
    }
}

/// An access control list with which users have what owner, group and mode say: this process's
/// user, who owns the inode and may do everything, is none of them.
fn access_list((uid, gid, mode): (u32, u32, u32)) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let of = |shift: u32| (mode >> shift & 7) as u16;
    let (owner, group, others) = (of(6), of(3), of(0));
    let entries = [
        (0x01, 0o6, NOBODY),
        (0x02, owner, uid),
        // The group of this process's user says nothing about anybody: no more than others have.
        (0x04, others & group, NOBODY),
        (0x08, group, gid),
        (0x10, 0o7, NOBODY),
        (0x20, others, NOBODY),
    ];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, of) in entries {
        let (tag, rights): (u16, u16) = (tag, rights);
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(of.to_le_bytes());
    }
    list
}

/// The directory in which the host's inodes are made.
struct Workplace {
    fd: Registered<OwnedFd>,
    /// What is made, or looked for, there.
    name: String,
    /// It is for one inode, and goes then.
    once: Option<PathBuf>,
}

impl Workplace {
    /// `directory`: None: a new one. `ENOENT`: it isn't there, and is not to be made.
    fn open(directory: Option<&Path>, makes: bool) -> Result<Workplace> {
        let private = Mode::RWXU;
        let path = match directory {
            Some(directory) => directory.to_owned(),
            None => {
                let name = format!("adit.node-{:016x}", os_random_u64());
                let memory = Path::new(MEMORY).join(&name);
                match mkdir(&memory, private) {
                    Ok(()) => memory,
                    Err(_) => {
                        let other = std::env::temp_dir().join(&name);
                        mkdir(&other, private).map_err(from_rustix)?;
                        other
                    }
                }
            }
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || numbers::high(|| open(&path, flags, Mode::empty()));
        let opened = match open() {
            Err(rustix::io::Errno::NOENT) if makes => match mkdir(&path, private) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => open(),
                Err(error) => Err(error),
            },
            opened => opened,
        };
        let fd = opened.map_err(|errno| {
            let what = format!("open {}", path.display());
            Error::with(from_rustix(errno), what)
        })?;
        let found = fstat(&fd).map_err(from_rustix)?;
        if found.st_uid != own_uid() || found.st_mode & 0o077 != 0 {
            let what = format!("use {}: others can get at it", path.display());
            return Err(Error::with(Errno::PERM, what));
        }
        Ok(Workplace {
            fd,
            name: String::new(),
            once: directory.is_none().then_some(path),
        })
    }

    fn found(&self, kind: FileType) -> Result<Registered<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || openat(&self.fd, &self.name, flags, Mode::empty());
        checked(numbers::high(open).map_err(from_rustix)?, kind)
    }

    fn remove(&self, name: &str) {
        for name in [name.to_owned(), name.to_owned() + BOUND_AS] {
            let _ = unlinkat(&self.fd, name, AtFlags::empty());
        }
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if let Some(path) = &self.once {
            let _ = rmdir(path);
        }
    }
}

/// Whose the node is that an inode is; None: it is none, or gone.
pub(crate) fn owner_of(found: Result<Stat>) -> Option<u32> {
    let found = found.ok()?;
    matches!(found.kind, FileKind::Fifo | FileKind::Socket).then_some(found.uid)
}
