//! Figures over sizes as an SVG drawing, one line a program.

use std::ops::Range;

use plotters::prelude::*;

use crate::axis::{range, short};
use crate::error::Error;

/// One program's figures.
pub(super) struct Line {
    pub(super) name: &'static str,
    /// Size and figure.
    pub(super) points: Vec<(f64, f64)>,
}

/// Of each program, whichever drawing it is in.
const COLOURS: [(&str, RGBColor); 7] = [
    ("cableway", RGBColor(0x1f, 0x5f, 0xbf)),
    ("cableway-mpi", RGBColor(0x17, 0xa2, 0xb8)),
    ("ob1", RGBColor(0xd9, 0x5f, 0x02)),
    ("ucx", RGBColor(0xc0, 0x39, 0x2b)),
    ("nccl", RGBColor(0x4c, 0x9a, 0x2a)),
    ("nccl-queued", RGBColor(0x8e, 0x44, 0xad)),
    ("copies", RGBColor(0x99, 0x99, 0x99)),
];

/// The drawing's width and height, and the width of the chart in it. The legend is beside the chart.
const WIDE: (u32, u32) = (1100, 470);
const CHART: i32 = 900;
/// The height of all text. The page enlarges it where it is narrow.
const TEXT: u32 = 19;

/// Returns the width of a program's line. Cableway's own lines stand out.
fn width(name: &str) -> u32 {
    if name.starts_with("cableway") { 4 } else { 2 }
}

/// Both axes logarithmic. Lines of one point are drawn as that point.
///
/// # Errors
///
/// The drawing library fails.
pub(super) fn svg(unit: &str, lines: &[Line]) -> Result<String, Error> {
    let mut out = String::new();
    draw(&mut out, unit, lines).map_err(|error| Error::Drawing(error.to_string()))?;
    Ok(out)
}

fn draw(out: &mut String, unit: &str, lines: &[Line]) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (sizes, values) = (range(points().map(|point| point.0), 1.3), range(points().map(|point| point.1), 1.3));
    let root = SVGBackend::with_string(out, WIDE).into_drawing_area();
    let (area, legend) = root.split_horizontally(CHART);
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .x_label_area_size(58)
        .y_label_area_size(90)
        .build_cartesian_2d(sizes.log_scale().base(2.0), values.clone().log_scale().with_key_points(ticks(&values)))?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc(unit)
        .x_label_formatter(&|size| short(*size))
        .y_label_formatter(&|value| plain(*value))
        .label_style(("sans-serif", TEXT))
        .axis_desc_style(("sans-serif", TEXT))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS.iter().find(|(name, _)| *name == line.name).map_or(BLACK, |(_, colour)| *colour);
        let stroke = colour.stroke_width(width(line.name));
        chart.draw_series(LineSeries::new(line.points.iter().copied(), stroke))?;
        chart.draw_series(line.points.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
        let y = 30 + 24 * index as i32;
        legend.draw(&PathElement::new([(5, y), (30, y)], stroke))?;
        legend.draw(&Text::new(line.name, (38, y - 7), ("sans-serif", TEXT).into_font()))?;
    }
    root.present()?;
    Ok(())
}

/// Returns the values at which an axis has ticks: powers of ten, and between them if there would be few.
fn ticks(values: &Range<f64>) -> Vec<f64> {
    let decades = values.start.log10().floor() as i32..=values.end.log10().ceil() as i32;
    let steps: &[f64] = match (values.end / values.start).log10() {
        0.0..0.7 => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
        0.7..2.5 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let all = decades.flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)));
    all.filter(|tick| values.contains(tick)).collect()
}

/// Writes a tick's value, rounded to six decimals.
fn plain(value: f64) -> String {
    let digits = format!("{value:.6}");
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_has_some_ticks() {
        assert_eq!(ticks(&(0.3..3.0)), [0.5, 1.0, 2.0]);
        assert_eq!(ticks(&(0.3..3000.0)), [1.0, 10.0, 100.0, 1000.0]);
        assert!((1..1000).map(f64::from).all(|at| !ticks(&(at..at * 1.69)).is_empty()));
    }

    #[test]
    fn ticks_have_no_rounding_errors() {
        assert_eq!([0.7000000000000001, 30.0, 1000.0, 0.05].map(plain), ["0.7", "30", "1000", "0.05"]);
    }

    #[test]
    fn a_drawing_names_every_program() {
        let line = |name, points: &[(f64, f64)]| Line { name, points: points.to_vec() };
        let drawn = svg("us", &[line("cableway", &[(8.0, 1.0), (1024.0, 2.0)]), line("ucx", &[(8.0, 3.0)])]).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains("cableway") && drawn.contains("ucx"), "{drawn}");
    }
}
