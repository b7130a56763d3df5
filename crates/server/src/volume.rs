//! A volume as the server has it.

use crate::mappings::Mappings;
use crate::nodes::{Nodes, owner_of};
use crate::resume::{Resumption, SessionsFile, VolumeRecord};
use adit_base::{Errno, Error, Result};
use adit_fs::{At, Credentials, Follow, Fs, SharedNames, Workers};
use adit_reactor::Engine;
use adit_store::cache::PublishedFrames;
use adit_wire::calls::ServerState;
use adit_wire::handshake::{ANY_VOLUME, Opening, Request};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// What a server tells an operator who asks through a session.
pub(crate) trait Operator: Send + Sync {
    /// The server's state, as a session of that number sees it; 0: none.
    fn state(&self, own: u64) -> ServerState;

    /// Moves a session to another poller; the policy may move it again. `ENOENT` if there is no
    /// such session, `EINVAL` if there is no such poller.
    fn move_session(&self, number: u64, to: u32) -> Result<()>;
}

/// A volume, and what is under way on it for sessions.
pub(crate) struct ServedVolume {
    /// Its name for sessions that choose.
    pub(crate) name: String,
    pub(crate) workers: Workers,
    /// What privileged sessions need to read the cache themselves, where it is for that.
    pub(crate) published: Option<PublishedFrames>,
    /// A direct read waits for the device's queue: not in the poller.
    pub(crate) is_queued: bool,
    /// The memory of shared mappings.
    pub(crate) mappings: Arc<Mappings>,
    /// Its pipes and sockets.
    pub(crate) nodes: Arc<Nodes>,
    /// Operations of sessions that have begun and not ended, of each worker.
    under_way: Box<[Count]>,
    /// See [`is_handed_over`](Self::is_handed_over).
    handed_over: AtomicBool,
    /// Of the server. Weak: its pollers have this.
    pub(crate) operator: Weak<dyn Operator>,
    /// This opening of it.
    pub(crate) opening: Opening,
    /// Sessions of the last server.
    pub(crate) resumption: Resumption,
    /// For the next server.
    pub(crate) sessions_file: Arc<SessionsFile>,
}

impl std::fmt::Debug for ServedVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServedVolume({})", self.name)
    }
}

impl ServedVolume {
    /// `sessions_file`: for the next server; `last`: what the last one at the socket has left.
    pub(crate) fn new(
        name: String,
        workers: Workers,
        operator: Weak<dyn Operator>,
        sessions_file: &Arc<SessionsFile>,
        last: &[VolumeRecord],
        socket: &Path,
    ) -> Result<ServedVolume> {
        let lead = workers.lead();
        let (is_queued, published, opening, predecessor, is_untouched, cache) =
            lead.run(|fs| async {
                let store = fs.store();
                let capabilities = store.reactor().device().capabilities();
                let published = store.frames().published()?;
                let info = store.info().await?;
                let opening = opening_of(info.volume_id, store.epoch());
                let is_queued = capabilities.queued;
                let (predecessor, is_untouched) = (store.predecessor(), fs.keeps_orphans());
                Ok((
                    is_queued,
                    published,
                    opening,
                    predecessor,
                    is_untouched,
                    info.mapping,
                ))
            })?;
        let resumption = Resumption::new(opening.volume_id, predecessor, last, is_untouched);
        let mappings = Arc::new(Mappings::new(opening, &resumption, cache.as_deref()));
        let who = Credentials::process();
        let owner = |id| owner_of(lead.run(|fs| fs.stat(At::inode(&who, id), Follow::No)));
        let goes_on = resumption.goes_on();
        let nodes = Nodes::of_server(socket, opening.volume_id, goes_on, owner);
        let (made, ended) = (mappings.clone(), nodes.clone());
        lead.run(move |fs| async move {
            fs.make_mapped_memory_with(move |id| made.make(id));
            fs.tell_ended_nodes(move |id| ended.forget(id));
            Ok(())
        })?;
        sessions_file.add(opening, &resumption);
        if !resumption.in_grace() {
            // A process that has ended may have left memory that its server did not live to write.
            mappings.end_grace(&workers);
            sessions_file.end_grace(opening, |_| true);
        }
        Ok(ServedVolume {
            operator,
            opening,
            resumption,
            sessions_file: sessions_file.clone(),
            name,
            under_way: workers.all().iter().map(|_| Count::default()).collect(),
            workers,
            published,
            is_queued,
            mappings,
            nodes,
            handed_over: AtomicBool::new(false),
        })
    }

    /// A server that can't begin has opened this volume and not used it: the sessions of the last
    /// server, which left `last`, go on after this opening, too.
    pub(crate) fn pass_on(
        engine: &Engine<Fs>,
        sessions_file: &SessionsFile,
        last: &[VolumeRecord],
    ) -> Result<()> {
        let (opening, predecessor, is_untouched) = engine.run(|fs| async {
            let store = fs.store();
            let opening = opening_of(store.info().await?.volume_id, store.epoch());
            Ok((opening, store.predecessor(), fs.keeps_orphans()))
        })?;
        // Otherwise the server came so far itself.
        if last.iter().all(|of| of.opening != opening) {
            let volume_id = opening.volume_id;
            let resumption = Resumption::new(volume_id, predecessor, last, is_untouched);
            sessions_file.add(opening, &resumption);
        }
        Ok(())
    }

    /// Deletes what lost its last name in an earlier opening, and nobody has open now. While somebody
    /// may come for it, it is left to the next opening.
    pub(crate) fn delete_orphans(&self) {
        if self.resumption.has_heirs() {
            return;
        }
        let deleted = self.workers.lead().run(|fs| fs.delete_orphans());
        if let Err(error) = deleted {
            tracing::warn!(volume = %self.name, %error, "files without names keep their space: the next opening deletes them");
        }
    }

    /// Does the next server do what is under way? Then no session hears of it any more.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Relaxed)
    }

    /// All sessions of the server are silenced: long operations end early.
    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    /// Has every operation of a session ended, if only by a panic?
    pub(crate) fn is_idle(&self) -> bool {
        let mut workers = 0..self.workers.count() as u32;
        workers.all(|worker| {
            self.under_way(worker) == 0 || self.workers.engine(worker).have_all_failed()
        })
    }

    /// Operations under way in a worker.
    #[inline]
    pub(crate) fn under_way(&self, worker: u32) -> usize {
        self.under_way[worker as usize].0.load(Ordering::Acquire)
    }

    /// A poller of the volume stops for a while: keepers take the work that is left.
    pub(crate) fn leave_to_keepers(&self) {
        for engine in self.workers.all() {
            engine.leave_to_keeper();
        }
    }

    /// The names, as any thread may read them without a worker.
    pub(crate) fn names(&self) -> &SharedNames {
        self.workers.names()
    }
}

/// The order of the id's bytes in records and file names, by which the next server finds what this
/// one leaves. (`adit info` and the name of the cache's mapping have the opposite order.)
pub(crate) fn opening_of(volume_id: [u8; 16], epoch: u64) -> Opening {
    let id = u128::from_be_bytes(volume_id);
    Opening {
        volume_id: ((id >> 64) as u64, id as u64),
        epoch,
    }
}

/// A count in a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Count(AtomicUsize);

/// Counts an operation of a worker as under way, as long as it lives.
#[derive(Debug)]
pub(crate) struct UnderWay {
    volume: Arc<ServedVolume>,
    worker: u32,
}

impl UnderWay {
    pub(crate) fn begin(volume: &Arc<ServedVolume>, worker: u32) -> UnderWay {
        let count = &volume.under_way[worker as usize].0;
        count.fetch_add(1, Ordering::Relaxed);
        UnderWay {
            volume: volume.clone(),
            worker,
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let count = &self.volume.under_way[self.worker as usize].0;
        let before = count.fetch_sub(1, Ordering::Release);
        assert!(before > 0, "it was counted");
    }
}

/// The volume that a session asks for. One that goes on had it under whatever name.
pub(crate) fn find_for(
    volumes: &[Arc<ServedVolume>],
    request: &Request,
) -> Result<Arc<ServedVolume>> {
    let claimed = request.resumes().and_then(|claim| {
        let is_its = |of: &&Arc<ServedVolume>| of.opening.volume_id == claim.opening.volume_id;
        volumes.iter().find(is_its)
    });
    match claimed {
        Some(volume) => Ok(volume.clone()),
        None => find(volumes, &request.volume),
    }
}

/// The volume of this name; empty: the only one; [`ANY_VOLUME`]: whichever.
fn find(volumes: &[Arc<ServedVolume>], name: &str) -> Result<Arc<ServedVolume>> {
    let found = match (volumes, name) {
        ([only], "") => Some(only),
        ([first, ..], ANY_VOLUME) => Some(first),
        _ => volumes.iter().find(|volume| volume.name == name),
    };
    found.cloned().ok_or_else(|| {
        let addresses = volumes.iter().map(|of| format!("unix:SOCKET,{}", of.name));
        let addresses = addresses.collect::<Vec<_>>().join(", ");
        let what = match name {
            "" => format!("choose a volume: the server has several, {addresses}"),
            name => format!("find the volume {name}: the server has {addresses}"),
        };
        Error::with(Errno::NODEV, what)
    })
}
