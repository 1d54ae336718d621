//! Medians and ranges of figures.

/// The median, least and greatest of several measurements of one figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) greatest: f64,
    pub(crate) takings: usize,
}

/// Summarises measurements; returns `None` if there are none.
pub(crate) fn summary(values: &[f64]) -> Option<Summary> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, greatest) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
    Some(Summary { median, least, greatest, takings: sorted.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_order_and_outliers() {
        let odd = summary(&[9.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.least, odd.greatest, odd.takings), (2.0, 1.0, 9.0, 3));
        assert_eq!(summary(&[4.0, 1.0, 2.0, 100.0]).unwrap().median, 3.0);
        assert_eq!(summary(&[]), None);
    }
}
