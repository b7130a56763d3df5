//! Where the time of Adit's operations goes, as bars.

use std::io;

use adit_base::breakdown::{LAYERS, Layer};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::sheet::{Axis, Frame, Legend, WIDTH, drawn, height, sheet};
use crate::measurement::layers::BreakdownRow;
use crate::report::layers::{share, shown};
use crate::report::numbers::short;

/// Neighbours differ in hue and in brightness.
const COLORS: [RGBColor; LAYERS] = [
    RGBColor(0x4e, 0x79, 0xa7),
    RGBColor(0xa0, 0xcb, 0xe8),
    RGBColor(0xf2, 0x8e, 0x2b),
    RGBColor(0xff, 0xbe, 0x7d),
    RGBColor(0x59, 0xa1, 0x4f),
    RGBColor(0x8c, 0xd1, 0x7d),
    RGBColor(0xb6, 0x99, 0x2d),
    RGBColor(0xf1, 0xce, 0x63),
    RGBColor(0x49, 0x98, 0x94),
    RGBColor(0x86, 0xbc, 0xb6),
    RGBColor(0xe1, 0x57, 0x59),
    RGBColor(0x79, 0x70, 0x6e),
    RGBColor(0xd3, 0x72, 0x95),
    RGBColor(0xba, 0xb0, 0xac),
];

/// A bar for each operation, divided into its layers.
pub(crate) fn picture(rows: &[BreakdownRow], title: &str) -> io::Result<Option<String>> {
    const ROW_HEIGHT: i32 = 28;
    if rows.is_empty() {
        return Ok(None);
    }
    let layers: Vec<(Layer, RGBColor)> = shown(rows)
        .into_iter()
        .map(|layer| (layer, COLORS[layer as usize]))
        .collect();
    let legend: Legend<'_> = layers
        .iter()
        .map(|&(layer, color)| (layer.name(), color))
        .collect();
    let labels: Vec<String> = rows
        .iter()
        .map(|row| format!("{}: {} µs", row.title, short(row.untimed_us)))
        .collect();
    let size = (WIDTH, height(&legend, rows.len(), ROW_HEIGHT));
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let area = sheet(&area, title, &legend)?;
        let meaning = "part of the calling thread's time";
        let frame = Frame::new(&area, &labels, ROW_HEIGHT, Axis::Parts, meaning)?;
        for (index, row) in rows.iter().enumerate() {
            let (top, bottom) = (frame.top(index) + 4, frame.top(index + 1) - 4);
            let mut before = 0.0;
            for &(layer, color) in &layers {
                let share = share(row, layer);
                let (from, to) = (frame.x(before), frame.x(before + share));
                before += share;
                let bar = Rectangle::new([(from, top), (to, bottom)], color.filled());
                area.draw(&bar).map_err(drawn)?;
                // Where there is room for it, one needn't look it up.
                if to - from > 8 * layer.name().len() as i32 {
                    let middle = ((from + to) / 2, (top + bottom) / 2);
                    let style = ("sans-serif", 12)
                        .into_font()
                        .color(&BLACK)
                        .pos(Pos::new(HPos::Center, VPos::Center));
                    area.draw(&Text::new(layer.name(), middle, style))
                        .map_err(drawn)?;
                }
            }
        }
        area.present().map_err(drawn)?;
    }
    Ok(Some(svg))
}

#[cfg(test)]
mod tests {
    use super::picture;
    use crate::measurement::layers::samples::rows;

    #[test]
    fn a_bar_has_a_piece_for_each_layer_and_a_label_with_its_time() {
        let svg = picture(&rows(), "where").unwrap().unwrap();
        for part in ["append: 10.0 µs", "stat: 10.0 µs", "names", "100 %"] {
            assert!(svg.contains(part), "{part}");
        }
        assert_eq!(picture(&[], "where").unwrap(), None);
    }
}
