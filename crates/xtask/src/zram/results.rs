//! Gathering the repetitions' numbers, and the tables made of them.
//!
//! A cell is the median of the repetitions; behind it ± half of (highest - lowest) / median.
//! Times are the time of the whole block by its operations, so that with two threads it is half of
//! what each of them sees.

use std::fmt::Write;

use serde_json::Value;

use super::runs::System;
use crate::process::Outcome;

/// Numbers by row and system.
pub(crate) struct Results {
    systems: Vec<System>,
    rows: Vec<Row>,
    /// Where the next new row belongs: behind the one that was filled last.
    next_row: usize,
}

struct Row {
    title: String,
    cells: Vec<Cell>,
}

/// One row on one system, over the repetitions.
#[derive(Clone, Default)]
struct Cell {
    us: Vec<f64>,
    percentiles_us: Vec<[f64; 3]>,
    device_bytes_per_byte: Vec<f64>,
    resident_bytes: Vec<f64>,
}

impl Results {
    pub(crate) fn new(systems: &[System]) -> Results {
        Results {
            systems: systems.to_vec(),
            rows: Vec::new(),
            next_row: 0,
        }
    }

    fn cell(&mut self, title: &str, system: System) -> &mut Cell {
        let count = self.systems.len();
        let column = self.systems.iter().position(|&other| other == system);
        let column = column.expect("only the systems that were chosen are measured");
        let row = match self.rows.iter().position(|row| row.title == title) {
            Some(row) => row,
            None => {
                let cells = vec![Cell::default(); count];
                let title = title.to_owned();
                self.rows.insert(self.next_row, Row { title, cells });
                self.next_row
            }
        };
        self.next_row = row + 1;
        &mut self.rows[row].cells[column]
    }

    /// Takes the JSON that `adit-bench-one` printed.
    pub(crate) fn add_report(&mut self, system: System, json: &str) -> Outcome {
        let report: Value = serde_json::from_str(json)
            .map_err(|error| format!("adit-bench-one printed no report: {error}"))?;
        let rows = report["blocks"][0]["rows"].as_array();
        self.next_row = 0;
        for row in rows.ok_or("a report without rows")? {
            let title = row["title"].as_str().ok_or("a row without a title")?;
            let measured = &row["cells"][0];
            let number = |key: &str| measured[key].as_f64();
            let rate = number("operations_per_second").ok_or("a row without a rate")?;
            let cell = self.cell(title.trim_end(), system);
            cell.us.push(1e6 / rate);
            let percentiles = ["p50_us", "p99_us", "p999_us"].map(|key| number(key).unwrap_or(0.0));
            cell.percentiles_us.push(percentiles);
            cell.device_bytes_per_byte
                .extend(number("device_bytes_per_byte"));
            cell.resident_bytes.extend(number("resident_bytes"));
        }
        Ok(())
    }

    /// Takes the lines `name : 1.234 micros/op ...` of db_bench.
    pub(crate) fn add_db_bench(&mut self, system: System, output: &str) -> Outcome {
        let mut found = false;
        self.next_row = self.rows.len();
        for (name, us) in output.lines().filter_map(db_bench_line) {
            self.cell(&format!("RocksDB {name}"), system).us.push(us);
            found = true;
        }
        if found {
            Ok(())
        } else {
            Err(format!("db_bench reported nothing:\n{output}"))
        }
    }

    /// All tables, in markdown.
    pub(crate) fn tables(&self) -> String {
        let mut text = String::new();
        self.write_times(&mut text);
        self.write_percentiles(&mut text);
        self.write_reads(&mut text);
        text
    }

    fn write_times(&self, text: &mut String) {
        let repetitions = self
            .rows
            .iter()
            .flat_map(|row| row.cells.iter().map(|c| c.us.len()));
        let _ = writeln!(
            text,
            "Time per operation, µs (medians of {}, ± half of the range), and how many times as many \
             operations Adit does:\n",
            repetitions.max().unwrap_or(0)
        );
        let others: Vec<usize> = (0..self.systems.len())
            .filter(|&index| self.systems[index] != System::Adit)
            .collect();
        let adit = self
            .systems
            .iter()
            .position(|&system| system == System::Adit);
        let others = if adit.is_some() { others } else { Vec::new() };
        let mut header = String::from("| |");
        for system in &self.systems {
            let _ = write!(header, " {} |", system.name());
        }
        for &other in &others {
            let _ = write!(header, " × {} |", self.systems[other].name());
        }
        write_header(text, &header);
        for row in &self.rows {
            let _ = write!(text, "| {} |", row.title.trim_start());
            for cell in &row.cells {
                match cell.us.is_empty() {
                    true => text.push_str(" |"),
                    false => {
                        let (us, spread) = median_and_spread(&cell.us);
                        let _ = write!(text, " {} ±{:.0} % |", short(us), spread * 50.0);
                    }
                }
            }
            for &other in &others {
                let other = median_and_spread(&row.cells[other].us).0;
                let own = adit.map_or(0.0, |index| median_and_spread(&row.cells[index].us).0);
                match other > 0.0 && own > 0.0 {
                    true => {
                        let _ = write!(text, " {} |", short(other / own));
                    }
                    false => text.push_str(" |"),
                }
            }
            text.push('\n');
        }
    }

    fn write_percentiles(&self, text: &mut String) {
        text.push_str("\nPercentiles of single operations, µs: p50 / p99 / p99.9\n\n");
        self.write_simple(text, |cell| {
            let columns = [0, 1, 2].map(|index| {
                let values: Vec<f64> = cell.percentiles_us.iter().map(|p| p[index]).collect();
                short(median_and_spread(&values).0)
            });
            (!cell.percentiles_us.is_empty()).then(|| columns.join(" / "))
        });
    }

    fn write_reads(&self, text: &mut String) {
        text.push_str(
            "\nBytes read from the device for each byte asked for, and resident memory of the \
             process (without the kernel's page cache):\n\n",
        );
        self.write_simple(text, |cell| {
            let (read, _) = median_and_spread(&cell.device_bytes_per_byte);
            let (resident, _) = median_and_spread(&cell.resident_bytes);
            (!cell.device_bytes_per_byte.is_empty())
                .then(|| format!("{read:.2}, {:.0} MiB", resident / f64::from(1 << 20)))
        });
    }

    /// A table of one text per system; rows without any text are left out.
    fn write_simple(&self, text: &mut String, show: impl Fn(&Cell) -> Option<String>) {
        let names: Vec<&str> = self.systems.iter().map(|system| system.name()).collect();
        write_header(text, &format!("| | {} |", names.join(" | ")));
        for row in &self.rows {
            let shown: Vec<Option<String>> = row.cells.iter().map(&show).collect();
            if shown.iter().any(Option::is_some) {
                let shown: Vec<String> = shown.into_iter().map(Option::unwrap_or_default).collect();
                let _ = writeln!(
                    text,
                    "| {} | {} |",
                    row.title.trim_start(),
                    shown.join(" | ")
                );
            }
        }
    }
}

fn write_header(text: &mut String, header: &str) {
    let columns = header.matches('|').count() - 1;
    let _ = writeln!(text, "{header}\n|{}", "---|".repeat(columns));
}

fn db_bench_line(line: &str) -> Option<(&str, f64)> {
    let (name, rest) = line.split_once(':')?;
    let (us, _) = rest.split_once(" micros/op")?;
    Some((name.trim(), us.trim().parse().ok()?))
}

fn median_and_spread(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(low), Some(high)) = (sorted.first(), sorted.last()) else {
        return (0.0, 0.0);
    };
    let middle = sorted.len() / 2;
    let median = match sorted.len() % 2 {
        1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    };
    (median, (high - low) / median.max(1e-9))
}

/// About three significant digits.
fn short(value: f64) -> String {
    let decimals = match value {
        value if value < 0.995 => 3,
        value if value < 9.95 => 2,
        value if value < 99.5 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::{Results, System, db_bench_line};

    // What is in parentheses is the range of its keys.
    const LINE: &str = "fillsync     :      80.125 micros/op 12480 ops/sec 8.013 seconds \
                        100000 operations;    1.4 MB/s (100 ops)";

    #[test]
    fn db_bench_lines_are_read_and_others_are_not() {
        assert_eq!(db_bench_line(LINE), Some(("fillsync", 80.125)));
        assert_eq!(db_bench_line("RocksDB:    version 7.8.3"), None);
        assert_eq!(db_bench_line("Initializing RocksDB Options"), None);
    }

    #[test]
    fn tables_have_medians_and_ratios() {
        let mut results = Results::new(&[System::Ext4, System::Adit]);
        for rate in [10_000.0, 20_000.0, 12_500.0] {
            let json = format!(
                r#"{{"blocks":[{{"rows":[{{"title":"append","cells":[{{"operations_per_second":{rate},
                "p50_us":1.0,"p99_us":2.0,"p999_us":3.0}}]}}]}}]}}"#
            );
            results.add_report(System::Ext4, &json).unwrap();
        }
        let json = r#"{"blocks":[{"rows":[{"title":"append","cells":[{"operations_per_second":125000}]}]}]}"#;
        results.add_report(System::Adit, json).unwrap();
        results.add_db_bench(System::Ext4, LINE).unwrap();
        let tables = results.tables();
        assert!(
            tables.contains("| append | 80.0 ±31 % | 8.00 ±0 % | 10.0 |"),
            "{tables}"
        );
        assert!(
            tables.contains("| RocksDB fillsync | 80.1 ±0 % | | |"),
            "{tables}"
        );
        assert!(tables.contains("1.00 / 2.00 / 3.00"), "{tables}");
    }
}
