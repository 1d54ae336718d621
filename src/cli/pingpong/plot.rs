//! `--plot`: draws the results.

use std::path::Path;

use cableway_compare::axis::{range, short};
use plotters::prelude::*;

use super::report::Report;
use crate::cli::Failure;

/// Refuses a file that could not be written after the measurement.
pub(crate) fn check_path(file: &Path) -> Result<(), Failure> {
    if file.extension().is_none_or(|extension| extension != "svg") {
        return Err(Failure::usage(format!("--plot: '{}' does not end in .svg", file.display())));
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Failure::usage(format!("--plot: there is no folder '{}'", folder.display())));
    }
    Ok(())
}

/// Draws size against value, both logarithmic.
pub(crate) fn draw(file: &Path, report: &Report) -> Result<(), Failure> {
    try_draw(file, report).map_err(|error| Failure::failed(1, format!("--plot: '{}': {error}", file.display())))
}

fn try_draw(file: &Path, report: &Report) -> Result<(), Box<dyn std::error::Error>> {
    // The logarithmic axes cannot show zero.
    let points: Vec<_> = report
        .rows
        .iter()
        .map(|&(size, value)| (size as f64, value))
        .filter(|&(size, value)| size > 0.0 && value > 0.0)
        .collect();
    let (sizes, values) =
        (range(points.iter().map(|point| point.0), 1.2), range(points.iter().map(|point| point.1), 1.2));
    let root = SVGBackend::new(file, (900, 600)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(report.header.title(), ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(45)
        .y_label_area_size(75)
        .build_cartesian_2d(sizes.log_scale().base(2.0), values.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("Size (bytes)")
        .y_desc(report.header.column())
        .x_label_formatter(&|size| short(*size))
        .y_label_formatter(&|value| format!("{value}"))
        .draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), &BLUE))?;
    chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, BLUE.filled())))?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_paths_checked() {
        assert_eq!([8.0, 1024.0, 1048576.0].map(short), ["8", "1K", "1M"]);
        assert!(check_path(Path::new("x.png")).is_err());
        assert!(check_path(Path::new("/no/such/x.svg")).is_err());
        assert!(check_path(Path::new("x.svg")).is_ok());
        assert_eq!(range([].into_iter(), 1.2), 1.0..2.0);
    }
}
