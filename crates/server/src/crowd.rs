//! Whether more threads want to run than the machine has cores, as the kernel counts them
//! (`/proc/loadavg`, `/proc/uptime`, proc(5)), and whose they are.
//!
//! ```text
//! room ── more threads than cores, at half of the last looks ──► crowd of others
//!                                                                  │  ▲
//!             nearly all processor time was idle, or had been      ▼  │  or it wasn't
//!             the server's and its sessions' processes'          crowd of ours
//! ```
//! In a crowd of others a thread that yields its core loses it for a time slice, and a poller that
//! spins in vain takes the core of another program. In a crowd of ours a session that yields leaves
//! its core to another one, or to the poller. In room, a wake-up costs more than spinning does.

use adit_base::clock::processor_ns;
use adit_base::fork::Registered;
use adit_base::numbers;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Looks that decide, the newest in the lowest bit. A thread of the kernel may run at any one.
const DECIDING: u32 = 8;
/// In a crowd, a poller reads processor times so often. The kernel adds those of a running thread
/// at its ticks, of 1 to 10 ms.
const WEIGHED_NS: u64 = 64_000_000;
/// The part of one core that others may have in a crowd of ours.
const OTHERS: u64 = 4;
/// A session that had messages, and has none for so long, may wait for the core that its poller
/// keeps.
const SILENT_NS: u64 = 3_000_000;
/// Of so many processes, with its own, the poller reads only its own time: a crowd of others.
const PROCESSES_MAX: usize = 256;

/// The last looks of a poller.
#[derive(Debug)]
pub(crate) struct Crowd {
    /// None: the kernel shows none to this process, and there is no crowd.
    loads: Option<Registered<File>>,
    /// Idle times. None: it shows none, and a crowd is of others.
    idle: Option<Registered<File>>,
    cores: u32,
    /// Threads that ran or wanted to, at the last look.
    running: u32,
    seen: u8,
    /// When processor times were looked at, that of no process, and those of each.
    weighed_ns: Option<u64>,
    idle_ns: u64,
    times: Vec<(u32, u64)>,
    is_ours: bool,
}

impl Crowd {
    pub(crate) fn new() -> Crowd {
        let cores = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let cores = cores.ok().and_then(|list| count(list.trim()));
        let open = |path| numbers::registered(|| File::open(path)).ok();
        Crowd {
            loads: open("/proc/loadavg").filter(|_| cores.is_some()),
            idle: open("/proc/uptime"),
            cores: cores.unwrap_or(1),
            running: 0,
            seen: 0,
            weighed_ns: None,
            idle_ns: 0,
            times: Vec::new(),
            is_ours: false,
        }
    }

    /// Looks once more, by a system call. `ours`: the processes of the sessions, each once.
    pub(crate) fn look(&mut self, now_ns: u64, ours: impl FnOnce() -> Vec<u32>) {
        let Some(loads) = &self.loads else {
            return;
        };
        self.running = read(loads, running).unwrap_or(0);
        self.seen = self.seen << 1 | u8::from(self.any_waits());
        let is_due = |weighed_ns| now_ns.saturating_sub(weighed_ns) >= WEIGHED_NS;
        if !self.is_here() {
            self.see_anew();
        } else if self.weighed_ns.is_none_or(is_due) {
            match self.idle.as_ref().and_then(|idle| read(idle, idle_ns)) {
                Some(idle_ns) => self.weigh(now_ns, idle_ns, &ours()),
                None => self.see_anew(),
            }
        }
    }

    /// The earlier looks count no more.
    pub(crate) fn forget(&mut self) {
        self.seen = 0;
        self.see_anew();
    }

    /// The earlier processor times count no more.
    fn see_anew(&mut self) {
        self.is_ours = false;
        self.weighed_ns = None;
    }

    fn weigh(&mut self, now_ns: u64, idle_ns: u64, processes: &[u32]) {
        let processes = if processes.len() < PROCESSES_MAX {
            processes
        } else {
            &[]
        };
        // A session may be of this process, too.
        let own = std::process::id();
        let others = processes.iter().filter(|process| **process != own);
        let timed = |process: &u32| Some((*process, processor_ns(*process)?));
        let times = others.chain([&own]).filter_map(timed).collect();
        let before = std::mem::replace(&mut self.times, times);
        let since = |(process, ns): &(u32, u64)| {
            let mut before = before.iter();
            let (_, before_ns) = before.find(|(other, _)| other == process)?;
            Some(ns.saturating_sub(*before_ns))
        };
        let ours_ns: u64 = self.times.iter().filter_map(since).sum();
        let known_ns = ours_ns.saturating_add(idle_ns.saturating_sub(self.idle_ns));
        self.idle_ns = idle_ns;
        self.is_ours = self.weighed_ns.replace(now_ns).is_some_and(|weighed_ns| {
            let past_ns = now_ns.saturating_sub(weighed_ns);
            let all_ns = past_ns.saturating_mul(self.cores.into());
            known_ns.saturating_add(past_ns / OTHERS) >= all_ns
        });
    }

    /// Did a thread wait for a core at the last look?
    pub(crate) fn any_waits(&self) -> bool {
        self.running > self.cores
    }

    /// Is there a crowd, of others?
    pub(crate) fn is_of_others(&self) -> bool {
        self.is_here() && !self.is_ours
    }

    /// Is there a crowd, of the server and its sessions?
    pub(crate) fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// The most pollers that leave cores to others in a crowd: half of the cores. None: there is no
    /// crowd. (How many threads wait does not tell: a session that spins for a reply wants to run.)
    pub(crate) fn pollers_max(&self) -> Option<u32> {
        self.is_here().then(|| (self.cores / 2).max(1))
    }

    /// Was there a crowd at half of the last looks?
    fn is_here(&self) -> bool {
        self.seen.count_ones() >= DECIDING / 2
    }
}

/// Whether a session has messages, from look to look of its poller.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// Messages since the last look.
    begun: u32,
    /// The last look that found some. None: none since it ended.
    seen_ns: Option<u64>,
}

impl Demand {
    /// Some messages were begun.
    pub(crate) fn note(&mut self, messages: u32) {
        self.begun = self.begun.saturating_add(messages);
    }

    /// Messages that were begun since the last look.
    pub(crate) fn since_last_look(&self) -> u32 {
        self.begun
    }

    /// A look. Had it messages before, and has it had none for [`SILENT_NS`]? Says so once.
    pub(crate) fn has_ended(&mut self, now_ns: u64) -> bool {
        if std::mem::take(&mut self.begun) > 0 {
            self.seen_ns = Some(now_ns);
        }
        let is_past = |seen_ns: &mut u64| now_ns.saturating_sub(*seen_ns) >= SILENT_NS;
        self.seen_ns.take_if(is_past).is_some()
    }

    /// A silence of now is not one of a session that waits: the poller slept.
    pub(crate) fn forget(&mut self) {
        self.seen_ns = None;
    }

    /// Has it not ended?
    pub(crate) fn is_there(&self) -> bool {
        self.seen_ns.is_some()
    }
}

fn read<T>(file: &File, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let mut bytes = [0; 128];
    let len = file.read_at(&mut bytes, 0).ok()?;
    parse(std::str::from_utf8(&bytes[..len]).ok()?)
}

/// The idle time of all cores, in a text like `35.51 65.07`, in seconds.
fn idle_ns(uptime: &str) -> Option<u64> {
    let (seconds, hundredths) = uptime.split_whitespace().nth(1)?.split_once('.')?;
    let hundredths: u64 = hundredths.get(..2)?.parse().ok()?;
    let seconds: u64 = seconds.parse().ok()?;
    let hundredths = seconds.checked_mul(100)?.checked_add(hundredths)?;
    hundredths.checked_mul(10_000_000)
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
        assert_eq!(idle_ns("35.51 65.07\n"), Some(65_070_000_000));
        for nonsense in [
            "",
            "35.51",
            "35.51 65",
            "35.51 65.7",
            "1.00 x.00",
            "1.00 -1.00",
        ] {
            assert_eq!(idle_ns(nonsense), None, "{nonsense}");
        }
    }

    /// One look doesn't decide; this machine shows its loads.
    #[test]
    fn half_of_the_looks_decide() {
        let mut crowd = Crowd::new();
        assert!(crowd.loads.is_some() && crowd.idle.is_some());
        assert!(!crowd.is_of_others());
        crowd.cores = 0; // this thread runs
        for look in 1..=DECIDING {
            // No time passes.
            crowd.look(1, Vec::new);
            assert_eq!(crowd.is_here(), look >= DECIDING / 2, "{look}");
        }
        crowd.cores = u32::MAX;
        for look in 1..=DECIDING {
            crowd.look(1, Vec::new);
            assert_eq!(crowd.is_of_others(), look <= DECIDING / 2, "{look}");
        }
    }

    #[test]
    fn pollers_leave_half_of_the_cores_in_a_crowd() {
        for (cores, pollers) in [(1, 1), (2, 1), (3, 1), (4, 2), (16, 8)] {
            let seen = u8::MAX;
            let crowd = Crowd {
                cores,
                seen,
                ..Crowd::new()
            };
            assert_eq!(crowd.pollers_max(), Some(pollers));
        }
        assert_eq!(Crowd::new().pollers_max(), None);
    }

    #[test]
    fn demand_ends_once_after_a_silence() {
        let mut demand = Demand::default();
        assert!(!demand.has_ended(SILENT_NS) && !demand.is_there());
        for now_ns in [SILENT_NS, 3 * SILENT_NS] {
            demand.note(1);
            assert!(!demand.has_ended(now_ns) && demand.is_there());
            assert!(!demand.has_ended(now_ns + SILENT_NS - 1) && demand.is_there());
        }
        assert!(demand.has_ended(4 * SILENT_NS) && !demand.is_there());
        assert!(!demand.has_ended(9 * SILENT_NS));
        demand.note(1);
        assert!(!demand.has_ended(10 * SILENT_NS) && demand.is_there());
        demand.forget();
        assert!(!demand.has_ended(20 * SILENT_NS));
    }

    #[test]
    fn a_crowd_is_ours_while_others_have_little_of_the_time() {
        const CORES: u64 = 2;
        let mut crowd = Crowd {
            cores: CORES as u32,
            seen: u8::MAX,
            ..Crowd::new()
        };
        let own = std::process::id();
        let had_ns = || processor_ns(own).expect("this process has had some");
        assert_eq!(processor_ns(u32::MAX), None);
        // The first time there is nothing to compare with.
        crowd.weigh(1_000, 0, &[own]);
        assert!(!crowd.is_ours() && crowd.is_of_others());
        // As if the process had had some of a time in which the cores were idle for some.
        let past_ns = had_ns() / 4;
        let mut weigh = |ours_ns: u64, idle_ns: u64, processes: &[u32]| loop {
            let begin_ns = had_ns();
            crowd.times = vec![(own, begin_ns.saturating_sub(ours_ns))];
            let now_ns = crowd.weighed_ns.expect("it was") + past_ns;
            crowd.weigh(now_ns, crowd.idle_ns + idle_ns, processes);
            // Again, if other tests of this process had much while this thread waited.
            if had_ns() - begin_ns < past_ns / 8 {
                return (crowd.is_ours(), crowd.is_of_others());
            }
        };
        let (ours, of_others) = ((true, false), (false, true));
        let all_ns = CORES * past_ns;
        assert_eq!(weigh(all_ns, 0, &[]), ours);
        assert_eq!(weigh(all_ns - past_ns / OTHERS, 0, &[]), ours);
        assert_eq!(weigh(past_ns, past_ns, &[]), ours);
        // Also where a session is of this process.
        assert_eq!(weigh(past_ns / 2, past_ns / 2, &[own]), of_others);
        assert_eq!(weigh(0, past_ns, &[]), of_others);
        crowd.forget();
        assert!(!crowd.is_ours() && !crowd.is_of_others());
    }
}
