//! `--sizes`: a doubling range, or a list.

use std::ops::RangeInclusive;

use cableway::parse_size;

/// Sizes in the order in which they are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<u64>);

/// Reads `1..4M` or `8,64K`.
pub(crate) fn parse(text: &str) -> Result<Sizes, String> {
    let sizes = if text.contains("..") {
        doubling(parse_range(text)?)
    } else {
        text.split(',').map(parse_size).collect::<Result<_, _>>()?
    };
    Ok(Sizes(sizes))
}

/// Reads `1..4M`, or `8` as the range of that size alone.
pub(crate) fn parse_range(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let (first, last) = (parse_size(first)?, parse_size(last)?);
    if first > last {
        return Err(format!("the range ends at {last}, before it begins at {first}"));
    }
    Ok(first..=last)
}

fn doubling(range: RangeInclusive<u64>) -> Vec<u64> {
    let (first, last) = range.into_inner();
    let mut sizes = vec![first];
    let mut next = Some(first.max(1));
    if first != 0 {
        next = first.checked_mul(2);
    }
    while let Some(size) = next.filter(|&size| size <= last) {
        sizes.push(size);
        next = size.checked_mul(2);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_double_and_lists_keep_their_order() {
        assert_eq!(parse("1..8").unwrap().0, [1, 2, 4, 8]);
        assert_eq!(parse("3..20").unwrap().0, [3, 6, 12]);
        assert_eq!(parse("0..4").unwrap().0, [0, 1, 2, 4]);
        assert_eq!(parse("1M").unwrap().0, [1 << 20]);
        assert_eq!(parse("8,1K,5").unwrap().0, [8, 1024, 5]);
        assert_eq!(parse("1..4M").unwrap().0.len(), 23);
        for wrong in ["", "8..1", "1..", "x", "1,,2", "1..2..3"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_range("8K"), parse_range("1..2")), (Ok(8192..=8192), Ok(1..=2)));
        assert!(parse_range("2..1").is_err() && parse_range("1,2").is_err());
        assert!(doubling(1 << 63..=u64::MAX).len() == 1);
    }
}
