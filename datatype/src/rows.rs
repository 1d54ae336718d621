//! Rows of bytes: the layout of a part of a matrix.

use crate::datatype::Datatype;
use crate::error::Error;
use crate::layout::Layout;
use crate::predefined::Predefined;

impl Layout {
    /// Makes the layout of `count` rows of `len` bytes, `stride` bytes from the beginning of one to that of the next.
    ///
    /// # Errors
    /// The rows reach beyond 64 bits.
    pub fn rows(count: u64, len: u64, stride: i64) -> Result<Layout, Error> {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        Ok(Datatype::hvector(number(count), number(len), stride, &Predefined::Byte.datatype())?.commit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_begin_at_their_stride() {
        let rows = Layout::rows(3, 8, 20).unwrap();
        assert_eq!((rows.size(), rows.span(1), rows.block_count()), (24, Some((0, 48)), 3));
        assert_eq!(Layout::rows(3, 8, -20).unwrap().span(1), Some((-40, 48)));
        assert!(Layout::rows(2, 8, 8).unwrap().is_contiguous(1) && Layout::rows(0, 8, 8).unwrap().span(1).is_none());
        assert!(Layout::rows(u64::MAX, 8, 8).is_err() && Layout::rows(2, u64::MAX, 8).is_err());
    }
}
