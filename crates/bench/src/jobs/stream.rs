//! Requests past the cache, one after the other or many at the same time: throughput and latency by
//! size, by depth of the queue, by number of files. The tables of Intel's thin file system
//! (Lisowiec, IXPUG 2020) are of this kind.
//!
//! The files are written from end to end before, on each system, so nothing is left to allocate.

use std::io;

use serde::{Deserialize, Serialize};

use super::stage::{Measured, Stage, readable_bytes};
use crate::measurement::data::AlignedBuffer;
use crate::measurement::resources::observed;
use crate::measurement::row::RowKey;
use crate::measurement::sample::{Limit, Timing};
use crate::target::{Access, Flow, Target, TargetFile};
use adit_base::random::Prng;

/// The requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Overwrite, not read.
    pub write: bool,
    /// At random places, not one after the other.
    pub random: bool,
    /// Bytes of one request.
    pub request_bytes: u32,
    /// Requests in flight; 1: the calls that wait for the device.
    pub depth: u32,
    /// Files that are used in turn.
    pub files: u32,
    /// The curve of which the row is a point.
    pub over: Axis,
}

/// The quantity that changes along a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Axis {
    /// `request_bytes`.
    Size,
    /// `depth`.
    Depth,
    /// `files`.
    Files,
}

impl Stream {
    fn key(self) -> RowKey {
        let action = match (self.random, self.write) {
            (false, true) => "sequential direct write",
            (false, false) => "sequential direct read",
            (true, true) => "random direct write",
            (true, false) => "random direct read",
        };
        let size = readable_bytes(u64::from(self.request_bytes));
        let (id, at) = match (self.over, self.write, self.depth) {
            (Axis::Size, true, 1) => ("size-write-sync", self.request_bytes),
            (Axis::Size, true, _) => ("size-write-async", self.request_bytes),
            (Axis::Size, false, _) => ("size-read-sync", self.request_bytes),
            (Axis::Depth, true, _) => ("depth-write", self.depth),
            (Axis::Depth, false, _) => ("depth-read", self.depth),
            (Axis::Files, _, 1) => ("files-write-sync", self.files),
            (Axis::Files, _, _) => ("files-write-async", self.files),
        };
        let mut title = format!("{action} {size}");
        if self.over == Axis::Depth || self.depth > 1 && id != "size-read-sync" {
            title += &format!(", {} in flight", self.depth);
        }
        match (self.over, self.files) {
            (Axis::Files, 1) => title += ", 1 file",
            (Axis::Files, files) => title += &format!(", {files} files in turn"),
            _ => {}
        }
        RowKey::new(id, title, u64::from(self.request_bytes)).at(u64::from(at))
    }
}

/// Measures one point.
pub(super) fn run<T: Target>(stage: &Stage<'_, T>, stream: Stream) -> io::Result<Vec<Measured>> {
    let request_bytes = u64::from(stream.request_bytes);
    let len_bytes = (stage.shape.direct_bytes / u64::from(stream.files)).max(request_bytes)
        / request_bytes
        * request_bytes;
    let files: io::Result<Vec<T::File>> = (0..stream.files)
        .map(|file| {
            stage.written_file(
                &format!("stream-{}-{file}", stream.files),
                len_bytes,
                Access::Direct,
            )
        })
        .collect();
    let files = files?;
    let requests = len_bytes / request_bytes;
    let mut prng = Prng::new(u64::from(stage.round) + 1);
    // The turn's file and place: all files one request further, then the next.
    let mut place = |turn: u64| {
        let file = (turn % files.len() as u64) as usize;
        let request = match stream.random {
            true => prng.below(requests),
            false => turn / files.len() as u64 % requests,
        };
        (file, request * request_bytes)
    };
    let sample = observed(|| {
        if stream.depth > 1 {
            let flow = Flow {
                write: stream.write,
                request_bytes: stream.request_bytes as usize,
                depth: stream.depth as usize,
                limit: Limit::time(stage.shape.slice),
                noise: &stage.noise,
            };
            return stage.target.flow(&files, &flow, &mut place);
        }
        let mut buffer = AlignedBuffer::new(stream.request_bytes as usize);
        stage.measure(Limit::time(stage.shape.slice), Timing::Each, |turn| {
            let (file, offset_bytes) = place(turn);
            match stream.write {
                true => files[file].write_at(
                    stage.noise.at(turn, stream.request_bytes as usize),
                    offset_bytes,
                ),
                false => files[file].read_at(&mut buffer, offset_bytes),
            }
        })
    })?;
    Ok(vec![(stream.key(), sample)])
}

#[cfg(test)]
mod tests {
    use super::{Axis, Stream};

    #[test]
    fn a_title_says_how_many_files_take_turns() {
        let title = |files, depth| {
            let stream = Stream {
                write: true,
                random: false,
                request_bytes: 4096,
                depth,
                files,
                over: Axis::Files,
            };
            stream.key().title
        };
        assert_eq!(title(1, 1), "sequential direct write 4 KiB, 1 file");
        assert_eq!(
            title(16, 128),
            "sequential direct write 4 KiB, 128 in flight, 16 files in turn"
        );
    }
}
