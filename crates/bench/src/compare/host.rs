//! A virtual machine's memory: its host may take away what is free, and gives it back when it is used, for some µs a page. Who comes first
//! then pays for all, and who asks for large pages, which are the ones that lie free, pays most.

use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const HUGE_PAGE_BYTES: usize = 2 << 20;
/// What most jobs use. It takes a host half a second, and after some seconds it takes away again what isn't used.
const CALLED_BACK_BYTES: u64 = 256 << 20;

/// Uses some free memory (half of it at most) and gives it back, so that whoever is measured next finds it there.
pub(super) fn call_memory_back() {
    let free = std::fs::read_to_string("/proc/meminfo").map_or(0, |text| free_bytes(&text));
    let len_bytes = CALLED_BACK_BYTES.min(free / 2) as usize / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if len_bytes == 0 {
        return;
    }
    // SAFETY: a mapping of our own at an address of the kernel's choice, to which nothing refers when it goes.
    unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let Ok(start) = mmap_anonymous(ptr::null_mut(), len_bytes, protection, flags) else {
            return;
        };
        // Whether they work or not: it is about speed.
        let _ = madvise(start, len_bytes, Advice::LinuxHugepage);
        let _ = madvise(start, len_bytes, Advice::LinuxPopulateWrite);
        let _ = munmap(start, len_bytes);
    }
}

/// What `/proc/meminfo` says is free; 0 when it doesn't.
fn free_bytes(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("MemFree:"));
    let kibibytes = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok());
    kibibytes.unwrap_or(0u64).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn free_memory_is_read() {
        let text =
            "MemTotal:       24682036 kB\nMemFree:        19497472 kB\nMemAvailable:   1 kB\n";
        assert_eq!(super::free_bytes(text), 19_497_472 << 10);
        assert_eq!(super::free_bytes("MemFree: much"), 0);
        super::call_memory_back();
    }
}
