//! Numbers as people read them, lines that fit, and the heads of tables.

use std::fmt::{self, Write};

use crate::measurement::medians::Cell;

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

/// Half of the range of a cell's rounds; nothing where there is only one.
pub(super) fn half_range(cell: &Cell) -> String {
    match cell.rounds.len() {
        0 | 1 => String::new(),
        _ => format!(" ±{:.0} %", cell.spread * 50.0),
    }
}

/// `1 minute`, `3 minutes`.
pub(super) fn plural(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
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
pub(super) fn ratio(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(value) if value >= 9.95 => format!("{value:.0}"),
        Some(value) if value >= 0.995 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// A percentile, if enough operations support it.
pub(super) fn percentile(us: Option<f64>) -> String {
    us.map_or_else(|| "–".to_owned(), duration)
}

/// A whole number with thin groups of three digits.
pub(super) fn count(value: f64) -> String {
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
pub(super) fn duration(us: f64) -> String {
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

pub(super) fn write_wrapped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
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

/// A markdown table's first line, and the rule below it.
pub(super) fn write_header(text: &mut String, header: &str) {
    let columns = header.matches('|').count() - 1;
    let _ = writeln!(text, "{header}\n|{}", "---|".repeat(columns));
}

/// A table of rows, each with its title and a text for each system, which some may lack; rows
/// without any text are left out, and so is a table without rows.
pub(super) fn write_table<'a>(
    text: &mut String,
    systems: &[&str],
    title: &str,
    rows: impl Iterator<Item = (&'a str, Vec<Option<String>>)>,
) {
    let mut rows = rows
        .filter(|(_, cells)| cells.iter().any(Option::is_some))
        .peekable();
    if rows.peek().is_none() {
        return;
    }
    let _ = writeln!(text, "{title}:\n");
    write_header(text, &format!("| | {} |", systems.join(" | ")));
    for (row, cells) in rows {
        let cells: Vec<String> = cells.into_iter().map(Option::unwrap_or_default).collect();
        let _ = writeln!(text, "| {row} | {} |", cells.join(" | "));
    }
    text.push('\n');
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
