//! Logarithmic axes of drawings.

/// Returns the range from the least to the greatest of positive values, with a margin on either side.
pub fn range(values: impl Iterator<Item = f64> + Clone, room: f64) -> std::ops::Range<f64> {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let greatest = values.fold(0.0, f64::max);
    if least.is_finite() && least > 0.0 { least / room..greatest * room } else { 1.0..2.0 }
}

/// Formats a size as users write it.
pub fn short(size: f64) -> String {
    let units = [("G", 30), ("M", 20), ("K", 10)];
    let unit = units.into_iter().find(|(_, shift)| size >= f64::from(1_u32 << shift));
    unit.map_or_else(|| format!("{size}"), |(name, shift)| format!("{}{name}", size / f64::from(1_u32 << shift)))
}
