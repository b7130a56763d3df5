//! The costs of a measurement besides time: bytes read from devices, processor time, memory. Best
//! effort: a kernel without these counters leaves the columns empty.

use std::io;

use super::sample::Sample;

/// Names a file with the memory in use, in bytes, like `memory.current` of the control group that a
/// comparison put this process in: then the page cache counts, too.
const MEMORY_FILE: &str = "ADIT_BENCH_MEMORY";

/// Bytes that this process has caused to be read from block devices so far.
fn device_read_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "))?;
    line.trim().parse().ok()
}

/// How long the machine's processors have worked so far, the kernel's threads included, in ticks.
fn busy_so_far() -> Option<u64> {
    busy_ticks(&std::fs::read_to_string("/proc/stat").ok()?)
}

fn seconds(ticks: u64) -> Option<f64> {
    // SAFETY: plain call.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    (per_second > 0).then(|| ticks as f64 / per_second as f64)
}

/// Of /proc/stat: user, nice, system, irq and softirq; neither idle and iowait, nor what the
/// hypervisor took (steal).
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let words = line.split_whitespace().map(|word| word.parse::<u64>().ok());
    let ticks: Vec<u64> = words.collect::<Option<_>>()?;
    match ticks[..] {
        [user, nice, system, _idle, _iowait, irq, softirq, ..] => {
            Some(user + nice + system + irq + softirq)
        }
        _ => None,
    }
}

/// Memory of this process that is in RAM. The kernel's page cache is not in it.
pub(crate) fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// The number in the file that the environment names; without one, this process's memory.
fn memory_bytes() -> Option<u64> {
    match std::env::var_os(MEMORY_FILE) {
        Some(path) => std::fs::read_to_string(path).ok()?.trim().parse().ok(),
        None => resident_bytes(),
    }
}

/// Takes a sample, and adds its costs besides time: the bytes that this process read from devices
/// meanwhile, the time of the machine's processors, and the memory in use afterwards (by the file
/// that the environment variable `ADIT_BENCH_MEMORY` names, else the process's own).
pub fn observed(measure: impl FnOnce() -> io::Result<Sample>) -> io::Result<Sample> {
    let (read_before, busy_before) = (device_read_bytes(), busy_so_far());
    let mut sample = measure()?;
    let (read, busy) = (device_read_bytes(), busy_so_far());
    sample.device_read_bytes = read
        .zip(read_before)
        .map(|(after, before)| after.saturating_sub(before));
    sample.cpu_seconds = busy
        .zip(busy_before)
        .and_then(|(after, before)| seconds(after.saturating_sub(before)));
    sample.memory_bytes = memory_bytes();
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::{busy_ticks, observed};
    use crate::measurement::sample::Sample;
    use std::time::Duration;

    #[test]
    fn waiting_and_what_the_hypervisor_took_is_no_work() {
        let stat = "cpu  100 20 3 50000 6000 7 8 90000 11 12\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(138));
        assert_eq!(busy_ticks("cpu  1 2 3\n"), None);
        assert_eq!(busy_ticks("intr 1\n"), None);
    }

    #[test]
    fn a_sample_says_what_it_cost() {
        let sample = observed(|| Ok(Sample::untimed(1, Duration::from_secs(1)))).unwrap();
        assert!(sample.memory_bytes.is_some_and(|bytes| bytes > 0));
        assert!(sample.cpu_seconds.is_some_and(|seconds| seconds >= 0.0));
        assert_eq!(sample.operations, 1);
    }
}
