//! The report for people: one table a block, then the notes.

use std::fmt;

use super::numbers::{count, percentile, ratio, write_wrapped};
use crate::bench::breakdown::BreakdownBlock;
use crate::bench::report::{Block, Report};
use crate::compare::comparison::Comparison;
use crate::measurement::environment::Environment;
use crate::measurement::medians::{ADIT, Cell, Row};

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
            writeln!(
                f,
                "{}{}",
                group.title,
                medians_of(self.repetitions as usize)
            )?;
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
            self.version(),
            self.kernel,
            self.cores,
            self.processor
        )?;
        writeln!(f, "On {}, {}, by {}", self.host, self.date, self.command)?;
        write!(f, "{}", self.place)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}{}", self.title, medians_of(self.rounds))?;
        write_rows(f, &self.rows)?;
        for what in &self.omitted {
            writeln!(f, "Left out: {what}")?;
        }
        Ok(())
    }
}

fn medians_of(rounds: usize) -> String {
    match rounds {
        1 => String::new(),
        _ => format!(" (medians of {rounds} rounds)"),
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
        "{:>7} {:>11} {:>9} {:>9} {:>9} {:>9} {:>8} {:>6}",
        cell.system,
        count(cell.operations_per_second),
        percentile(cell.p50_us),
        percentile(cell.p99_us),
        percentile(cell.p999_us),
        ratio(to_kernel),
        ratio(to_raw),
        match cell.rounds.len() {
            0 | 1 => "–".to_owned(),
            _ => format!("{:.0}%", cell.spread * 100.0),
        }
    )
}
