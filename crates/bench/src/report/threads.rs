//! A group of curves over threads: a table a number, with a column for each count of threads.

use std::fmt::Write;

use super::numbers::{half_range, short, write_header};
use crate::compare::comparison::GroupResult;
use crate::measurement::medians::{Cell, Row};

/// Its tables.
pub(crate) fn write(text: &mut String, systems: &[&str], group: &GroupResult) {
    let mut table = |title: &str, show: &dyn Fn(&Cell) -> Option<String>| {
        write_table(text, systems, group, title, show);
    };
    table(
        "Time per operation of all threads together, µs (± half of the range)",
        &|cell| Some(short(cell.us()) + &half_range(cell)),
    );
    table(
        "Processor time an operation, µs, the kernel's threads included",
        &|cell| cell.cpu_us.map(short),
    );
    table(
        "Share of the time in which the lock of Adit's worker is held, %",
        &|cell| Some(format!("{:.0}", cell.lock_share? * 100.0)),
    );
    table(
        "Of the client that did least, % of what each did on average",
        &|cell| Some(format!("{:.0}", cell.least_share? * 100.0)),
    );
    table("Single operations, p99.9, µs", &|cell| {
        cell.p999_us.map(short)
    });
}

/// A line for each operation and system; lines without any text are left out.
fn write_table(
    text: &mut String,
    systems: &[&str],
    group: &GroupResult,
    title: &str,
    show: &dyn Fn(&Cell) -> Option<String>,
) {
    let mut ids: Vec<&str> = Vec::new();
    let mut counts: Vec<u32> = Vec::new();
    for row in &group.rows {
        if !ids.contains(&row.id.as_str()) {
            ids.push(&row.id);
        }
        counts.push(row.threads);
    }
    counts.sort_unstable();
    counts.dedup();
    let mut lines = String::new();
    for id in ids {
        let rows: Vec<&Row> = group.rows.iter().filter(|row| row.id == id).collect();
        let mut operation = rows[0].title_of_one_thread();
        for system in systems {
            let shown = counts.iter().map(|&threads| {
                let row = rows.iter().find(|row| row.threads == threads)?;
                row.cell(system).and_then(show)
            });
            let shown: Vec<Option<String>> = shown.collect();
            if shown.iter().all(Option::is_none) {
                continue;
            }
            let shown: Vec<String> = shown.into_iter().map(Option::unwrap_or_default).collect();
            let _ = writeln!(lines, "| {operation} | {system} | {} |", shown.join(" | "));
            operation = "";
        }
    }
    if lines.is_empty() {
        return;
    }
    let counts: Vec<String> = counts.iter().map(u32::to_string).collect();
    let _ = writeln!(text, "{title}:\n");
    write_header(text, &format!("| threads | | {} |", counts.join(" | ")));
    let _ = writeln!(text, "{lines}");
}
