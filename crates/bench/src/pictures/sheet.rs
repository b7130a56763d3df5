//! The comparison as pictures: SVG, by plotters.
//!
//! A page has a title, a legend, and a chart with an axis, mostly logarithmic.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::measurement::medians::{ADIT, RAW};

pub(crate) const WIDTH: u32 = 900;
/// Of a line of the legend.
const LEGEND_HEIGHT: i32 = 20;
const TITLE_HEIGHT: i32 = 34;
/// The height below the bars: the axis and its meaning.
const AXIS_HEIGHT: i32 = 60;

pub(crate) fn color(system: &str) -> RGBColor {
    match system {
        ADIT => RGBColor(0x1f, 0x5f, 0xbf),
        RAW => RGBColor(0x88, 0x88, 0x88),
        "ext4" => RGBColor(0xd9, 0x6b, 0x0b),
        "xfs" => RGBColor(0x2a, 0x8c, 0x4a),
        "btrfs" => RGBColor(0x8e, 0x44, 0xad),
        _ => RGBColor(0xb0, 0x30, 0x50),
    }
}

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(crate) fn drawn<E: std::error::Error + Send + Sync>(
    error: DrawingAreaErrorKind<E>,
) -> io::Error {
    io::Error::other(format!("could not draw: {error}"))
}

/// Letters of a title, and of a row's label, that have room.
const TITLE_LETTERS: usize = 112;
const LABEL_LETTERS: usize = 56;

/// A font of that size, or as much smaller as a text of more than `letters` needs.
fn fitting(size: usize, text: &str, letters: usize) -> FontDesc<'static> {
    let count = text.chars().count().max(letters);
    ("sans-serif", (size * letters) as f64 / count as f64).into_font()
}

/// The legend: names and their colors.
pub(crate) type Legend<'a> = Vec<(&'a str, RGBColor)>;

pub(crate) fn legend_of<'a>(systems: &[&'a str]) -> Legend<'a> {
    let colored = |&system: &&'a str| (system, color(system));
    systems.iter().map(colored).collect()
}

/// Where each part of a legend goes, in as many lines as it takes; how high all of it is.
fn arranged(legend: &Legend<'_>) -> (Vec<(i32, i32)>, i32) {
    const LEFT: i32 = 14;
    let (mut x, mut y) = (LEFT, TITLE_HEIGHT + 8);
    let mut places = Vec::new();
    for (name, _) in legend {
        let width = 18 + 9 * name.len() as i32 + 22;
        if x > LEFT && x + width > WIDTH as i32 {
            (x, y) = (LEFT, y + LEGEND_HEIGHT);
        }
        places.push((x, y));
        x += width;
    }
    (places, y - TITLE_HEIGHT + LEGEND_HEIGHT)
}

/// How high a picture of bars has to be.
pub(crate) fn height(legend: &Legend<'_>, rows: usize, row_height: i32) -> u32 {
    (row_height * rows as i32 + TITLE_HEIGHT + arranged(legend).1 + AXIS_HEIGHT) as u32
}

/// A white sheet with the title at its top and a legend below it; returns the rest of the area.
pub(crate) fn sheet<'a>(area: &Area<'a>, title: &str, legend: &Legend<'_>) -> io::Result<Area<'a>> {
    area.fill(&WHITE).map_err(drawn)?;
    let style = fitting(18, title, TITLE_LETTERS).color(&BLACK);
    area.draw(&Text::new(title.to_owned(), (12, 10), style))
        .map_err(drawn)?;
    let (places, legend_height) = arranged(legend);
    for (&(name, color), (x, y)) in legend.iter().zip(places) {
        let square = Rectangle::new([(x, y), (x + 12, y + 12)], color.filled());
        area.draw(&square).map_err(drawn)?;
        let style = ("sans-serif", 14).into_font().color(&BLACK);
        area.draw(&Text::new(name.to_owned(), (x + 18, y), style))
            .map_err(drawn)?;
    }
    Ok(area.clone().margin(TITLE_HEIGHT + legend_height, 6, 6, 18))
}

/// Where values lie on a logarithmic axis: powers of ten around them, at least one.
pub(crate) fn decades(values: impl Iterator<Item = f64> + Clone) -> Option<std::ops::Range<f64>> {
    let positive = values.filter(|value| *value > 0.0 && value.is_finite());
    let low = positive.clone().min_by(f64::total_cmp)?;
    let high = positive.max_by(f64::total_cmp)?;
    let floor = 10f64.powf((low * 0.9).log10().floor());
    let ceiling = 10f64.powf((high * 1.1).log10().ceil());
    Some(floor..ceiling.max(floor * 10.0))
}

/// The axis below bars.
pub(crate) enum Axis {
    /// Powers of ten.
    Log(std::ops::Range<f64>),
    /// 0 to 1, labelled in %.
    Parts,
}

impl Axis {
    /// Where a value lies, 0 to 1.
    fn part(&self, value: f64) -> f64 {
        match self {
            Axis::Log(range) => {
                let (low, high) = (range.start.ln(), range.end.ln());
                (value.clamp(range.start, range.end).ln() - low) / (high - low)
            }
            Axis::Parts => value.clamp(0.0, 1.0),
        }
    }

    /// Values with a line, their labels, and whether the line is a strong one.
    fn marks(&self) -> Vec<(f64, String, bool)> {
        let Axis::Log(range) = self else {
            let percent = |part: u32| (f64::from(part) / 100.0, format!("{part} %"), true);
            return (0..=100).step_by(10).map(percent).collect();
        };
        // More labels than these wouldn't have room.
        let steps: &[f64] = match (range.end / range.start).log10() {
            decades if decades > 5.0 => &[1.0],
            decades if decades > 3.0 => &[1.0, 3.0],
            _ => &[1.0, 2.0, 5.0],
        };
        let mut marks = Vec::new();
        let mut decade = range.start;
        while decade <= range.end * 1.001 {
            let values = steps.iter().map(|step| (decade * step, *step == 1.0));
            let inside = values.filter(|(value, _)| *value <= range.end * 1.001);
            marks.extend(inside.map(|(value, strong)| (value, short_axis(value), strong)));
            decade *= 10.0;
        }
        marks
    }
}

/// A chart of horizontal bars: labels at the left, an axis below.
pub(crate) struct Frame {
    left: i32,
    right: i32,
    row_height: i32,
    axis: Axis,
}

const LABEL_WIDTH: i32 = 330;

impl Frame {
    pub(crate) fn new(
        area: &Area<'_>,
        labels: &[String],
        row_height: i32,
        axis: Axis,
        meaning: &str,
    ) -> io::Result<Frame> {
        let (width, _) = area.dim_in_pixel();
        let frame = Frame {
            left: LABEL_WIDTH,
            right: width as i32 - 60,
            row_height,
            axis,
        };
        let bottom = frame.top(labels.len());
        let grey = RGBColor(0xdd, 0xdd, 0xdd);
        let small = ("sans-serif", 12).into_font();
        for (value, text, strong) in frame.axis.marks() {
            let x = frame.x(value);
            let line = grey.mix(if strong { 1.0 } else { 0.5 });
            area.draw(&PathElement::new([(x, 0), (x, bottom)], line))
                .map_err(drawn)?;
            let style = small
                .clone()
                .color(&BLACK)
                .pos(Pos::new(HPos::Center, VPos::Top));
            area.draw(&Text::new(text, (x, bottom + 5), style))
                .map_err(drawn)?;
        }
        for (index, label) in labels.iter().enumerate() {
            let y = frame.top(index) + row_height / 2;
            let style = fitting(13, label, LABEL_LETTERS)
                .color(&BLACK)
                .pos(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(label.clone(), (frame.left - 10, y), style))
                .map_err(drawn)?;
        }
        let style = small.color(&BLACK).pos(Pos::new(HPos::Center, VPos::Top));
        area.draw(&Text::new(
            meaning.to_owned(),
            (width as i32 / 2, bottom + 24),
            style,
        ))
        .map_err(drawn)?;
        Ok(frame)
    }

    /// Where a row begins.
    pub(crate) fn top(&self, row: usize) -> i32 {
        row as i32 * self.row_height
    }

    pub(crate) fn x(&self, value: f64) -> i32 {
        self.left + (self.axis.part(value) * f64::from(self.right - self.left)) as i32
    }
}

/// `0.2`, `5`, `1000`, `20k`, `1M`.
pub(crate) fn short_axis(value: f64) -> String {
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
    use super::{arranged, decades, fitting, legend_of, short_axis};

    #[test]
    fn long_texts_get_smaller_letters_and_long_legends_more_lines() {
        assert_eq!(fitting(18, "short", 10).get_size(), 18.0);
        assert_eq!(fitting(18, &"µ".repeat(20), 10).get_size(), 9.0);
        let lines = |count| {
            let (places, height) = arranged(&legend_of(&vec!["transaction"; count]));
            assert!(places.iter().all(|&(x, _)| x < 900 - 18));
            height
        };
        assert!(lines(1) == lines(3) && lines(14) > lines(3));
    }

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
