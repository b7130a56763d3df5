//! The report for people: one table a block, then what one should know about it.

use std::fmt;

use crate::report::{ADIT, Block, Cell, Report, Row};

const TITLE_WIDTH: usize = 47;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = &self.environment;
        writeln!(
            f,
            "Adit {} on Linux {}, {} × {}",
            at.adit, at.kernel, at.cores, at.processor
        )?;
        writeln!(f, "{}", at.place)?;
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

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (medians of {} rounds)", self.title, self.rounds)?;
        let header = |f: &mut fmt::Formatter<'_>| {
            writeln!(
                f,
                "{:TITLE_WIDTH$} {:>7} {:>11} {:>9} {:>9} {:>9} {:>9} {:>8} {:>6}",
                "", "system", "ops/s", "p50", "p99", "p99.9", "× kernel", "× raw", "spread"
            )
        };
        header(f)?;
        for row in &self.rows {
            row.fmt(f)?;
        }
        for what in &self.omitted {
            writeln!(f, "Left out: {what}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, cell) in self.cells.iter().enumerate() {
            let title = if index == 0 { self.title.as_str() } else { "" };
            write!(f, "{title:TITLE_WIDTH$} ")?;
            cell.fmt(f)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to_kernel = match self.system.as_str() {
            ADIT => ratio(self.to_kernel),
            _ => String::new(),
        };
        write!(
            f,
            "{:>7} {:>11} {:>9} {:>9} {:>9} {:>9} {:>8} {:>5.0}%",
            self.system,
            count(self.operations_per_second),
            percentile(self.p50_us, self.timed / 2),
            percentile(self.p99_us, self.timed / 100),
            percentile(self.p999_us, self.timed / 1000),
            to_kernel,
            ratio(self.to_raw),
            self.spread * 100.0
        )
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

/// A percentile, or nothing when fewer than one operation lies beyond it.
fn percentile(us: f64, beyond: u64) -> String {
    match beyond {
        0 => "–".to_owned(),
        _ => duration(us),
    }
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

fn write_wrapped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
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
        assert_eq!(percentile(5.0, 1), "5.00 µs");
        assert_eq!(percentile(5.0, 0), "–");
    }
}
