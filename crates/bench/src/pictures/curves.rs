//! Pictures of curves: a line for each system, both axes logarithmic.

use std::io;

use plotters::prelude::*;

use super::sheet::{WIDTH, color, decades, drawn, legend_of, sheet, short_axis};
use crate::compare::comparison::{Comparison, GroupResult};
use crate::measurement::medians::{Cell, Row};
use crate::report::numbers::short_bytes;

/// A curve: its rows, and its axes.
pub(crate) struct Curves<'a> {
    pub(crate) name: &'a str,
    pub(crate) title: &'a str,
    id: &'a str,
    x: &'a str,
    /// MiB/s instead of µs.
    throughput: bool,
}

pub(crate) const CURVES: &[Curves<'static>] = &[
    curves(
        "size-write-sync-rate",
        "Sequential direct write, one in flight",
        "size-write-sync",
        "request size",
        true,
    ),
    curves(
        "size-write-async-rate",
        "Sequential direct write, 128 in flight",
        "size-write-async",
        "request size",
        true,
    ),
    curves(
        "size-write-sync-latency",
        "Latency of a direct write by size",
        "size-write-sync",
        "request size",
        false,
    ),
    curves(
        "size-read-sync-latency",
        "Latency of a direct read by size",
        "size-read-sync",
        "request size",
        false,
    ),
    curves(
        "depth-read",
        "Random direct read 4 KiB by requests in flight",
        "depth-read",
        "requests in flight",
        true,
    ),
    curves(
        "depth-write",
        "Random direct write 4 KiB by requests in flight",
        "depth-write",
        "requests in flight",
        true,
    ),
    curves(
        "files-write-sync",
        "Direct write 4 KiB, one in flight, many files in turn",
        "files-write-sync",
        "files",
        true,
    ),
    curves(
        "files-write-async",
        "Direct write 4 KiB, 128 in flight, many files in turn",
        "files-write-async",
        "files",
        true,
    ),
    curves(
        "grow-files-create",
        "Creating files, a thousand a directory",
        "grow-files-create",
        "files",
        false,
    ),
    curves(
        "grow-files-stat",
        "Looking up one of many files",
        "grow-files-stat",
        "files",
        false,
    ),
    curves(
        "grow-names-create",
        "Creating files in one directory",
        "grow-names-create",
        "names in the directory",
        false,
    ),
    curves(
        "grow-names-stat",
        "Looking up one of many names of a directory",
        "grow-names-stat",
        "names in the directory",
        false,
    ),
    curves(
        "grow-size-write",
        "Writing pages of a sparse file, with a sync",
        "grow-size-write",
        "size of the file",
        false,
    ),
    curves(
        "grow-size-read",
        "Reading written pages of a sparse file",
        "grow-size-read",
        "size of the file",
        false,
    ),
    curves(
        "grow-extents-write",
        "Direct write of a page that becomes an extent",
        "grow-extents-write",
        "extents",
        false,
    ),
    curves(
        "grow-extents-read",
        "Direct read in a file of many extents",
        "grow-extents-read",
        "extents",
        false,
    ),
    curves(
        "grow-open-open",
        "Opening a file, all stay open",
        "grow-open-open",
        "open files",
        false,
    ),
    curves(
        "grow-open-read",
        "Reading a page of one of many open files",
        "grow-open-read",
        "open files",
        false,
    ),
    curves(
        "grow-cache-read",
        "Reading a page of what is in the cache",
        "grow-cache-read",
        "size of what is cached",
        false,
    ),
];

const fn curves(
    name: &'static str,
    title: &'static str,
    id: &'static str,
    x: &'static str,
    throughput: bool,
) -> Curves<'static> {
    Curves {
        name,
        title,
        id,
        x,
        throughput,
    }
}

/// A curve for each operation of a group over threads.
pub(crate) fn by_threads(group: &GroupResult) -> Vec<Curves<'_>> {
    let mut all: Vec<Curves<'_>> = Vec::new();
    for row in &group.rows {
        if all.iter().all(|curve| curve.id != row.id) {
            all.push(Curves {
                name: row.id.strip_prefix("threads-").unwrap_or(&row.id),
                title: row.title_of_one_thread(),
                id: &row.id,
                x: "threads",
                throughput: false,
            });
        }
    }
    all
}

/// A line for each system.
pub(crate) fn lines(
    comparison: &Comparison,
    group: &GroupResult,
    curves: &Curves<'_>,
) -> io::Result<Option<String>> {
    let rows: Vec<&Row> = group
        .rows
        .iter()
        .filter(|row| row.id == curves.id && row.at.is_some())
        .collect();
    let value = |row: &Row, cell: &Cell| match curves.throughput {
        true => cell.operations_per_second * row.operation_bytes as f64 / f64::from(1 << 20),
        false => cell.us(),
    };
    let all: Vec<(&str, Vec<(f64, f64)>)> = comparison
        .systems
        .iter()
        .map(|system| {
            let points = rows
                .iter()
                .filter_map(|row| Some((row.at? as f64, value(row, row.cell(&system.name)?))));
            (system.name.as_str(), points.collect::<Vec<_>>())
        })
        .filter(|(_, points)| points.len() > 1)
        .collect();
    let points = || all.iter().flat_map(|(_, points)| points.iter().copied());
    let Some(y_range) = decades(points().map(|(_, y)| y)) else {
        return Ok(None);
    };
    // A margin, so that rounding does not drop the labels of its ends.
    let y_range = y_range.start * 0.999..y_range.end * 1.001;
    let x_low = points().map(|(x, _)| x).fold(f64::MAX, f64::min);
    let x_high = points().map(|(x, _)| x).fold(0.0, f64::max);
    let in_bytes = curves.x.contains("size");
    let doubles = points().all(|(x, _)| (x as u64).is_power_of_two());
    let label = |x: &f64| match in_bytes {
        true => short_bytes(x.round() as u64),
        false => short_axis(*x),
    };
    let systems: Vec<&str> = all.iter().map(|(system, _)| *system).collect();
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, 460)).into_drawing_area();
        let area = sheet(&area, curves.title, &legend_of(&systems))?;
        let mut chart = ChartBuilder::on(&area)
            .margin_right(20)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(
                (x_low..x_high * 1.02)
                    .log_scale()
                    .base(if in_bytes || doubles { 2.0 } else { 10.0 }),
                y_range.log_scale(),
            )
            .map_err(drawn)?;
        chart
            .configure_mesh()
            .light_line_style(BLACK.mix(0.06))
            .bold_line_style(BLACK.mix(0.15))
            .x_desc(format!("{} (log scale)", curves.x))
            .y_desc(if curves.throughput {
                "MiB/s (log scale)"
            } else {
                "µs an operation (log scale)"
            })
            .x_label_formatter(&label)
            .y_label_formatter(&|y| short_axis(*y))
            .label_style(("sans-serif", 13))
            .draw()
            .map_err(drawn)?;
        for (system, points) in &all {
            let style = color(system).stroke_width(2);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style))
                .map_err(drawn)?;
            let dots = points
                .iter()
                .map(|&point| Circle::new(point, 4, color(system).filled()));
            chart.draw_series(dots).map_err(drawn)?;
        }
        area.present().map_err(drawn)?;
    }
    Ok(Some(svg))
}
