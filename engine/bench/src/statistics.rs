//! Medians, spreads and percentiles.

/// The median; NaN of nothing.
pub(crate) fn median(values: Vec<f64>) -> f64 {
    Spread::of(values).median
}

/// A median with the smallest and the greatest value.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// The median, with the least and the greatest value in brackets, in this unit.
    pub(crate) fn text(self, unit: f64) -> String {
        let [median, least, most] = [self.median, self.least, self.most].map(|value| value / unit);
        format!("{median:.2} ({least:.2}–{most:.2})")
    }

    /// All are NaN for no values.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let nothing = f64::NAN;
        Self {
            median: values.get(values.len() / 2).copied().unwrap_or(nothing),
            least: values.first().copied().unwrap_or(nothing),
            most: values.last().copied().unwrap_or(nothing),
        }
    }
}

/// The value that `per_mille` of the sorted values do not exceed.
pub(crate) fn percentile(sorted: &[u64], per_mille: usize) -> Option<u64> {
    let rank = (sorted.len() * per_mille).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<u64> = (1..=1000).collect();
        assert_eq!(percentile(&values, 500), Some(500));
        assert_eq!(percentile(&values, 990), Some(990));
        assert_eq!(percentile(&values, 1000), Some(1000));
        assert_eq!(percentile(&[7], 999), Some(7));
        assert_eq!(percentile(&[], 500), None);
    }

    #[test]
    fn a_spread_has_the_extremes() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((spread.median, spread.least, spread.most), (2.0, 1.0, 3.0));
        assert!(median(Vec::new()).is_nan());
    }
}
