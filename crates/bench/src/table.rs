//! The report for people: one table a block, then what one should know about it.

use std::fmt;

use crate::breakdown::BreakdownBlock;
use crate::compare::Comparison;
use crate::report::{Block, Environment, Report};
use crate::rows::{ADIT, Cell, Row};

const TITLE_WIDTH: usize = 47;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.environment)?;
        for block in &self.blocks {
            writeln!(f)?;
            block.fmt(f)?;
        }
        for note in &self.notes {
            writeln!(f)?;
            write_wrapped(f, note)?;
        }
        Ok(())
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.environment)?;
        for group in &self.groups {
            writeln!(f)?;
            if !group.layers.is_empty() {
                let block = BreakdownBlock {
                    title: group.title.clone(),
                    rows: group.layers.clone(),
                };
                block.fmt(f)?;
                continue;
            }
            let rounds = self.repetitions;
            writeln!(f, "{} (medians of {rounds} rounds)", group.title)?;
            write_rows(f, &group.rows)?;
        }
        for note in &self.notes {
            writeln!(f)?;
            write_wrapped(f, note)?;
        }
        Ok(())
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Adit {} on Linux {}, {} × {}",
            self.adit, self.kernel, self.cores, self.processor
        )?;
        write!(f, "{}", self.place)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (medians of {} rounds)", self.title, self.rounds)?;
        write_rows(f, &self.rows)?;
        for what in &self.omitted {
            writeln!(f, "Left out: {what}")?;
        }
        Ok(())
    }
}

fn write_rows(f: &mut fmt::Formatter<'_>, rows: &[Row]) -> fmt::Result {
    writeln!(
        f,
        "{:TITLE_WIDTH$} {:>7} {:>11} {:>9} {:>9} {:>9} {:>9} {:>8} {:>6}",
        "", "system", "ops/s", "p50", "p99", "p99.9", "× kernel", "× raw", "spread"
    )?;
    rows.iter().try_for_each(|row| write!(f, "{row}"))
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, cell) in self.cells.iter().enumerate() {
            let title = if index == 0 { self.title.as_str() } else { "" };
            write!(f, "{title:TITLE_WIDTH$} ")?;
            write_cell(f, self, cell)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

fn write_cell(f: &mut fmt::Formatter<'_>, row: &Row, cell: &Cell) -> fmt::Result {
    let (to_kernel, to_raw) = match cell.system.as_str() {
        ADIT => (row.to_kernel(), row.to_raw()),
        _ => (None, None),
    };
    write!(
        f,
        "{:>7} {:>11} {:>9} {:>9} {:>9} {:>9} {:>8} {:>5.0}%",
        cell.system,
        count(cell.operations_per_second),
        percentile(cell.p50_us),
        percentile(cell.p99_us),
        percentile(cell.p999_us),
        ratio(to_kernel),
        ratio(to_raw),
        cell.spread * 100.0
    )
}

/// About three significant digits.
pub(crate) fn short(value: f64) -> String {
    let decimals = match value {
        value if value < 0.995 => 3,
        value if value < 9.95 => 2,
        value if value < 99.5 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// A size, rounded.
pub(crate) fn short_bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = UNITS.iter().find(|(shift, _)| bytes >= 1 << shift);
    match unit {
        Some((shift, unit)) => {
            let value = bytes as f64 / (1u64 << shift) as f64;
            let decimals = usize::from(value < 9.95 && value.fract() > 0.05);
            format!("{value:.decimals$} {unit}")
        }
        None => format!("{bytes} B"),
    }
}

/// Two significant digits are what a ratio of measurements deserves.
fn ratio(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(value) if value >= 9.95 => format!("{value:.0}"),
        Some(value) if value >= 0.995 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// A percentile, if enough operations support it.
fn percentile(us: Option<f64>) -> String {
    us.map_or_else(|| "–".to_owned(), duration)
}

/// A whole number with thin groups of three digits.
fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

/// A time with its unit, three significant digits.
fn duration(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 0.9995 => (us * 1000.0, "ns"),
        us if us < 999.5 => (us, "µs"),
        us if us < 999_500.0 => (us / 1000.0, "ms"),
        us => (us / 1_000_000.0, "s"),
    };
    let decimals = match value {
        _ if unit == "ns" => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

pub(crate) fn write_wrapped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    const WIDTH: usize = 100;
    let mut column = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH {
            writeln!(f)?;
            column = 0;
        }
        if column > 0 {
            write!(f, " ")?;
            column += 1;
        }
        write!(f, "{word}")?;
        column += width;
    }
    writeln!(f)
}

#[cfg(test)]
mod tests {
    use super::{count, duration, percentile, ratio};

    #[test]
    fn numbers_are_short_and_have_units() {
        assert_eq!(count(1_234_567.2), "1 234 567");
        assert_eq!(count(12.0), "12");
        assert_eq!(duration(0.1234), "123 ns");
        assert_eq!(duration(1.234), "1.23 µs");
        assert_eq!(duration(93.04), "93.0 µs");
        assert_eq!(duration(1500.0), "1.50 ms");
        assert_eq!(ratio(Some(0.456)), "0.46");
        assert_eq!(ratio(Some(8.04)), "8.0");
        assert_eq!(ratio(None), "");
        assert_eq!(percentile(Some(5.0)), "5.00 µs");
        assert_eq!(percentile(None), "–");
    }
}
