//! How a cost grows: rows that are points of a curve, and the exponent that fits them.

use serde::Serialize;

use crate::measurement::medians::Row;

/// The points of one kind of operation on one system.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// The rows' id.
    pub id: String,
    /// The system.
    pub system: String,
    /// Where, and what an operation took there in µs.
    pub us: Vec<(u64, f64)>,
    /// An operation takes about `at` to the power of this: 0 means the same cost for every size, 1
    /// twice the cost for twice the size. The slope of the least squares line through the
    /// logarithms. `None` where too few points say nothing about it.
    pub exponent: Option<f64>,
    /// Bytes of memory for each unit of growth, between the first point and the last; `None` if
    /// memory did not grow.
    pub bytes_each: Option<f64>,
}

/// Fewer points say nothing about an exponent; two say something about memory.
const POINTS_MIN: usize = 3;

/// All curves of the rows.
pub(crate) fn curves(rows: &[Row]) -> Vec<Curve> {
    let mut ids: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.at.is_some()) {
        if !ids.contains(&row.id.as_str()) {
            ids.push(&row.id);
        }
    }
    let mut curves = Vec::new();
    for id in ids {
        let points: Vec<&Row> = rows.iter().filter(|row| row.id == id).collect();
        let mut systems: Vec<&str> = Vec::new();
        for cell in points.iter().flat_map(|row| &row.cells) {
            if !systems.contains(&cell.system.as_str()) {
                systems.push(&cell.system);
            }
        }
        curves.extend(
            systems
                .into_iter()
                .filter_map(|system| curve(id, system, &points)),
        );
    }
    curves
}

fn curve(id: &str, system: &str, points: &[&Row]) -> Option<Curve> {
    let cells = points
        .iter()
        .filter_map(|row| Some((row.at?, row.cell(system)?)));
    let cells: Vec<_> = cells.collect();
    let us: Vec<(u64, f64)> = cells.iter().map(|&(at, cell)| (at, cell.us())).collect();
    if us.len() < 2 {
        return None;
    }
    let memory: Vec<(u64, u64)> = cells
        .iter()
        .filter_map(|&(at, cell)| Some((at, cell.memory_bytes?)))
        .collect();
    let bytes_each = match memory[..] {
        [(from, before), .., (to, after)] if after > before && to > from => {
            Some((after - before) as f64 / (to - from) as f64)
        }
        _ => None,
    };
    Some(Curve {
        id: id.to_owned(),
        system: system.to_owned(),
        exponent: (us.len() >= POINTS_MIN).then(|| exponent(&us)),
        us,
        bytes_each,
    })
}

/// The slope of the least squares line through the logarithms.
fn exponent(points: &[(u64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points
        .iter()
        .map(|&(at, us)| ((at.max(1) as f64).ln(), us.max(1e-9).ln()))
        .collect();
    let count = logs.len() as f64;
    let mean_x = logs.iter().map(|&(x, _)| x).sum::<f64>() / count;
    let mean_y = logs.iter().map(|&(_, y)| y).sum::<f64>() / count;
    let covariance: f64 = logs.iter().map(|&(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = logs.iter().map(|&(x, _)| (x - mean_x).powi(2)).sum();
    match variance > 0.0 {
        true => covariance / variance,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::{curves, exponent};
    use crate::measurement::medians::Rows;
    use crate::measurement::row::RowKey;
    use crate::measurement::sample::Sample;
    use std::time::Duration;

    /// Files that stay open, in a run that is so quick that it has few points.
    #[test]
    fn two_points_say_what_something_takes_in_memory_and_nothing_about_an_exponent() {
        let curves_of = |steps: &[u64]| {
            let mut rows = Rows::new(["adit".to_owned()]);
            let measured = steps.iter().map(|&step| {
                let mut key = RowKey::new("grow", format!("{step}"), 0);
                key.at = Some(step);
                let mut sample = Sample::untimed(1000, Duration::from_secs(1));
                sample.memory_bytes = Some((1 << 20) + step * 300);
                sample.measurement(&key)
            });
            rows.add(0, measured.collect());
            curves(&rows.finish())
        };
        assert!(curves_of(&[100]).is_empty());
        let two = &curves_of(&[100, 1000])[0];
        assert_eq!((two.exponent, two.bytes_each), (None, Some(300.0)));
        let three = &curves_of(&[10, 100, 1000])[0];
        assert_eq!((three.exponent, three.bytes_each), (Some(0.0), Some(300.0)));
    }

    #[test]
    fn exponents_are_those_of_the_law() {
        let law = |power: f64| -> Vec<(u64, f64)> {
            [100u64, 1000, 10_000, 100_000]
                .map(|at| (at, 3.0 * (at as f64).powf(power)))
                .to_vec()
        };
        for power in [0.0, 0.5, 1.0, -1.0] {
            assert!((exponent(&law(power)) - power).abs() < 1e-9, "{power}");
        }
        assert_eq!(exponent(&[(5, 1.0), (5, 2.0)]), 0.0);
    }
}
