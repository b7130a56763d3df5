//! Whether more threads want to run than the machine has cores, as the kernel counts them
//! (`/proc/loadavg`, proc(5)).
//!
//! Where they do, a poller that spins in vain takes the core of one of them. Where they don't, a
//! wake-up costs more than spinning does.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Looks that decide, the newest in the lowest bit. A thread of the kernel may run at any one.
const DECIDING: u32 = 8;

/// The last looks of a poller.
#[derive(Debug)]
pub(crate) struct Crowd {
    /// None: the kernel shows none to this process, and there is no crowd.
    loads: Option<File>,
    cores: u32,
    seen: u8,
}

impl Crowd {
    pub(crate) fn new() -> Crowd {
        let cores = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let cores = cores.ok().and_then(|list| count(list.trim()));
        Crowd {
            loads: File::open("/proc/loadavg").ok().filter(|_| cores.is_some()),
            cores: cores.unwrap_or(1),
            seen: 0,
        }
    }

    /// Looks once more, by one system call.
    pub(crate) fn look(&mut self) {
        let Some(loads) = &self.loads else {
            return;
        };
        let mut bytes = [0; 128];
        let len = loads.read_at(&mut bytes, 0).unwrap_or(0);
        let running = std::str::from_utf8(&bytes[..len]).ok().and_then(running);
        let is_crowd = running.is_some_and(|running| running > self.cores);
        self.seen = self.seen << 1 | u8::from(is_crowd);
    }

    /// Was there a crowd at half of the last looks?
    pub(crate) fn is_here(&self) -> bool {
        self.seen.count_ones() >= DECIDING / 2
    }
}

/// Threads that run or want to, in a text like `0.20 0.18 0.12 1/80 11206`.
fn running(loads: &str) -> Option<u32> {
    let (running, _) = loads.split_whitespace().nth(3)?.split_once('/')?;
    running.parse().ok()
}

/// Cores in a list like `0-3,8`.
fn count(list: &str) -> Option<u32> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_loads_are_read_and_nonsense_is_not() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-1"), Some(2));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        assert_eq!(running("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        for nonsense in ["", "a", "3-1", "1-", "0-4294967295"] {
            assert_eq!(count(nonsense), None, "{nonsense}");
        }
        for nonsense in ["", "0.20 0.18 0.12", "0.20 0.18 0.12 380 1", "1 2 3 x/80"] {
            assert_eq!(running(nonsense), None, "{nonsense}");
        }
    }

    /// One look doesn't decide; this machine shows its loads.
    #[test]
    fn half_of_the_looks_decide() {
        let mut crowd = Crowd::new();
        assert!(crowd.loads.is_some());
        assert!(!crowd.is_here());
        crowd.cores = 0; // this thread runs
        for look in 1..=DECIDING {
            crowd.look();
            assert_eq!(crowd.is_here(), look >= DECIDING / 2, "{look}");
        }
        crowd.cores = u32::MAX;
        for look in 1..=DECIDING {
            crowd.look();
            assert_eq!(crowd.is_here(), look <= DECIDING / 2, "{look}");
        }
    }
}
