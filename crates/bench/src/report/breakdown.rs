//! The breakdown for people: a table of times and shares, and a bar for each operation.

use std::fmt;

use adit_base::breakdown::Layer;

use super::numbers::write_wrapped;
use crate::bench::breakdown::{Breakdown, BreakdownBlock};
use crate::measurement::layers::BreakdownRow;

/// Everything fits into so many columns.
const WIDTH: usize = 100;
const TITLE_WIDTH: usize = WIDTH - SUM_WIDTH - CELL_WIDTH * Layer::ALL.len();
const SUM_WIDTH: usize = 6;
const CELL_WIDTH: usize = 5;

/// The name of a layer in tables: a word that fits, and a letter for bars.
fn short(layer: Layer) -> (&'static str, char) {
    match layer {
        Layer::Call => ("call", 'C'),
        Layer::Worker => ("work", 'W'),
        Layer::Operation => ("oper", 'O'),
        Layer::Names => ("name", 'N'),
        Layer::Cache => ("page", 'P'),
        Layer::Map => ("map", 'M'),
        Layer::Allocate => ("aloc", 'A'),
        Layer::Copy => ("copy", 'Y'),
        Layer::Checksum => ("crc", 'S'),
        Layer::Transaction => ("txn", 'T'),
        Layer::Journal => ("jrnl", 'J'),
        Layer::Device => ("dev", 'D'),
        Layer::Wait => ("wait", 'Z'),
        Layer::Background => ("bgnd", 'B'),
    }
}

impl fmt::Display for Breakdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.environment)?;
        for block in &self.blocks {
            writeln!(f)?;
            block.fmt(f)?;
        }
        writeln!(f)?;
        writeln!(f, "Layers:")?;
        for layer in Layer::ALL {
            let (head, letter) = short(layer);
            writeln!(f, "  {letter} {head:4} {}", layer.meaning())?;
        }
        for note in &self.notes {
            writeln!(f)?;
            write_wrapped(f, note)?;
        }
        Ok(())
    }
}

impl fmt::Display for BreakdownBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        write!(
            f,
            "{:TITLE_WIDTH$}{:>SUM_WIDTH$}",
            "µs, % of the sum", "sum"
        )?;
        for layer in Layer::ALL {
            write!(f, "{:>CELL_WIDTH$}", short(layer).0)?;
        }
        writeln!(f)?;
        for row in &self.rows {
            row.fmt(f)?;
        }
        writeln!(f)?;
        for row in &self.rows {
            let bar = row.bar(WIDTH - TITLE_WIDTH);
            writeln!(f, "{:TITLE_WIDTH$}{bar}", row.title)?;
        }
        Ok(())
    }
}

impl fmt::Display for BreakdownRow {
    /// Two lines: times, then shares.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = microseconds(self.timed_us);
        write!(f, "{:TITLE_WIDTH$}{sum:>SUM_WIDTH$}", self.title)?;
        for layer in &self.layers {
            write!(f, "{:>CELL_WIDTH$}", microseconds(layer.us))?;
        }
        writeln!(f)?;
        let untimed = format!(
            "  off {}: {:+.0} %",
            microseconds(self.untimed_us),
            (self.timed_us / self.untimed_us.max(1e-9) - 1.0) * 100.0
        );
        write!(f, "{untimed:TITLE_WIDTH$}{:>SUM_WIDTH$}", "100%")?;
        for layer in &self.layers {
            write!(f, "{:>CELL_WIDTH$}", percent(layer.share))?;
        }
        writeln!(f)
    }
}

impl BreakdownRow {
    /// A bar of this many cells: each layer's part begins with its letter.
    fn bar(&self, width: usize) -> String {
        let shares: Vec<f64> = self.layers.iter().map(|layer| layer.share).collect();
        let mut bar = String::new();
        for (layer, cells) in Layer::ALL.into_iter().zip(divide(&shares, width)) {
            if cells > 0 {
                bar.push(short(layer).1);
                bar.extend(std::iter::repeat_n('█', cells - 1));
            }
        }
        bar
    }
}

/// Divides `width` by shares that add up to 1: whole parts first, then one more for the largest
/// remainders.
fn divide(shares: &[f64], width: usize) -> Vec<usize> {
    let exact = |index: usize| shares[index] * width as f64;
    let mut cells: Vec<usize> = (0..shares.len())
        .map(|index| exact(index) as usize)
        .collect();
    let mut by_remainder: Vec<usize> = (0..shares.len()).collect();
    by_remainder.sort_by(|a, b| exact(*b).fract().total_cmp(&exact(*a).fract()));
    let left = width.saturating_sub(cells.iter().sum());
    for index in by_remainder.into_iter().take(left) {
        cells[index] += 1;
    }
    cells
}

/// At most four characters below 10 ms; nothing where there is nothing to see.
fn microseconds(us: f64) -> String {
    match us {
        us if us < 0.005 => "·".to_owned(),
        us if us < 9.995 => format!("{us:.2}"),
        us if us < 99.95 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent < 0.5 => "·".to_owned(),
        percent => format!("{percent:.0}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::layers::LayerShare;

    fn row(shares: &[(Layer, f64)]) -> BreakdownRow {
        let of = |layer: Layer| shares.iter().find(|(of, _)| *of == layer);
        let share = |layer: Layer| {
            let share = of(layer).map_or(0.0, |(_, share)| *share);
            LayerShare {
                layer: layer.name().to_owned(),
                us: share * 12.0,
                share,
                entries: 1.0,
            }
        };
        BreakdownRow {
            id: "append-sync".to_owned(),
            title: "append + fdatasync × 2".to_owned(),
            threads: 2,
            operations: 10,
            untimed_us: 10.0,
            timed_us: 12.0,
            layers: Layer::ALL.map(share).to_vec(),
        }
    }

    #[test]
    fn a_bar_has_a_letter_for_each_part_and_the_length_that_was_asked_for() {
        let row = row(&[
            (Layer::Call, 0.1),
            (Layer::Device, 0.85),
            (Layer::Copy, 0.05),
        ]);
        assert_eq!(row.bar(20), "C█YD████████████████");
        assert_eq!(row.bar(7), "CD█████");
    }

    #[test]
    fn cells_go_where_the_remainders_are_largest() {
        assert_eq!(divide(&[0.5, 0.25, 0.25], 4), [2, 1, 1]);
        assert_eq!(divide(&[0.34, 0.33, 0.33], 10), [4, 3, 3]);
        assert_eq!(divide(&[1.0, 0.0], 5), [5, 0]);
        assert_eq!(divide(&[0.0, 0.0], 0), [0, 0]);
    }

    #[test]
    fn the_table_fits_into_its_width() {
        let same = 1.0 / Layer::ALL.len() as f64;
        let all: Vec<(Layer, f64)> = Layer::ALL.map(|layer| (layer, same)).to_vec();
        let block = BreakdownBlock {
            title: "a place".to_owned(),
            rows: vec![row(&all), row(&[(Layer::Device, 1.0)])],
        };
        let text = block.to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        assert!(text.contains("off 10.0: +20 %"), "{text}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(microseconds(0.004), "·");
        assert_eq!(microseconds(1.234), "1.23");
        assert_eq!(microseconds(99.96), "100");
        assert_eq!(percent(0.123), "12%");
        assert_eq!(percent(0.001), "·");
    }

    #[test]
    fn letters_and_words_tell_layers_apart() {
        for layer in Layer::ALL {
            let same = |other: &Layer| {
                short(*other).1 == short(layer).1 || short(*other).0 == short(layer).0
            };
            assert_eq!(Layer::ALL.iter().filter(|other| same(other)).count(), 1);
            assert!(short(layer).0.len() < CELL_WIDTH);
        }
    }
}
