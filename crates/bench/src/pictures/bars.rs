//! Pictures of bars: ratios of rates, and percentiles.

use std::io;

use plotters::prelude::*;

use super::sheet::{Axis, Frame, WIDTH, color, decades, drawn, height, legend_of, sheet};
use crate::compare::comparison::{Comparison, GroupResult};
use crate::measurement::medians::{Cell, Row};
use crate::report::numbers::short;

/// A bar for each row and system, from 1 to the ratio.
pub(super) fn ratios(
    others: &[&str],
    group: &GroupResult,
    title: &str,
) -> io::Result<Option<String>> {
    // Rows of a curve have a picture of their own.
    let rows: Vec<&Row> = group
        .rows
        .iter()
        .filter(|row| {
            row.at.is_none() && others.iter().any(|other| row.adit_to.contains_key(*other))
        })
        .collect();
    let bars: Vec<Vec<(&str, f64)>> = rows
        .iter()
        .map(|row| {
            others
                .iter()
                .filter_map(|other| Some((*other, *row.adit_to.get(*other)?)))
                .collect()
        })
        .collect();
    let Some(mut range) = decades(bars.iter().flatten().map(|&(_, ratio)| ratio)) else {
        return Ok(None);
    };
    range.start = range.start.min(0.5).max(0.1f64.min(range.start));
    range.end = range.end.max(2.0);
    let labels: Vec<String> = rows
        .iter()
        .map(|row| row.title.trim_start().to_owned())
        .collect();
    let axis = "times as many operations per second as the system of that color (log scale; right of 1 Adit is faster)";
    let bar_height = 13;
    let row_height = bar_height * others.len() as i32 + 10;
    let legend = legend_of(others);
    let size = (WIDTH, height(&legend, rows.len(), row_height));
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let area = sheet(&area, title, &legend)?;
        let frame = Frame::new(&area, &labels, row_height, Axis::Log(range), axis)?;
        let one = frame.x(1.0);
        for (index, bars) in bars.iter().enumerate() {
            for (system, ratio) in bars {
                let place = others.iter().position(|other| other == system).unwrap_or(0) as i32;
                let y = frame.top(index) + 5 + place * bar_height;
                let end = frame.x(*ratio);
                let corners = [(one.min(end), y), (one.max(end), y + bar_height - 2)];
                area.draw(&Rectangle::new(corners, color(system).filled()))
                    .map_err(drawn)?;
                let style = ("sans-serif", 12).into_font().color(&BLACK);
                let text = Text::new(
                    format!("× {}", short(*ratio)),
                    (one.max(end) + 4, y - 1),
                    style,
                );
                area.draw(&text).map_err(drawn)?;
            }
        }
        area.draw(&PathElement::new(
            [(one, 0), (one, frame.top(labels.len()))],
            BLACK,
        ))
        .map_err(drawn)?;
        area.present().map_err(drawn)?;
    }
    Ok(Some(svg))
}

/// A system, and those of its p50, p99, p99.9 in µs that enough operations support.
type Latency<'a> = (&'a str, Vec<f64>);

/// For each row and system p50, p99, p99.9 as a bar from the first to the last that is known, with a
/// mark at the second.
pub(super) fn latencies(
    comparison: &Comparison,
    group: &GroupResult,
    title: &str,
) -> io::Result<Option<String>> {
    let systems = comparison.systems_in(group);
    let known = |cell: &Cell| {
        let all = [cell.p50_us, cell.p99_us, cell.p999_us];
        let known: Vec<f64> = all.into_iter().map_while(|us| us).collect();
        (!known.is_empty()).then_some(known)
    };
    let rows: Vec<(&Row, Vec<Latency<'_>>)> = group
        .rows
        .iter()
        .filter(|row| row.at.is_none())
        .map(|row| {
            (
                row,
                systems
                    .iter()
                    .filter_map(|system| Some((*system, known(row.cell(system)?)?)))
                    .collect::<Vec<_>>(),
            )
        })
        .filter(|(_, cells)| !cells.is_empty())
        .collect();
    let Some(range) = decades(
        rows.iter()
            .flat_map(|(_, cells)| cells.iter().flat_map(|(_, us)| us.iter().copied())),
    ) else {
        return Ok(None);
    };
    let bar_height = 9;
    let row_height = bar_height * systems.len() as i32 + 12;
    let legend = legend_of(&systems);
    let size = (WIDTH, height(&legend, rows.len(), row_height));
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let area = sheet(&area, title, &legend)?;
        let labels: Vec<String> = rows
            .iter()
            .map(|(row, _)| row.title.trim_start().to_owned())
            .collect();
        let frame = Frame::new(
            &area,
            &labels,
            row_height,
            Axis::Log(range),
            "µs an operation (log scale): from p50 to p99.9, the mark is p99; to p99, or only p50, of few operations",
        )?;
        for (index, (_, cells)) in rows.iter().enumerate() {
            for (system, us) in cells {
                let place = systems
                    .iter()
                    .position(|other| other == system)
                    .unwrap_or(0) as i32;
                let y = frame.top(index) + 6 + place * bar_height;
                let at: Vec<i32> = us.iter().map(|us| frame.x(*us)).collect();
                let (first, last) = (at[0], at[at.len() - 1]);
                let style = color(system);
                area.draw(&Rectangle::new(
                    [(first, y), (last.max(first + 1), y + bar_height - 3)],
                    style.mix(0.45).filled(),
                ))
                .map_err(drawn)?;
                for (&x, width) in at.iter().zip([3, 2]) {
                    area.draw(&Rectangle::new(
                        [(x, y - 1), (x + width, y + bar_height - 2)],
                        style.filled(),
                    ))
                    .map_err(drawn)?;
                }
            }
        }
        area.present().map_err(drawn)?;
    }
    Ok(Some(svg))
}
