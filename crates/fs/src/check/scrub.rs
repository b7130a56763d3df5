//! Reading all data, and naming the files that lost some.

use crate::inode::resolve;
use crate::names;
use crate::types::{FileKind, PATH_BYTES_MAX};
use crate::volume::Fs;
use adit_base::Result;
use adit_store::{BlobId, ScrubPlace, ScrubReport};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

impl Fs {
    /// Runs [`adit_store::Store::scrub`], and finds a path for each damaged file, by slot address.
    /// A file without one is unlinked, its path is longer than callers' are, or a directory on it
    /// can't be read.
    pub async fn scrub(
        &self,
        from: ScrubPlace,
        bytes_max: u64,
        only_reads: bool,
    ) -> Result<(ScrubReport, HashMap<u64, PathBuf>)> {
        let mut report = ScrubReport {
            next: Some(from),
            ..ScrubReport::default()
        };
        // A step ends where another worker has the next blob.
        while let Some(place) = report.next {
            let left = bytes_max.saturating_sub(report.bytes);
            let (slot, generation) = (place.slot, 0);
            let step = self.within(BlobId { slot, generation }, move |fs| {
                Box::pin(fs.store.scrub(place, left, only_reads))
            });
            report.add(step.await?);
            if report.bytes >= bytes_max {
                break;
            }
        }
        let wanted = report.damages.iter().map(|damage| damage.blob.slot);
        let paths = self.paths_of(wanted.collect()).await;
        Ok((report, paths))
    }

    /// A path of each of these inodes, as far as directories can be read and callers can follow
    /// paths: those that are longer would need memory without bound. Other operations run
    /// meanwhile.
    async fn paths_of(&self, mut wanted: HashSet<u64>) -> HashMap<u64, PathBuf> {
        let mut paths = HashMap::new();
        let mut directories = vec![(self.base.root, b"/".to_vec())];
        while let Some((id, path)) = directories.pop() {
            let mut from = Some(0);
            while let Some(key) = from {
                if wanted.is_empty() {
                    return paths;
                }
                let mut entries = Vec::new();
                names::read_ahead(&self.store, id, key).await;
                let listed = self
                    .store
                    .view(|view| {
                        entries.clear();
                        let slot = resolve::directory(view, id)?;
                        names::read_leaf(view, slot, id.slot, key, |_, name, target| {
                            entries.push((name.to_vec(), target));
                            true
                        })
                    })
                    .await;
                let Ok(next) = listed else { break };
                from = next;
                for (name, target) in entries {
                    let mut child = [&path[..], &name].concat();
                    if child.len() > PATH_BYTES_MAX {
                        continue;
                    }
                    if target.kind == FileKind::Directory as u8 {
                        child.push(b'/');
                        directories.push((target.id(), child));
                    } else if wanted.remove(&target.slot) {
                        paths.insert(target.slot, OsString::from_vec(child).into());
                    }
                }
                self.store.reactor().yield_now().await;
            }
        }
        paths
    }
}
