//! The workloads: eight that differ between sessions, and factors that change over time.
//!
//! The paper on uFS balances load under factors that differ between applications, and allocates
//! cores while one factor changes in steps. Its talk names the factors (memory and disk, think
//! time, data skew, number of applications, request size), not the values. The values here are
//! reconstructed: eight sessions whose loads spread over an order of magnitude, on four pollers
//! that are nearly full. A message costs 4 µs instead of about 1, to simulate fewer; all other
//! times are scaled alike.

use crate::machine::Kind;

fn eight(each: impl Fn(u64) -> Kind) -> Vec<Kind> {
    (0..8).map(each).collect()
}

/// From all in memory to all on disk.
pub(crate) fn memory_and_disk() -> Vec<Kind> {
    let misses = [0, 0, 30, 60, 120, 250, 500, 1_000];
    eight(|i| Kind {
        miss_permille: misses[i as usize],
        ..Kind::reads(3, 3_000)
    })
}

/// From none to 160 µs.
pub(crate) fn think_times() -> Vec<Kind> {
    let think_ns = [0, 2_500, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000];
    eight(|i| Kind::reads(3, think_ns[i as usize]))
}

/// Clients by Zipf's law: the hottest session has half of them.
pub(crate) fn request_skew() -> Vec<Kind> {
    let clients = [16, 8, 5, 4, 3, 3, 2, 2];
    eight(|i| Kind::reads(clients[i as usize], 48_000))
}

/// From 1 to 64 µs of copying a message.
pub(crate) fn request_sizes() -> Vec<Kind> {
    let poller_ns = [1_000, 2_000, 4_000, 8_000, 16_000, 24_000, 48_000, 64_000];
    eight(|i| Kind {
        poller_ns: poller_ns[i as usize],
        even: true,
        ..Kind::reads(2, 40_000)
    })
}

/// From reads only to syncs only; the owner is busy but not saturated.
pub(crate) fn reads_and_syncs() -> Vec<Kind> {
    let syncs = [0, 0, 50, 100, 200, 400, 700, 1_000];
    eight(|i| Kind {
        sync_permille: syncs[i as usize],
        owner_ns: 3_000,
        device_ns: 40_000,
        ..Kind::reads(4, 8_000)
    })
}

/// All of these factors at once.
pub(crate) fn all_factors() -> Vec<Kind> {
    let (disk, think, size) = (memory_and_disk(), think_times(), request_sizes());
    let (skew, syncs) = (request_skew(), reads_and_syncs());
    eight(|i| {
        let at = |shift: usize| (i as usize * 3 + shift) % 8;
        Kind {
            clients: skew[at(0)].clients,
            think_ns: 20_000 + think[at(1)].think_ns,
            poller_ns: size[at(2)].poller_ns / 2,
            sync_permille: syncs[at(4)].sync_permille / 4,
            owner_ns: 3_000,
            owners: 1,
            miss_permille: disk[at(6)].miss_permille,
            device_ns: 80_000,
            even: false,
        }
    })
}

/// A factor that changes in steps, from a light load to a heavy one: sessions of each step.
pub(crate) struct Factor {
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Vec<Kind>>,
}

/// Shares of syncs, which saturate one owner.
fn syncs(owners: u32) -> Vec<Vec<Kind>> {
    let six = |sync_permille| {
        let kind = Kind {
            sync_permille,
            owner_ns: 8_000,
            owners,
            device_ns: 20_000,
            ..Kind::reads(4, 10_000)
        };
        vec![kind; 6]
    };
    [0, 100, 400, 1_000].map(six).to_vec()
}

/// The factors of the core-allocation cases, six sessions each, on one to six pollers. The last
/// ones are no factors of uFS: syncs, with one owner and with several.
pub(crate) fn factors() -> Vec<Factor> {
    let six = |kind: Kind| vec![kind; 6];
    let factor = |name, steps| Factor { name, steps };
    vec![
        factor(
            "memory and disk",
            [1_000, 400, 150, 50, 0]
                .map(|miss_permille| {
                    six(Kind {
                        miss_permille,
                        ..Kind::reads(2, 2_000)
                    })
                })
                .to_vec(),
        ),
        factor(
            "think time",
            [160_000, 60_000, 25_000, 8_000, 0]
                .map(|think_ns| six(Kind::reads(2, think_ns)))
                .to_vec(),
        ),
        factor(
            "request skew",
            [
                [2, 2, 2, 2, 2, 2],
                [7, 1, 1, 1, 1, 1],
                [12, 8, 4, 2, 1, 1],
                [12; 6],
            ]
            .map(|clients| clients.map(|clients| Kind::reads(clients, 40_000)).to_vec())
            .to_vec(),
        ),
        factor(
            "request size",
            [2_000, 6_000, 15_000, 40_000, 120_000]
                .map(|poller_ns| {
                    six(Kind {
                        poller_ns,
                        even: true,
                        ..Kind::reads(1, 40_000)
                    })
                })
                .to_vec(),
        ),
        factor(
            "applications",
            (1..=6)
                .map(|count| vec![Kind::reads(4, 8_000); count])
                .collect(),
        ),
        factor("syncs", syncs(1)),
        factor("syncs, three owners", syncs(3)),
        factor("syncs, six owners", syncs(6)),
    ]
}
