//! The comparison as pictures: SVG, by plotters.
//!
//! - `sheet`: a page with a title, a legend and an axis; `bars`: ratios and percentiles;
//! - `layers`: where the time goes; `curves`: lines.
//!
//! Axes of costs and rates are logarithmic, because a reader compares factors.

mod bars;
mod curves;
mod layers;
mod sheet;

use std::io;

use bars::{latencies, ratios};
use curves::{CURVES, lines};

use crate::compare::comparison::{Comparison, GroupResult};
use crate::measurement::medians::{ADIT, RAW};

/// A picture with its name and title.
pub(crate) struct Picture {
    /// Its file's name without `.svg`; begins with the group's.
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) title: String,
    pub(crate) svg: String,
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
        if group.is_by_threads() {
            for curve in curves::by_threads(group) {
                add(curve.name, curve.title, lines(comparison, group, &curve)?);
            }
            continue;
        }
        let others = rivals(comparison, group);
        let than = match others[..] {
            [RAW] => "the bare device",
            _ => "the kernel's file systems",
        };
        let title = format!(
            "{}: how many times as many operations as {than}",
            group.title
        );
        add("ratios", &title, ratios(&others, group, &title)?);
        let title = format!("{}: latencies", group.title);
        add("latencies", &title, latencies(comparison, group, &title)?);
        add(
            "bars",
            &group.title,
            layers::picture(&group.layers, &group.title)?,
        );
        for curve in CURVES {
            add(curve.name, curve.title, lines(comparison, group, curve)?);
        }
    }
    Ok(pictures)
}

/// The systems that Adit is compared with: the kernel's file systems; if there is none, the bare
/// device.
fn rivals<'a>(comparison: &'a Comparison, group: &GroupResult) -> Vec<&'a str> {
    let mut systems = comparison.systems_in(group);
    systems.retain(|system| *system != ADIT);
    if systems.len() > 1 {
        systems.retain(|system| *system != RAW);
    }
    systems
}
