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

/// Returns the median, and the interval that holds the true median with at least 95 %. Too few values have no such
/// interval; then it is their range.
///
/// The interval lies between two of the sorted values, whatever their distribution: the chance that fewer than `k` of `n`
/// values are below the true median is that of fewer than `k` heads in `n` tosses of a coin.
pub(crate) fn interval(values: &[f64]) -> Option<(f64, [f64; 2])> {
    const OUTSIDE: f64 = 0.025;
    let median = summary(values)?.median;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let (mut fewer, mut term, mut first) = (0.0, 0.5_f64.powi(n as i32), 0);
    for k in 0..n / 2 {
        fewer += term;
        if fewer > OUTSIDE {
            break;
        }
        first = k;
        term *= (n - k) as f64 / (k + 1) as f64;
    }
    Some((median, [sorted[first], sorted[n - 1 - first]]))
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

    /// The ranks are those of the tables of the sign test.
    #[test]
    fn the_interval_lies_between_the_ranks_of_the_sign_test() {
        let numbers = |n: usize| (1..=n).map(|value| value as f64).collect::<Vec<_>>();
        let ranks = |n: usize| interval(&numbers(n)).unwrap().1.map(|value| value as usize);
        assert_eq!(ranks(1), [1, 1]);
        assert_eq!(ranks(5), [1, 5]);
        assert_eq!(ranks(8), [1, 8]);
        assert_eq!(ranks(9), [2, 8]);
        assert_eq!(ranks(12), [3, 10]);
        assert_eq!(ranks(15), [4, 12]);
        assert_eq!(interval(&[]), None);
    }
}
