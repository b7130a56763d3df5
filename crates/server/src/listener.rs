//! The server's socket, and the thread that answers those who ask there: sessions for the pollers.
//!
//! Invariants: it waits for no peer, and sleeps without a deadline while nobody comes (`door`).

use crate::balance::Balance;
use crate::door::{Door, Greeted, Policy, Spare};
use crate::inheritance::Inheritance;
use crate::nodes::Asker;
use crate::notices;
use crate::owner::Owner;
use crate::poller::Poller;
use crate::resume::may_live;
use crate::serve;
use crate::session::{Session, is_privileged, memory_for};
use crate::volume::{ServedVolume, find_for};
use adit_base::fork::Registered;
use adit_base::thread::with_umask;
use adit_base::{Errno, Error, Result, from_rustix, numbers};
use adit_fs::{FileKind, OpenFlags};
use adit_wire::handshake::{Aim, Answer, Begun, Key, MappedFile, Node, NodeUse, Request, Resumed};
use adit_wire::memory::SessionMemory;
use adit_wire::socket::{Peer, refuse_descriptors, send_message, send_message_with, unconnected};
use rustix::event::Timespec;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, chmod, fchmod, flock, fstat, open};
use rustix::net::{Shutdown, SocketAddrUnix, SocketFlags, bind, connect, listen, shutdown};
use std::fs::Metadata;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Connections that have not asked for a session yet.
const GREETED_MAX: usize = 64;
/// The mode of the socket says who can connect.
static POLICY: Policy = Policy {
    greeted_max: GREETED_MAX,
    admits: |_| Ok(()),
    notes_refusal: say_refused,
};
/// Servers that begin at one path do so one after the other, and wait for each other no longer.
const BIND_WAIT: Duration = Duration::from_secs(10);
/// How often the time of grace is looked at.
const GRACE_LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// The server's socket in the file system.
#[derive(Debug)]
pub(crate) struct Listener {
    /// A forked child that kept it would keep the next server away.
    fd: Registered<OwnedFd>,
    path: PathBuf,
    made: (u64, u64),
    stopped: AtomicBool,
}

/// What new sessions need.
#[derive(Debug)]
pub(crate) struct Hall {
    pub(crate) listener: Listener,
    pub(crate) volumes: Vec<Arc<ServedVolume>>,
    pub(crate) pollers: Mutex<Vec<Poller>>,
    pub(crate) balance: Arc<Balance>,
    /// This process, where it works on the volume itself.
    pub(crate) owner: Owner,
    /// Number of things that were left and wait for their heirs.
    pub(crate) left: AtomicUsize,
    /// Has any session begun?
    pub(crate) has_begun: AtomicBool,
    /// Those that there are, also after their end.
    pub(crate) census: Census,
    pub(crate) sessions_max: usize,
    pub(crate) grace: Duration,
}

/// The sessions whose memory is there. One that has ended keeps it until its last operation is
/// done: a client that begins sessions and leaves them must not have more of it than one that
/// stays.
#[derive(Debug, Default)]
pub(crate) struct Census(Mutex<Vec<Counted>>);

#[derive(Debug)]
struct Counted {
    uid: u32,
    privileged: bool,
    session: Weak<Session>,
}

impl Census {
    fn add(&self, session: &Arc<Session>) {
        let counted = Counted {
            uid: session.peer.uid,
            privileged: session.privileged,
            session: Arc::downgrade(session),
        };
        self.present().push(counted);
    }

    /// Those that there are now.
    fn present(&self) -> MutexGuard<'_, Vec<Counted>> {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.retain(|of| of.session.strong_count() > 0);
        counted
    }
}

impl Listener {
    /// Binds the socket at `path`, for those whom `mode` lets connect. `EADDRINUSE` if a server
    /// answers there, `EEXIST` if it isn't a socket; a socket that nobody answers is replaced.
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<Listener> {
        let bound = Listener::bind_unnamed(path, mode);
        bound.map_err(|error| error.context(format_args!("listen at {}", path.display())))
    }

    /// Could a socket be bound at `path`? A server that answers there may be about to end.
    pub(crate) fn check(path: &Path) -> Result<()> {
        match Reserved::new(path) {
            Err(error) if error.errno() == Errno::ADDRINUSE => Ok(()),
            reserved => reserved
                .map(drop)
                .map_err(|error| error.context(format_args!("listen at {}", path.display()))),
        }
    }

    fn bind_unnamed(path: &Path, mode: u32) -> Result<Listener> {
        let (fd, _alone) = bind_alone(path, mode)?;
        if let Err(error) = refuse_descriptors(fd.as_fd()) {
            tracing::debug!(%error, "sessions can send descriptors, which are closed");
        }
        // Nobody can connect before `listen`.
        let made = set_mode(path, mode).inspect_err(|_| {
            let found = std::fs::symlink_metadata(path);
            if found.is_ok_and(|found| found.file_type().is_socket()) {
                let _ = std::fs::remove_file(path);
            }
        })?;
        let listener = Listener {
            fd,
            path: path.to_owned(),
            made,
            stopped: AtomicBool::new(false),
        };
        listen(&listener.fd, BACKLOG).map_err(from_rustix)?;
        Ok(listener)
    }

    /// Nobody is accepted any more, and the thread that serves it ends.
    pub(crate) fn shut(&self) {
        let _ = shutdown(&self.fd, Shutdown::Both);
    }

    /// Does something if no other server is at the path, nor can be meanwhile. It waits for nobody.
    pub(crate) fn alone(&self, act: impl FnOnce()) {
        let alone = lock_directory(&self.path, Duration::ZERO);
        let now = std::fs::symlink_metadata(&self.path);
        if alone.is_some() && now.is_ok_and(|now| identity(&now) == self.made) {
            act();
        }
    }

    /// Likewise, and nobody finds it any more.
    pub(crate) fn stop(&self) {
        // Once: the number of a removed file may be that of another server's socket.
        if self.stopped.swap(true, Ordering::Relaxed) {
            return;
        }
        self.shut();
        remove_own(&self.path, self.made);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A socket that is bound and doesn't listen, as long as this lives: no server is there.
pub(crate) struct Reserved {
    _fd: Registered<OwnedFd>,
    path: PathBuf,
    made: (u64, u64),
    /// After the socket's name has gone.
    _alone: Option<Registered<OwnedFd>>,
}

impl Reserved {
    pub(crate) fn new(path: &Path) -> Result<Reserved> {
        let (fd, alone) = bind_alone(path, 0o600)?;
        Ok(Reserved {
            _fd: fd,
            path: path.to_owned(),
            made: identity(&std::fs::symlink_metadata(path)?),
            _alone: alone,
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        remove_own(&self.path, self.made);
    }
}

/// Binds a socket, and keeps other servers from its directory: one that is bound and doesn't listen
/// looks like a dead one. It has these permission bits; where the kernel allows no thread a mask of
/// its own, only those of them that the process doesn't mask.
fn bind_alone(
    path: &Path,
    mode: u32,
) -> Result<(Registered<OwnedFd>, Option<Registered<OwnedFd>>)> {
    let address = SocketAddrUnix::new(path).map_err(from_rustix)?;
    let make = || unconnected(SocketFlags::NONBLOCK);
    let fd = numbers::registered(make).map_err(from_rustix)?;
    // Where the kernel takes no bits of a socket, `set_mode` gives them to its name.
    let _ = fchmod(&fd, Mode::from_raw_mode(mode));
    let alone = lock_directory(path, BIND_WAIT);
    let hidden = alone.as_ref().and_then(|directory| hidden(directory, path));
    let shown = hidden.as_ref().unwrap_or(&address);
    let bind = || with_umask(0o777 & !mode, &|| bind(&fd, shown));
    match bind() {
        Err(rustix::io::Errno::ADDRINUSE) => {
            remove_dead(path, &address)?;
            bind().map_err(from_rustix)?;
        }
        bound => bound.map_err(from_rustix)?,
    }
    Ok((fd, alone))
}

/// The address of a socket in a directory that not everybody can list: then the kernel's list of
/// sockets doesn't tell its path either.
fn hidden(directory: &OwnedFd, path: &Path) -> Option<SocketAddrUnix> {
    let is_listed = fstat(directory).is_ok_and(|of| of.st_mode & 0o004 != 0);
    let through = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
    let is_there = || through.join(".").exists();
    let name = path.file_name().filter(|_| !is_listed && is_there())?;
    SocketAddrUnix::new(through.join(name)).ok()
}

/// Gives the socket that was just bound its permission bits, and returns its identity. The owner of
/// the directory may have put something else in its place, such as a link to a file of this user's:
/// that is left alone.
fn set_mode(path: &Path, mode: u32) -> Result<(u64, u64)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name = open(path, flags, Mode::empty()).map_err(from_rustix)?;
    let found = fstat(&name).map_err(from_rustix)?;
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    if !is_socket || found.st_nlink != 1 {
        let what = "the socket has been replaced by something else";
        return Err(Error::with(Errno::PERM, what));
    }
    if found.st_mode & 0o777 != mode {
        let name = format!("/proc/self/fd/{}", name.as_raw_fd());
        chmod(name, Mode::from_raw_mode(mode)).map_err(from_rustix)?;
    }
    Ok((found.st_dev, found.st_ino))
}

/// Removes a socket's name, unless another server has replaced it.
fn remove_own(path: &Path, made: (u64, u64)) {
    let now = std::fs::symlink_metadata(path);
    if now.is_ok_and(|now| identity(&now) == made) {
        let _ = std::fs::remove_file(path);
    }
}

/// Keeps other servers from the directory of a socket. None: it can't be locked, or not in time.
fn lock_directory(path: &Path, wait: Duration) -> Option<Registered<OwnedFd>> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = || open(directory, flags, Mode::empty());
    let directory = numbers::registered(open).ok()?;
    let begin = Instant::now();
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            // Anybody who may read the directory could hold it for ever.
            Err(_) if begin.elapsed() >= wait => return None,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Removes a socket that nobody answers.
fn remove_dead(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(Error::with(Errno::EXIST, "it isn't a socket"));
    }
    let make = || unconnected(SocketFlags::NONBLOCK);
    let probe = numbers::registered(make).map_err(from_rustix)?;
    match connect(&probe, address) {
        Err(rustix::io::Errno::CONNREFUSED) => Ok(std::fs::remove_file(path)?),
        Err(rustix::io::Errno::NOENT) => Ok(()),
        _ => Err(Error::with(Errno::ADDRINUSE, "a server answers there")),
    }
}

impl Hall {
    /// Serves the socket until it is shut down.
    pub(crate) fn serve(&self, spare: Spare) {
        let mut inheritances = Vec::new();
        self.serve_with(spare, &mut inheritances);
        for left in &mut inheritances {
            left.is_handed_over = true;
        }
    }

    fn serve_with(&self, spare: Spare, inheritances: &mut Vec<Inheritance>) {
        let mut door = Door::new(&self.listener.fd, &POLICY, spare);
        // They wait for the sessions of the last server.
        let mut held: Vec<(Greeted, Request)> = Vec::new();
        for volume in &self.volumes {
            volume.resumption.begin(self.grace);
        }
        loop {
            let any_grace = self.end_graces();
            if !any_grace {
                for (of, request) in held.drain(..) {
                    self.answer(&door, &of, &request, inheritances);
                }
            }
            self.left.store(inheritances.len(), Ordering::Relaxed);
            let kept = inheritances.iter().map(|of| &*of.socket);
            let Some(arrivals) = door.wait(kept, any_grace.then_some(&GRACE_LOOK)) else {
                return;
            };
            let mut ended = arrivals.ready.iter();
            inheritances.retain(|_| ended.next() == Some(&false));
            for (of, request) in arrivals.asked {
                // Who leaves files has its session's locks: one that doesn't know yet that its
                // server has ended could come back only after the answer.
                let leaves = matches!(request.aim, Aim::Leave(_));
                match () {
                    () if !any_grace || leaves || request.resumes().is_some() => {
                        self.answer(&door, &of, &request, inheritances);
                    }
                    () if self.has_room_to_hold(&of.peer, &held) => held.push((of, request)),
                    () => {
                        let what = "begin a session while those of the last server come back: as \
                                    many as the server takes wait already";
                        door.refuse(&of, Error::with(Errno::AGAIN, what));
                    }
                }
            }
        }
    }

    /// Ends what is over of the time in which only sessions of the last server go on. Is any left?
    fn end_graces(&self) -> bool {
        let mut any = false;
        for volume in &self.volumes {
            let (resumption, sessions_file) = (&volume.resumption, &volume.sessions_file);
            if volume.workers.poisoned() {
                // They wait for the next server, which has what the last one left.
                resumption.give_up();
                continue;
            }
            let last = || volume.mappings.end_grace(&volume.workers);
            if resumption.end_if_over(volume.opening, sessions_file, may_live, last) {
                volume.delete_orphans();
            }
            any |= resumption.in_grace();
        }
        any
    }

    /// May another peer wait for the sessions of the last server? A user who is neither root nor
    /// the server's own takes half of the places.
    fn has_room_to_hold(&self, peer: &Peer, held: &[(Greeted, Request)]) -> bool {
        let of_user = held.iter().filter(|(of, _)| of.peer.uid == peer.uid);
        let max = self.sessions_max;
        held.len() < max && (is_privileged(peer) || of_user.count() < max.div_ceil(2))
    }

    /// Begins the session that a peer asks for, or says why not.
    fn answer(
        &self,
        door: &Door<'_>,
        greeted: &Greeted,
        request: &Request,
        inheritances: &mut Vec<Inheritance>,
    ) {
        let answered = match request.aim {
            Aim::Leave(key) => self.leave(greeted, key, inheritances),
            Aim::Mapped(of) => self.give_mapped(greeted, of),
            Aim::Node(node) => self.give_node(greeted, node),
            Aim::Look => {
                let what = "look at a served volume: begin a session that only reads";
                Err(Error::with(Errno::OPNOTSUPP, what))
            }
            Aim::Begin | Aim::Resume(_) | Aim::Inherit(_) | Aim::Move(_) => {
                let begun = self.begin(greeted, request, inheritances);
                begun.map(|begun| self.place(begun))
            }
        };
        if let Err(error) = answered {
            door.refuse(greeted, error);
        }
    }

    /// Gives a session to a poller, then tells its client that it has begun: the client finds the
    /// session in the server's state.
    fn place(
        &self,
        (session, memory, resumed): (Arc<Session>, Registered<OwnedFd>, Option<Resumed>),
    ) {
        let published = session.published();
        let answer = Answer::Begun(Begun {
            privileged: session.privileged,
            volume: session.volume.name.clone(),
            cache: published.map(|of| (of.frames, of.memory_offset)),
            opening: session.volume.opening,
            resumed,
            key: session.key(),
        });
        let mut descriptors = vec![memory.as_fd()];
        if let Some(published) = published {
            descriptors.extend([published.memory.as_fd(), published.versions.as_fd()]);
        }
        self.has_begun.store(true, Ordering::Relaxed);
        tracing::debug!(pid = session.peer.pid, uid = session.peer.uid, volume = %session.volume.name, "a session begins");
        let place = self.balance.place();
        let pollers = self.pollers.lock().expect("no panic while it is held");
        let takes = |poller: &&Poller| poller.takes_sessions();
        let placed = pollers.get(place).filter(takes);
        match placed.or_else(|| pollers.iter().find(takes)) {
            Some(poller) => poller.add(session.clone()),
            None => serve::close_all_now(&session),
        }
        if send_message_with(&session.socket, &answer, &descriptors).is_err() {
            // It went away; the poller finds out, and closes its files.
            let _ = rustix::net::shutdown(&session.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Keeps what the session with this key has open, as long as the connection lives.
    fn leave(
        &self,
        greeted: &Greeted,
        key: Key,
        inheritances: &mut Vec<Inheritance>,
    ) -> Result<()> {
        let uid = greeted.peer.uid;
        let keep = || numbers::duplicate(&greeted.socket).map_err(from_rustix);
        let left = match (self.owner.take(key), self.owner.recorded()) {
            (Some(files), Some(owner)) => {
                self.check_room(&greeted.peer, inheritances)?;
                Inheritance::of_owner(owner, &self.volumes[0], files, keep()?, uid)?
            }
            _ => {
                let sessions = self.balance.sessions();
                let mut sessions = sessions.iter().map(|(_, session)| session);
                let session = sessions.find(|session| session.key() == key);
                let session = session.ok_or_else(|| no_inheritance("a session"))?;
                check_speaker(&greeted.peer, session)?;
                self.check_room(&greeted.peer, inheritances)?;
                Inheritance::of(session, keep()?, uid)?
            }
        };
        let key = left.key();
        inheritances.push(left);
        self.left.store(inheritances.len(), Ordering::Relaxed);
        // If it went away, its connection says so.
        let _ = send_message(&greeted.socket, &Answer::Left(key));
        Ok(())
    }

    /// Gives a session the memory of a file's mappings, which it holds.
    fn give_mapped(&self, greeted: &Greeted, of: MappedFile) -> Result<()> {
        let sessions = self.balance.sessions();
        let speaks = |session: &&Arc<Session>| check_speaker(&greeted.peer, session).is_ok();
        let sessions = sessions.iter().map(|(_, session)| session);
        let memory = memory_for(sessions.filter(speaks), of)?;
        let _ = send_message_with(&greeted.socket, &Answer::Mapped, &[memory.as_fd()]);
        Ok(())
    }

    /// Gives a session what the host has for a pipe or a socket that it has open.
    fn give_node(&self, greeted: &Greeted, node: Node) -> Result<()> {
        let sessions = self.balance.sessions();
        let mut sessions = sessions.iter().map(|(_, session)| session);
        let session = sessions.find(|session| session.key() == node.of.key);
        let session = session.ok_or_else(|| {
            let what = "speak for a session that this server doesn't have";
            Error::with(Errno::STALE, what)
        })?;
        check_speaker(&greeted.peer, session)?;
        let answered = match node.want {
            NodeUse::BoundAs(id) => {
                let path = session.volume.nodes.bound_as(id);
                path.map(|path| send_message(&greeted.socket, &Answer::BoundAs(path.into())))
            }
            _ => node_of(session, node)
                .map(|found| send_message_with(&greeted.socket, &Answer::Node, &[found.as_fd()])),
        };
        match answered {
            // The program hears it, and nobody else needs to.
            Err(error) if is_of_program(error.errno()) => {
                let _ = send_message(&greeted.socket, &Answer::Refused(error));
                Ok(())
            }
            answered => answered.map(drop),
        }
    }

    fn begin(
        &self,
        greeted: &Greeted,
        request: &Request,
        inheritances: &mut Vec<Inheritance>,
    ) -> Result<(Arc<Session>, Registered<OwnedFd>, Option<Resumed>)> {
        let mut inherited = None;
        if let Aim::Inherit(key) | Aim::Move(key) = request.aim {
            let found = inheritances.iter().position(|left| left.key() == key);
            inherited = Some(found.ok_or_else(|| no_inheritance("files"))?);
        }
        let volume = match inherited {
            Some(at) => inheritances[at].volume.clone(),
            None => find_for(&self.volumes, request)?,
        };
        let is_held = request.resumes().is_none() && volume.resumption.in_grace();
        assert!(!is_held, "new sessions wait until the grace is over");
        let resumed = resumed(&volume, request)?;
        // An inheritance has counted as a session.
        if inherited.is_none() {
            self.check_room(&greeted.peer, inheritances)?;
        }
        let (memory, descriptor) = SessionMemory::create()
            .map_err(|error| error.context("make the memory of a session"))?;
        let socket = numbers::duplicate(&greeted.socket)
            .map_err(|errno| Error::new(from_rustix(errno)).context("keep a connection"))?;
        let session = Session::new(
            socket,
            greeted.peer.clone(),
            memory,
            volume,
            request,
            resumed,
            inherited.is_some_and(|at| inheritances[at].read_only),
        )?;
        let session = Arc::new(session);
        if let Some(at) = inherited {
            let moves = matches!(request.aim, Aim::Move(_));
            inheritances.swap_remove(at).hand_to(&session, moves);
        }
        self.census.add(&session);
        Ok((session, descriptor, resumed))
    }

    /// EAGAIN if there are as many sessions as may be. A user who is neither root nor the server's
    /// own has half of them at most; all of these together leave some to root. What waits for an
    /// heir counts as a session, and so does one that has ended, until all that it had submitted is
    /// done.
    fn check_room(&self, peer: &Peer, inheritances: &[Inheritance]) -> Result<()> {
        let sessions = self.census.present();
        let max = self.sessions_max;
        let refused = |what| Err(Error::with(Errno::AGAIN, what));
        if sessions.len() + inheritances.len() >= max {
            let what = format!("begin another session: the server has {max}, and takes no more");
            return refused(what);
        }
        if is_privileged(peer) {
            return Ok(());
        }
        let users = sessions.iter().map(|session| session.uid);
        let users = users.chain(inheritances.iter().map(|left| left.uid));
        let of_user = users.filter(|uid| *uid == peer.uid).count();
        if of_user >= max.div_ceil(2) {
            let what = format!(
                "begin another session: user {} has {of_user}, half of those that the server takes",
                peer.uid
            );
            return refused(what);
        }
        let unprivileged = sessions.iter().filter(|session| !session.privileged);
        let for_root = (max / 16).max(1);
        if max > 1 && unprivileged.count() + for_root >= max {
            let what = format!(
                "begin another session: the last {for_root} of {max} are for root and the server's own user"
            );
            return refused(what);
        }
        Ok(())
    }
}

/// What a session learns that goes on with one of the last server; None: it doesn't.
pub(crate) fn resumed(volume: &ServedVolume, request: &Request) -> Result<Option<Resumed>> {
    let asked = request.resumes();
    asked
        .map(|claim| volume.resumption.resumed(volume.opening, claim.opening))
        .transpose()
}

#[cold]
/// May a process at another connection speak for a session, whose key it has? Its user may, and
/// root: a forked child that has become another user has the key in the memory that it had.
pub(crate) fn check_speaker(peer: &Peer, session: &Session) -> Result<()> {
    if peer.uid == 0 || peer.uid == session.peer.uid {
        Ok(())
    } else {
        let what = "speak for another user's session";
        Err(Error::with(Errno::PERM, what))
    }
}

/// Is it what programs hear every day?
fn is_of_program(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::CONNREFUSED | Errno::ADDRINUSE)
}

/// The host's pipe or socket of a node that a session has open: for its rights, to open or connect to
/// it; to bind a socket to it, the node must be the session's user's.
fn node_of(session: &Session, node: Node) -> Result<Registered<OwnedFd>> {
    let open = session.file(node.of.file)?;
    let volume = &session.volume;
    let found = volume.workers.of(&open).run(|fs| fs.fstat(&open))?;
    if found.links == 0 {
        return Err(Error::with(Errno::NOENT, "the node has no name any more"));
    }
    let (id, flags, kind) = (open.blob_id(), open.flags(), open.kind());
    let asker = Asker {
        uid: session.peer.uid,
        privileged: session.privileged,
    };
    let refused = |errno, what| Err(Error::with(errno, what));
    match node.want {
        NodeUse::Bind {
            kind: of_socket,
            path,
            path_len,
        } => {
            if kind != FileKind::Socket {
                return refused(Errno::INVAL, "bind a socket to a node that isn't one");
            }
            if !session.privileged && found.uid != session.peer.uid {
                return refused(Errno::PERM, "bind a socket to a node of another user");
            }
            let path = path.get(..usize::from(path_len)).ok_or(Errno::INVAL)?;
            volume.nodes.bound(id, &found, asker, (of_socket, path))
        }
        _ if !flags.contains(OpenFlags::NODE) => refused(
            Errno::BADF,
            "connect to a node by a descriptor that was not opened for that",
        ),
        _ if kind == FileKind::Socket && !flags.names_writing() => refused(
            Errno::ACCESS,
            "connect to a socket without the right to write",
        ),
        _ if kind == FileKind::Socket => volume.nodes.socket(id, &found),
        _ => volume.nodes.pipe(id, &found, asker),
    }
}

pub(crate) fn no_inheritance(what: &str) -> Error {
    let what = format!("inherit {what} of another process: this server knows no such key");
    Error::with(Errno::STALE, what)
}

fn say_refused(peer: &Peer, error: &Error) {
    if let Some(omitted) = notices::REFUSALS.next() {
        let (pid, uid) = (peer.pid, peer.uid);
        tracing::warn!(pid, uid, omitted, %error, "a connection is refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o777
    }

    /// In a directory of another user its owner may replace the socket at any time. The mode went
    /// to whatever a link there led to.
    #[test]
    fn a_mode_goes_to_the_socket_and_to_nothing_in_its_place() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let (file, other) = (
            directory.path().join("file"),
            directory.path().join("other"),
        );
        fs::write(&file, b"a secret").expect("written");
        let before = mode(&file);
        symlink(&file, &path).expect("made");
        let refused = |path: &Path| set_mode(path, 0o606).expect_err("refused").errno();
        assert_eq!(refused(&path), Errno::PERM);
        assert_eq!(refused(&file), Errno::PERM);
        assert_eq!(mode(&file), before);
        fs::remove_file(&path).expect("it was there");
        let (_socket, _) = bind_alone(&path, 0o602).expect("bound");
        assert_eq!(mode(&path) & !0o602, 0, "no more than was asked for");
        let made = set_mode(&path, 0o606).expect("set");
        assert_eq!(
            (mode(&path), made),
            (0o606, identity(&fs::metadata(&path).expect("there")))
        );
        // It may be a socket that others use.
        fs::hard_link(&path, &other).expect("made");
        assert_eq!(refused(&other), Errno::PERM);
    }

    /// Where the process's mask took bits of the socket, it needed `/proc` to have them: a server
    /// in a chroot did not begin.
    #[test]
    fn a_server_begins_without_proc_whatever_the_process_masks() {
        let directory = tempfile::tempdir().expect("a directory");
        let bound = with_umask(0o777, &|| {
            // Of this thread alone; for root only.
            let path = match rustix::process::chroot(directory.path()) {
                Ok(()) => PathBuf::from("/s"),
                Err(_) => directory.path().join("s"),
            };
            Listener::check(&path).and_then(|()| Listener::bind(&path, 0o606))
        });
        let listener = bound.expect("bound");
        assert_eq!(mode(&directory.path().join("s")), 0o606);
        drop(listener);
    }
}
