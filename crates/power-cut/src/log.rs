//! An append-only log in segments: a commit appends a record and calls `fdatasync`. A full segment
//! is followed by a new file; older segments than the last two are removed.
//!
//! Verification: the segments hold records 1 to N, for some N, less the removed segments. On a
//! volume only a prefix of the next record may follow. (ext4 may persist the size of an unsynced
//! append without its bytes.)

use crate::content::{mixed, stamped};
use crate::place::{File, Open, Place};
use crate::writer::{Opened, Outcome, Writer};

const TAG: u64 = 1;
/// Records of a segment.
const RECORDS: u64 = 200;

/// Most are short; some are several pages.
fn record(number: u64) -> Vec<u8> {
    let random = mixed(number);
    let len = match random % 16 {
        0 => 8 + (random >> 8) % 20_000,
        _ => 8 + (random >> 8) % 300,
    };
    stamped(TAG, number, len as usize)
}

fn name(segment: u64) -> String {
    format!("log.{segment}")
}

/// Records 1 to [`RECORDS`] are those of segment 0.
fn segment_of(number: u64) -> u64 {
    (number - 1) / RECORDS
}

struct Log<'a> {
    place: &'a Place,
    /// The last segment and its length, if there is one.
    end: Option<(File, u64)>,
    /// The first segment that is there.
    oldest: u64,
}

/// The last whole record of a segment (or the record before the segment), and the length in bytes
/// of its whole records.
fn whole_records(segment: u64, content: &[u8], strict: bool) -> Outcome<(u64, usize)> {
    let (mut last, mut len) = (segment * RECORDS, 0);
    while segment_of(last + 1) == segment {
        let expected = record(last + 1);
        let rest = &content[len..];
        if !rest.starts_with(&expected) {
            if strict && !expected.starts_with(rest) {
                return Err(format!(
                    "{} has something else behind record {last}",
                    name(segment)
                ));
            }
            return Ok((last, len));
        }
        last += 1;
        len += expected.len();
    }
    match content.len() - len {
        0 => Ok((last, len)),
        more => Err(format!("{} has {more} bytes behind its end", name(segment))),
    }
}

/// Verifies the log, and truncates a partial record.
pub(crate) fn open(place: &Place) -> Opened<'_> {
    let mut segments: Vec<u64> = Vec::new();
    for name in place.names()? {
        if let Some(segment) = name.strip_prefix("log.") {
            segments.push(
                segment
                    .parse()
                    .map_err(|error| format!("{name}: {error}"))?,
            );
        }
    }
    segments.sort_unstable();
    if let Some(hole) = segments.windows(2).find(|two| two[0] + 1 != two[1]) {
        return Err(format!("no segment between {} and {}", hole[0], hole[1]));
    }
    let mut log = Log {
        place,
        end: None,
        oldest: segments.first().copied().unwrap_or(0),
    };
    let mut found = 0;
    for &segment in &segments {
        let content = place.read(&name(segment))?;
        let (last, len) = whole_records(segment, &content, place.is_strict())?;
        let is_last = Some(&segment) == segments.last();
        if !is_last && segment_of(last + 1) == segment {
            return Err(format!(
                "{} ends at record {last}, and others follow",
                name(segment)
            ));
        }
        found = last;
        if is_last {
            let file = place.file(&name(segment), Open::Existing)?;
            file.set_len(len as u64)?;
            log.end = Some((file, len as u64));
        }
    }
    Ok((Box::new(log), found))
}

impl Writer for Log<'_> {
    fn commit(&mut self, number: u64) -> Outcome {
        let segment = segment_of(number);
        // A segment whose first record was lost is there already, and empty.
        if segment * RECORDS + 1 == number && !self.place.exists(&name(segment))? {
            self.end = Some((self.place.file(&name(segment), Open::New)?, 0));
        }
        let Some((file, len)) = &mut self.end else {
            return Err("no segment".to_owned());
        };
        let bytes = record(number);
        file.write_at(&bytes, *len)?;
        file.sync_data()?;
        *len += bytes.len() as u64;
        while self.oldest + 1 < segment {
            self.place.remove(&name(self.oldest))?;
            self.oldest += 1;
        }
        Ok(())
    }
}
