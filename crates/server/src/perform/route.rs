//! The worker of a call about the volume.

use adit_base::{Errno, Error};
use adit_fs::{BlobId, Credentials, Workers};
use adit_wire::calls::{Place, VolumeCall};

/// The worker that performs a call about the volume, and the way from there to the places that the
/// call names: [from their directories](Workers::near). It is the worker of the last place's
/// directory, where a name is made; or of the blob.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route {
    worker: u32,
    /// The directory, and the bytes of the path that follow from there. None: the place stays.
    near: [Option<(BlobId, usize)>; 2],
    /// A place that stays begins at an inode that the caller has named.
    names_inode: bool,
}

impl Route {
    /// That of a call on behalf of a user.
    #[inline]
    pub fn of<'a>(workers: &Workers, who: &'a Credentials, call: &impl VolumeCall<'a>) -> Route {
        let mut route = Route::default();
        if workers.count() == 1 {
            return route;
        }
        for (place, near) in call.places().into_iter().zip(&mut route.near) {
            let Some(place) = place else {
                continue;
            };
            let (worker, at) = workers.near(place.at(who));
            route.worker = worker;
            let is_other = Place::from(at) != place;
            *near = at
                .start()
                .zip(at.path())
                .filter(|_| is_other)
                .map(|(start, path)| (start, path.len()));
            route.names_inode |= near.is_none() && place.start.is_some();
        }
        if let Some(id) = call.blob() {
            // Its receipt, too, is of the worker that decides.
            route.worker = workers.partition_of(id);
        }
        route
    }

    /// The number of the worker's partition.
    #[inline]
    pub fn worker(&self) -> u32 {
        self.worker
    }

    /// The call as the worker performs it.
    #[inline]
    pub fn applied<'a, C: VolumeCall<'a>>(&self, mut call: C) -> C {
        for (place, near) in call.places_mut().into_iter().zip(self.near) {
            if let (Some(place), Some((start, len))) = (place, near)
                && let Some(path) = place.path
            {
                // The rest of a path is its end.
                (place.start, place.path) = (Some(start), Some(&path[path.len() - len..]));
            }
        }
        call
    }

    /// The error of the call. A directory at which the route let the call begin may be gone; the
    /// path then leads nowhere, and the caller has named no inode that could be stale.
    #[inline]
    pub fn error(&self, error: Error) -> Error {
        match error.errno() {
            Errno::STALE if self.near != [None, None] && !self.names_inode => Errno::NOENT.into(),
            _ => error,
        }
    }
}
