//! Pipes and sockets of a volume, as the host has them: for programs under `adit run`.

use crate::file::File;
use crate::opened::{Backed, EmbeddedFile};
use crate::volume::Volume;
use adit_base::fork::Registered;
use adit_base::{Errno, Result};
use adit_fs::{FileKind, OpenFlags, Stat};
use adit_server::{Asker, Nodes, id_of};
use adit_wire::handshake::{NodeUse, PATH_MAX};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// This process, which may do everything with a volume that it has itself.
const OWN: Asker = Asker {
    uid: 0,
    privileged: true,
};

impl File {
    /// The host's pipe or socket behind this one, which was opened with `NODE`: a descriptor that is
    /// open for its path alone. `ECONNREFUSED`: no socket is bound to it.
    pub fn host_node(&self) -> Result<Registered<OwnedFd>> {
        match self.usable()? {
            Backed::Embedded(EmbeddedFile { open, .. }) => {
                let (nodes, node) = self.own_nodes()?;
                let is_open = open.flags().contains(OpenFlags::NODE);
                match open.kind() {
                    FileKind::Fifo if is_open => nodes.pipe(open.blob_id(), &node, OWN),
                    FileKind::Socket if is_open => nodes.socket(open.blob_id(), &node),
                    _ => Err(Errno::BADF.into()),
                }
            }
            Backed::Connected(of) => of.connection().node(of.file.number, NodeUse::Open),
        }
    }

    /// Binds a socket to this node, which the caller has just made. `path`: what the socket says
    /// from then on. With a server there is a new, bound socket, which takes the other one's place.
    pub fn bind_host(
        &self,
        socket: BorrowedFd<'_>,
        kind: u32,
        path: &[u8],
    ) -> Result<Option<Registered<OwnedFd>>> {
        match self.usable()? {
            Backed::Embedded(EmbeddedFile { open, .. }) => {
                let (nodes, node) = self.own_nodes()?;
                nodes.bind(open.blob_id(), &node, OWN, socket, path)?;
                Ok(None)
            }
            Backed::Connected(of) => {
                let mut bytes = [0; PATH_MAX];
                let room = bytes.get_mut(..path.len()).ok_or(Errno::INVAL)?;
                room.copy_from_slice(path);
                let want = NodeUse::Bind {
                    kind,
                    path: bytes,
                    path_len: path.len() as u8,
                };
                of.connection().node(of.file.number, want).map(Some)
            }
        }
    }

    /// Those of a volume that this process has itself, and what this one is.
    fn own_nodes(&self) -> Result<(Arc<Nodes>, Stat)> {
        let id = self.run(|fs, _| async move { Ok(fs.store().volume_id()) })?;
        let nodes = Nodes::of_process(halves(id));
        let ended = nodes.clone();
        let node = self.run(|fs, open| async move {
            fs.tell_ended_nodes(move |id| ended.forget(id));
            fs.fstat(open).await
        })?;
        match node.links {
            0 => Err(Errno::NOENT.into()),
            _ => Ok((nodes, node)),
        }
    }
}

impl Volume {
    /// The path to which the socket with this address of the host's was bound. None: it is no
    /// socket of this volume, or nobody knows.
    pub fn socket_path(&self, address: &[u8]) -> Option<Vec<u8>> {
        let Some(connection) = self.opened.connection() else {
            let id = (self.opened).run(|fs| async move { Ok(fs.store().volume_id()) });
            let nodes = Nodes::of_process(halves(id.ok()?));
            return nodes.bound_as(nodes.id_of(address)?).ok();
        };
        self.opened.inherit().ok()?;
        let id = id_of(address, connection.volume_id())?;
        connection.bound_as(id).ok()
    }
}

fn halves(id: [u8; 16]) -> (u64, u64) {
    let id = u128::from_be_bytes(id);
    ((id >> 64) as u64, id as u64)
}
