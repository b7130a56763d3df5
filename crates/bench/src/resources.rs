//! What a measurement cost besides time: bytes read from devices, resident memory. Best effort: a
//! kernel that doesn't tell leaves the columns empty.

use std::io;

use crate::sample::Sample;

/// Bytes that this process has caused to be read from block devices so far.
fn device_read_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "))?;
    line.trim().parse().ok()
}

/// Memory of this process that is in RAM. The kernel's page cache is not in it.
pub(crate) fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// Notes in the sample what was read from devices while it was taken.
pub(crate) fn counting_device_reads(
    measure: impl FnOnce() -> io::Result<Sample>,
) -> io::Result<Sample> {
    let before = device_read_bytes();
    let mut sample = measure()?;
    sample.device_read_bytes = match (before, device_read_bytes()) {
        (Some(before), Some(after)) => Some(after.saturating_sub(before)),
        _ => None,
    };
    Ok(sample)
}
