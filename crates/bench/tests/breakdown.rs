//! Where the time goes, of every operation, tiny: that it all adds up, and that layers are where
//! they must be; not how much.

use adit_bench::{Breakdown, BreakdownRow, Options, run_breakdown};

const ROWS: [&str; 11] = [
    "cached-read",
    "cached-write",
    "direct-read",
    "append-sync",
    "overwrite-sync",
    "new-file-sync",
    "create",
    "stat",
    "open",
    "rename",
    "unlink",
];

fn run(threads: u32) -> Breakdown {
    // On the file system of the sources: /tmp may be a tmpfs.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let options = Options {
        against: Some(folder.path().to_owned()),
        threads,
        quick: true,
        ..Options::default()
    };
    let breakdown = run_breakdown(&options, &mut |_, _| ()).unwrap();
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    breakdown
}

/// Share and entries of a layer.
fn of(row: &BreakdownRow, layer: &str) -> (f64, f64) {
    let found = row.layers.iter().find(|share| share.layer == layer);
    let found = found.unwrap_or_else(|| panic!("{} has no {layer}", row.id));
    (found.share, found.entries)
}

fn assert_sound(row: &BreakdownRow) {
    let what = format!("{} with {} threads", row.id, row.threads);
    assert!(row.operations > 0, "{what}");
    assert!(row.timed_us > 0.0 && row.untimed_us > 0.0, "{what}");
    let shares: f64 = row.layers.iter().map(|layer| layer.share).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{what}: {shares}");
    let us: f64 = row.layers.iter().map(|layer| layer.us).sum();
    assert!((us / row.timed_us - 1.0).abs() < 1e-9, "{what}: {us}");
    assert!(of(row, "call").0 > 0.0, "{what}");
}

#[test]
fn all_operations_add_up_and_only_those_that_need_the_device_go_there() {
    let breakdown = run(2);
    assert_eq!(breakdown.blocks.len(), 2);
    for block in &breakdown.blocks {
        let alone: Vec<_> = block.rows.iter().filter(|row| row.threads == 1).collect();
        let ids: Vec<_> = alone.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(ids, ROWS, "{}", block.title);
        for row in &alone {
            assert_sound(row);
        }
        let row = |id| *alone.iter().find(|row| row.id == id).unwrap();

        // A cached read is the calling thread's alone: no worker, no device.
        let read = row("cached-read");
        assert_eq!(of(read, "device"), (0.0, 0.0));
        assert!(of(read, "worker").1 < 0.01);
        assert!((of(read, "copy").1 - 1.0).abs() < 0.01);

        // A commit is one transaction and one device write.
        let append = row("append-sync");
        assert!(of(append, "device").0 > 0.0);
        for layer in ["copy", "map", "checksum", "transaction", "journal"] {
            assert!(of(append, layer).0 > 0.0, "{layer}");
        }
        for id in ["direct-read", "overwrite-sync", "new-file-sync"] {
            assert!(of(row(id), "device").0 > 0.0, "{id}");
        }
        for id in ["create", "stat", "open", "rename", "unlink"] {
            assert!(of(row(id), "names").0 > 0.0, "{id}");
        }

        let together: Vec<_> = block.rows.iter().filter(|row| row.threads == 2).collect();
        assert_eq!(together.len(), 1);
        assert_eq!(together[0].id, "append-sync");
        assert_sound(together[0]);
    }
    let text = breakdown.to_string();
    assert!(text.contains("append + fdatasync × 2"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&breakdown.to_json().unwrap()).unwrap();
    let first = &json["blocks"][0]["rows"][0];
    assert_eq!(first["id"], "cached-read");
    assert_eq!(first["layers"][0]["layer"], "call");
}
