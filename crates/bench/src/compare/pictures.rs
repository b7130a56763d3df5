//! The comparison as pictures: SVG, by plotters.
//!
//! Bars for ratios and percentiles, lines for curves; axes of costs and rates are logarithmic, for a factor is what one compares.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::comparison::{Comparison, GroupResult};
use crate::rows::{ADIT, Cell, RAW, Row};
use crate::table::{short, short_bytes};

/// A picture and what is to be said about it.
pub(crate) struct Picture {
    /// Its file's name without `.svg`; begins with the group's.
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) title: String,
    pub(crate) svg: String,
}

const WIDTH: u32 = 900;
const LEGEND_HEIGHT: i32 = 28;
const TITLE_HEIGHT: i32 = 34;

/// What a curve shows, and of which rows.
struct Curves {
    name: &'static str,
    title: &'static str,
    id: &'static str,
    x: &'static str,
    /// MiB/s instead of µs.
    throughput: bool,
}

const CURVES: &[Curves] = &[
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
        "grow-threads-read",
        "Cached 4 KiB read by threads",
        "grow-threads-read",
        "threads",
        false,
    ),
    curves(
        "grow-threads-append",
        "Append + fdatasync by threads",
        "grow-threads-append",
        "threads",
        false,
    ),
];

const fn curves(
    name: &'static str,
    title: &'static str,
    id: &'static str,
    x: &'static str,
    throughput: bool,
) -> Curves {
    Curves {
        name,
        title,
        id,
        x,
        throughput,
    }
}

/// All pictures, in the order of the tables.
pub(crate) fn all(comparison: &Comparison) -> io::Result<Vec<Picture>> {
    let mut pictures = Vec::new();
    for group in &comparison.groups {
        let mut add = |name: &str, title: &str, svg: Option<String>| {
            pictures.extend(svg.map(|svg| Picture {
                name: format!("{}-{name}", group.id),
                group: group.id.clone(),
                title: title.to_owned(),
                svg,
            }));
        };
        let title = format!(
            "{}: how many times as many operations as the kernel's file systems",
            group.title
        );
        add("ratios", &title, ratios(comparison, group, &title)?);
        let title = format!("{}: latencies", group.title);
        add("latencies", &title, latencies(comparison, group, &title)?);
        for curve in CURVES {
            add(curve.name, curve.title, lines(comparison, group, curve)?);
        }
    }
    Ok(pictures)
}

fn color(system: &str) -> RGBColor {
    match system {
        ADIT => RGBColor(0x1f, 0x5f, 0xbf),
        RAW => RGBColor(0x88, 0x88, 0x88),
        "ext4" => RGBColor(0xd9, 0x6b, 0x0b),
        "xfs" => RGBColor(0x2a, 0x8c, 0x4a),
        "btrfs" => RGBColor(0x8e, 0x44, 0xad),
        _ => RGBColor(0xb0, 0x30, 0x50),
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn drawn<E: std::error::Error + Send + Sync>(error: DrawingAreaErrorKind<E>) -> io::Error {
    io::Error::other(format!("could not draw: {error}"))
}

/// A white sheet with the title at its top, a legend below it; what is left.
fn sheet<'a>(area: &Area<'a>, title: &str, systems: &[&str]) -> io::Result<Area<'a>> {
    area.fill(&WHITE).map_err(drawn)?;
    let style = ("sans-serif", 18).into_font().color(&BLACK);
    area.draw(&Text::new(title.to_owned(), (12, 10), style))
        .map_err(drawn)?;
    let mut x = 14;
    for system in systems {
        let y = TITLE_HEIGHT + 8;
        let square = Rectangle::new([(x, y), (x + 12, y + 12)], color(system).filled());
        area.draw(&square).map_err(drawn)?;
        let style = ("sans-serif", 14).into_font().color(&BLACK);
        area.draw(&Text::new((*system).to_owned(), (x + 18, y), style))
            .map_err(drawn)?;
        x += 18 + 9 * system.len() as i32 + 22;
    }
    Ok(area.clone().margin(TITLE_HEIGHT + LEGEND_HEIGHT, 6, 6, 18))
}

/// Where values lie on a logarithmic axis: powers of ten around them, at least one.
fn decades(values: impl Iterator<Item = f64> + Clone) -> Option<std::ops::Range<f64>> {
    let positive = values.filter(|value| *value > 0.0 && value.is_finite());
    let low = positive.clone().min_by(f64::total_cmp)?;
    let high = positive.max_by(f64::total_cmp)?;
    let floor = 10f64.powf((low * 0.9).log10().floor());
    let ceiling = 10f64.powf((high * 1.1).log10().ceil());
    Some(floor..ceiling.max(floor * 10.0))
}

/// A bar for each row and system, from 1 to the ratio.
fn ratios(comparison: &Comparison, group: &GroupResult, title: &str) -> io::Result<Option<String>> {
    let kernels: Vec<&str> = comparison.kernels().collect();
    // Rows of a curve have a picture of their own.
    let rows: Vec<&Row> = group
        .rows
        .iter()
        .filter(|row| {
            row.at.is_none()
                && kernels
                    .iter()
                    .any(|kernel| row.adit_to.contains_key(*kernel))
        })
        .collect();
    let bars: Vec<Vec<(&str, f64)>> = rows
        .iter()
        .map(|row| {
            kernels
                .iter()
                .filter_map(|kernel| Some((*kernel, *row.adit_to.get(*kernel)?)))
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
    let axis = "times as many operations per second as the file system of that color (log scale; right of 1 Adit is faster)";
    let bar_height = 13;
    let row_height = bar_height * kernels.len() as i32 + 10;
    let height = row_height * rows.len() as i32 + TITLE_HEIGHT + LEGEND_HEIGHT + 60;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height as u32)).into_drawing_area();
        let area = sheet(&area, title, &kernels)?;
        let frame = Frame::new(&area, &labels, row_height, range, axis)?;
        let one = frame.x(1.0);
        for (index, bars) in bars.iter().enumerate() {
            for (system, ratio) in bars {
                let place = kernels
                    .iter()
                    .position(|other| other == system)
                    .unwrap_or(0) as i32;
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

/// A system, and its p50, p99, p99.9 in µs.
type Latency<'a> = (&'a str, [f64; 3]);

/// For each row and system p50, p99, p99.9 as a bar from the first to the last, with a mark at the second.
fn latencies(
    comparison: &Comparison,
    group: &GroupResult,
    title: &str,
) -> io::Result<Option<String>> {
    let systems: Vec<&str> = comparison
        .systems
        .iter()
        .map(|system| system.name.as_str())
        .collect();
    let complete = |cell: &Cell| Some([cell.p50_us?, cell.p99_us?, cell.p999_us?]);
    let rows: Vec<(&Row, Vec<Latency<'_>>)> = group
        .rows
        .iter()
        .filter(|row| row.at.is_none())
        .map(|row| {
            (
                row,
                systems
                    .iter()
                    .filter_map(|system| Some((*system, complete(row.cell(system)?)?)))
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
    let height = row_height * rows.len() as i32 + TITLE_HEIGHT + LEGEND_HEIGHT + 60;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height as u32)).into_drawing_area();
        let area = sheet(&area, title, &systems)?;
        let labels: Vec<String> = rows
            .iter()
            .map(|(row, _)| row.title.trim_start().to_owned())
            .collect();
        let frame = Frame::new(
            &area,
            &labels,
            row_height,
            range,
            "µs an operation (log scale): from p50 to p99.9, the mark is p99",
        )?;
        for (index, (_, cells)) in rows.iter().enumerate() {
            for (system, us) in cells {
                let place = systems
                    .iter()
                    .position(|other| other == system)
                    .unwrap_or(0) as i32;
                let y = frame.top(index) + 6 + place * bar_height;
                let [p50, p99, p999] = us.map(|us| frame.x(us));
                let style = color(system);
                area.draw(&Rectangle::new(
                    [(p50, y), (p999.max(p50 + 1), y + bar_height - 3)],
                    style.mix(0.45).filled(),
                ))
                .map_err(drawn)?;
                for (x, width) in [(p50, 3), (p99, 2)] {
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

/// A chart of horizontal bars: labels at the left, a logarithmic axis below.
struct Frame {
    left: i32,
    right: i32,
    row_height: i32,
    range: std::ops::Range<f64>,
}

const LABEL_WIDTH: i32 = 330;

impl Frame {
    fn new(
        area: &Area<'_>,
        labels: &[String],
        row_height: i32,
        range: std::ops::Range<f64>,
        axis: &str,
    ) -> io::Result<Frame> {
        let (width, _) = area.dim_in_pixel();
        let frame = Frame {
            left: LABEL_WIDTH,
            right: width as i32 - 60,
            row_height,
            range,
        };
        let bottom = frame.top(labels.len());
        let grey = RGBColor(0xdd, 0xdd, 0xdd);
        let small = ("sans-serif", 12).into_font();
        // More labels than these wouldn't have room.
        let steps: &[f64] = match (frame.range.end / frame.range.start).log10() {
            decades if decades > 5.0 => &[1.0],
            decades if decades > 3.0 => &[1.0, 3.0],
            _ => &[1.0, 2.0, 5.0],
        };
        let mut decade = frame.range.start;
        while decade <= frame.range.end * 1.001 {
            for &step in steps {
                let value = decade * step;
                if value > frame.range.end * 1.001 {
                    break;
                }
                let x = frame.x(value);
                let line = if step > 1.0 {
                    grey.mix(0.5)
                } else {
                    grey.to_rgba()
                };
                area.draw(&PathElement::new([(x, 0), (x, bottom)], line))
                    .map_err(drawn)?;
                let text = short_axis(value);
                let style = small
                    .clone()
                    .color(&BLACK)
                    .pos(Pos::new(HPos::Center, VPos::Top));
                area.draw(&Text::new(text, (x, bottom + 5), style))
                    .map_err(drawn)?;
            }
            decade *= 10.0;
        }
        for (index, label) in labels.iter().enumerate() {
            let y = frame.top(index) + row_height / 2;
            let style = ("sans-serif", 13)
                .into_font()
                .color(&BLACK)
                .pos(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(label.clone(), (frame.left - 10, y), style))
                .map_err(drawn)?;
        }
        let style = small.color(&BLACK).pos(Pos::new(HPos::Center, VPos::Top));
        area.draw(&Text::new(
            axis.to_owned(),
            (width as i32 / 2, bottom + 24),
            style,
        ))
        .map_err(drawn)?;
        Ok(frame)
    }

    fn top(&self, row: usize) -> i32 {
        row as i32 * self.row_height
    }

    fn x(&self, value: f64) -> i32 {
        let (low, high) = (self.range.start.ln(), self.range.end.ln());
        let part = (value.clamp(self.range.start, self.range.end).ln() - low) / (high - low);
        self.left + (part * f64::from(self.right - self.left)) as i32
    }
}

/// A line for each system.
fn lines(
    comparison: &Comparison,
    group: &GroupResult,
    curves: &Curves,
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
    let x_low = points().map(|(x, _)| x).fold(f64::MAX, f64::min);
    let x_high = points().map(|(x, _)| x).fold(0.0, f64::max);
    let in_bytes = curves.x.contains("size");
    let label = |x: &f64| match in_bytes {
        true => short_bytes(x.round() as u64),
        false => short_axis(*x),
    };
    let systems: Vec<&str> = all.iter().map(|(system, _)| *system).collect();
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, 460)).into_drawing_area();
        let area = sheet(&area, curves.title, &systems)?;
        let mut chart = ChartBuilder::on(&area)
            .margin_right(20)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(
                (x_low..x_high * 1.02)
                    .log_scale()
                    .base(if in_bytes { 2.0 } else { 10.0 }),
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

/// `0.2`, `5`, `1000`, `20k`, `1M`.
fn short_axis(value: f64) -> String {
    let plain = |value: f64| {
        let text = format!("{value:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match value {
        value if value >= 999_999.5 => format!("{}M", plain(value / 1e6)),
        value if value >= 9_999.5 => format!("{}k", plain(value / 1e3)),
        value => plain(value),
    }
}

#[cfg(test)]
mod tests {
    use super::{decades, short_axis};

    #[test]
    fn an_axis_covers_its_values_in_whole_decades() {
        assert_eq!(decades([3.0, 42.0].into_iter()), Some(1.0..100.0));
        assert_eq!(decades([0.5].into_iter()), Some(0.1..1.0));
        assert_eq!(decades([0.0, f64::NAN].into_iter()), None);
    }

    #[test]
    fn axis_labels_are_short() {
        let shown = [0.2, 5.0, 1000.0, 20_000.0, 1e6].map(short_axis);
        assert_eq!(shown, ["0.2", "5", "1000", "20k", "1M"]);
    }
}
