//! The memory for files, inodes and pages, read from the curves, in words.

use super::numbers::{short, short_bytes, write_table};
use crate::compare::growth::Curve;

/// A line of the table.
struct Line {
    /// The curve that it is read from.
    id: &'static str,
    title: &'static str,
    show: fn(bytes_each: f64) -> Option<String>,
}

const LINES: &[Line] = &[
    Line {
        id: "grow-open-open",
        title: "an open file",
        show: bytes,
    },
    Line {
        id: "grow-files-stat",
        title: "a file that was made and looked up",
        show: bytes,
    },
    Line {
        id: "grow-files-stat",
        title: "a million of them, at this rate",
        show: million,
    },
    Line {
        id: "grow-names-stat",
        title: "a file in one large directory",
        show: bytes,
    },
    Line {
        id: "grow-cache-read",
        title: "a GiB of cached data, beside the data",
        show: beside_a_gib,
    },
];

fn bytes(each: f64) -> Option<String> {
    Some(format!("{} B", short(each)))
}

fn million(each: f64) -> Option<String> {
    Some(short_bytes((each * 1e6) as u64))
}

/// Of bytes for each byte of data. Where those of the data aren't among them, the page cache wasn't
/// counted.
fn beside_a_gib(each: f64) -> Option<String> {
    const COUNTED: f64 = 0.9;
    let beside = ((each - 1.0).max(0.0) * f64::from(1 << 30)) as u64;
    (each > COUNTED).then(|| short_bytes(beside))
}

/// The table, if any of the curves has such a line.
pub(crate) fn write(text: &mut String, systems: &[&str], curves: &[Curve]) {
    let cell = |line: &Line, system: &str| {
        let mut of_both = curves
            .iter()
            .filter(|curve| curve.id == line.id && curve.system == system);
        (line.show)(of_both.next()?.bytes_each?)
    };
    let lines = LINES.iter().map(|line| {
        let cells = systems.iter().map(|system| cell(line, system));
        (line.title, cells.collect())
    });
    let title = "Memory that is taken by, from the first to the last point of these curves (the kernel's 64 B for each page of memory that \
                 there is, cached or not, are not in it)";
    write_table(text, systems, title, lines);
}

#[cfg(test)]
mod tests {
    use super::{Curve, write};

    fn curve(id: &str, system: &str, bytes_each: Option<f64>) -> Curve {
        Curve {
            id: id.to_owned(),
            system: system.to_owned(),
            us: vec![(100, 1.0), (1000, 1.0)],
            exponent: None,
            bytes_each,
        }
    }

    #[test]
    fn memory_is_told_by_what_takes_it() {
        let curves = [
            curve("grow-files-stat", "adit", Some(1536.0)),
            curve("grow-files-stat", "ext4", Some(1048.576)),
            curve("grow-names-stat", "ext4", None),
            curve("grow-cache-read", "adit", Some(1.0 + 18.0 / 1024.0)),
            // Its page cache wasn't counted.
            curve("grow-cache-read", "ext4", Some(0.01)),
        ];
        let mut text = String::new();
        write(&mut text, &["adit", "ext4"], &curves);
        for line in [
            "| | adit | ext4 |\n|---|---|---|\n",
            "| a file that was made and looked up | 1536 B | 1049 B |\n",
            "| a million of them, at this rate | 1.4 GiB | 1000 MiB |\n",
            "| a GiB of cached data, beside the data | 18 MiB |  |\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("directory"), "{text}");
        let mut nothing = String::new();
        write(&mut nothing, &["adit"], &curves[2..3]);
        assert_eq!(nothing, "");
    }
}
