//! Figures over sizes as an SVG drawing, one line a program.

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
const COLOURS: [(&str, RGBColor); 6] = [
    ("cableway", RGBColor(0x1f, 0x5f, 0xbf)),
    ("cableway-mpi", RGBColor(0x17, 0xa2, 0xb8)),
    ("ob1", RGBColor(0xd9, 0x5f, 0x02)),
    ("ucx", RGBColor(0xc0, 0x39, 0x2b)),
    ("nccl", RGBColor(0x4c, 0x9a, 0x2a)),
    ("copies", RGBColor(0x99, 0x99, 0x99)),
];

/// The drawing's width and height, and the width of the chart in it. The legend is beside the chart.
const WIDE: (u32, u32) = (1060, 460);
const CHART: i32 = 900;

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
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(sizes.log_scale().base(2.0), values.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc(unit)
        .x_label_formatter(&|size| short(*size))
        .y_label_formatter(&|value| format!("{value}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS.iter().find(|(name, _)| *name == line.name).map_or(BLACK, |(_, colour)| *colour);
        let stroke = colour.stroke_width(width(line.name));
        chart.draw_series(LineSeries::new(line.points.iter().copied(), stroke))?;
        chart.draw_series(line.points.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
        let y = 30 + 24 * index as i32;
        legend.draw(&PathElement::new([(5, y), (30, y)], stroke))?;
        legend.draw(&Text::new(line.name, (38, y - 7), ("sans-serif", 15).into_font()))?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_names_every_program() {
        let line = |name, points: &[(f64, f64)]| Line { name, points: points.to_vec() };
        let drawn = svg("us", &[line("cableway", &[(8.0, 1.0), (1024.0, 2.0)]), line("ucx", &[(8.0, 3.0)])]).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains("cableway") && drawn.contains("ucx"), "{drawn}");
    }
}
