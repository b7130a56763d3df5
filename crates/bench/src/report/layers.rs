//! Where the time of Adit's operations goes, as a table.

use std::fmt::Write;

use adit_base::breakdown::Layer;

use super::numbers::{short, write_header};
use crate::measurement::layers::BreakdownRow;

/// Layers with less than this part of every operation are left out.
const SHARE_MIN: f64 = 0.005;

/// The part of the row's time that the layer has.
pub(crate) fn share(row: &BreakdownRow, layer: Layer) -> f64 {
    let found = row.layers.iter().find(|share| share.layer == layer.name());
    found.map_or(0.0, |found| found.share)
}

/// Layers that are worth a column.
pub(crate) fn shown(rows: &[BreakdownRow]) -> Vec<Layer> {
    let any = |layer: &Layer| rows.iter().any(|row| share(row, *layer) >= SHARE_MIN);
    Layer::ALL.into_iter().filter(any).collect()
}

/// The table, and what its columns mean.
pub(crate) fn write(text: &mut String, rows: &[BreakdownRow]) {
    if rows.is_empty() {
        return;
    }
    let layers = shown(rows);
    let _ = writeln!(
        text,
        "µs of a thread for one operation, with nobody looking and while the layers are looked at, and the part of the latter that each \
         layer has, in %:\n"
    );
    let mut header = String::from("| | µs | looked at |");
    for layer in &layers {
        let _ = write!(header, " {} |", layer.name());
    }
    write_header(text, &header);
    for row in rows {
        let (untimed, timed) = (short(row.untimed_us), short(row.timed_us));
        let _ = write!(text, "| {} | {untimed} | {timed} |", row.title);
        for &layer in &layers {
            match share(row, layer) {
                share if share < SHARE_MIN => text.push_str(" |"),
                share => {
                    let _ = write!(text, " {:.0} |", share * 100.0);
                }
            }
        }
        text.push('\n');
    }
    text.push('\n');
    for layer in &layers {
        let _ = writeln!(text, "- {}: {}", layer.name(), layer.meaning());
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::write;
    use crate::measurement::layers::samples::rows;

    #[test]
    fn the_table_has_the_layers_that_take_time() {
        let mut text = String::new();
        write(&mut text, &rows());
        for part in [
            "| | µs | looked at | call | names | device |\n",
            "| append | 10.0 | 12.0 | 20 | | 80 |\n",
            "| stat | 10.0 | 12.0 | | 100 | |\n",
            "- names: paths and directories\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("map"), "{text}");
    }
}
