//! The comparison as markdown: one table a group.

use std::fmt::Write;

use super::numbers::{half_range, plural, short, short_bytes, write_header, write_table};
use super::{layers, memory, threads};
use crate::compare::comparison::{Comparison, GroupResult};
use crate::measurement::medians::{Cell, Row};

/// Everything.
pub(crate) fn markdown(comparison: &Comparison) -> String {
    let mut text = String::new();
    let at = &comparison.environment;
    let suite = format!("{:?}", comparison.suite).to_lowercase();
    let measured = match comparison.repetitions {
        1 => "measured once".to_owned(),
        repetitions => format!("medians of {repetitions} repetitions, systems in turn"),
    };
    let minutes = plural((comparison.seconds / 60.0).round() as u64, "minute");
    let _ = writeln!(
        text,
        "{}. Linux {}, {} × {}. Adit {}. Suite {suite}, {measured}, {minutes}.\n",
        at.place,
        at.kernel,
        at.cores,
        at.processor,
        at.version(),
    );
    let _ = writeln!(text, "On {}, {}, by `{}`.\n", at.host, at.date, at.command);
    for note in &comparison.notes {
        let _ = writeln!(text, "{note}\n");
    }
    for group in &comparison.groups {
        write_group(&mut text, comparison, group);
    }
    write_lost(&mut text, comparison);
    text.push_str("## Commands\n\n```sh\n");
    for system in &comparison.systems {
        let _ = writeln!(text, "# {} {}", system.name, system.version);
        for command in &system.commands {
            let _ = writeln!(text, "{command}");
        }
    }
    text.push_str("```\n");
    text
}

fn write_group(text: &mut String, comparison: &Comparison, group: &GroupResult) {
    let _ = writeln!(text, "## {}\n", group.title);
    let cache = short_bytes(group.cache_bytes);
    let _ = write!(text, "{} Adit's cache: {cache}", group.terms);
    if let Some(bytes) = group.kernel_memory_bytes {
        let kernel = short_bytes(bytes);
        let _ = write!(
            text,
            "; the kernel's page cache with all of the process: {kernel}"
        );
    }
    text.push_str(".\n\n");
    layers::write(text, &group.layers);
    if group.rows.is_empty() {
        return;
    }
    let systems = comparison.systems_in(group);
    if group.is_by_threads() {
        return threads::write(text, &systems, group);
    }
    let is_other = |name: &&str| group.rows.iter().any(|row| row.adit_to.contains_key(*name));
    let others: Vec<&str> = systems.iter().copied().filter(is_other).collect();

    let range = match comparison.repetitions {
        1 => "",
        _ => " (± half of the range)",
    };
    let _ = writeln!(
        text,
        "Time per operation, µs{range}, and how many times as many operations Adit does:\n"
    );
    let mut header = String::from("| |");
    for system in &systems {
        let _ = write!(header, " {system} |");
    }
    for other in &others {
        let _ = write!(header, " × {other} |");
    }
    write_header(text, &header);
    for row in &group.rows {
        let _ = write!(text, "| {} |", title(row));
        for system in &systems {
            match row.cell(system) {
                Some(cell) => {
                    let _ = write!(text, " {}{} |", short(cell.us()), half_range(cell));
                }
                None => text.push_str(" |"),
            }
        }
        for other in &others {
            match row.adit_to.get(*other) {
                Some(&ratio) => {
                    let _ = write!(text, " {} |", short(ratio));
                }
                None => text.push_str(" |"),
            }
        }
        text.push('\n');
    }
    text.push('\n');
    let percentiles = |cell: &Cell| {
        let show = |us: Option<f64>| us.map_or_else(|| "–".to_owned(), short);
        cell.p50_us.map(|_| {
            [cell.p50_us, cell.p99_us, cell.p999_us]
                .map(show)
                .join(" / ")
        })
    };
    write_simple(
        text,
        &systems,
        group,
        "Single operations, µs: p50 / p99 / p99.9",
        &percentiles,
    );
    let costs = |cell: &Cell| {
        let cpu = cell.cpu_us.map(short);
        let memory = cell.memory_bytes.map(short_bytes);
        let read = cell
            .device_bytes_per_byte
            .map(|ratio| format!("{ratio:.2}"));
        let all = [cpu, memory, read];
        all.iter().any(Option::is_some).then(|| {
            all.map(|one| one.unwrap_or_else(|| "–".to_owned()))
                .join(" / ")
        })
    };
    let title = "Processor time an operation, µs, the kernel's threads included / memory afterwards, page cache included / bytes read from \
                 the device for each byte asked for";
    write_simple(text, &systems, group, title, &costs);
    write_curves(text, group);
    memory::write(text, &systems, &group.curves);
}

/// A table of one text per system; rows without any text are left out.
fn write_simple(
    text: &mut String,
    systems: &[&str],
    group: &GroupResult,
    title_of_table: &str,
    show: &dyn Fn(&Cell) -> Option<String>,
) {
    let rows = group.rows.iter().map(|row| {
        let cells = systems.iter().map(|system| row.cell(system).and_then(show));
        (title(row), cells.collect())
    });
    write_table(text, systems, title_of_table, rows);
}

fn write_curves(text: &mut String, group: &GroupResult) {
    if group.curves.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "Exponents: an operation takes about nᵉ, where n is what grows (0: the same however large it is). Bytes: memory for each more of \
         it.\n"
    );
    write_header(text, "| curve | system | from | to | e | bytes |");
    for curve in &group.curves {
        let (Some(first), Some(last)) = (curve.us.first(), curve.us.last()) else {
            continue;
        };
        let bytes = curve.bytes_each.map(short).unwrap_or_default();
        let exponent = curve.exponent.map(|exponent| format!("{exponent:.2}"));
        let exponent = exponent.unwrap_or_default();
        let _ = writeln!(
            text,
            "| {} | {} | {}: {} µs | {}: {} µs | {exponent} | {bytes} |",
            curve.id,
            curve.system,
            first.0,
            short(first.1),
            last.0,
            short(last.1)
        );
    }
    text.push('\n');
}

fn write_lost(text: &mut String, comparison: &Comparison) {
    text.push_str("## Where Adit loses\n\n");
    let lost = comparison.lost();
    if lost.is_empty() {
        text.push_str("In no row has the fastest of the kernel's file systems more than 1/0.95 of Adit's rate.\n\n");
        return;
    }
    text.push_str("Rows in which Adit has less than 0.95 of the rate of the fastest of the kernel's file systems:\n\n");
    for (group, row, ratio) in lost {
        let _ = writeln!(text, "- {} ({}): {}", title(row), group.id, short(ratio));
    }
    text.push('\n');
}

fn title(row: &Row) -> &str {
    row.title.trim_start()
}
