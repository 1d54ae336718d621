//! Physical memory, without addresses.

use std::ffi::c_int;
use std::sync::Arc;

use crate::device::Charge;
use crate::store::Piece;

/// Physical memory of `cuMemCreate`. It lives while it has handles or mappings.
pub(crate) struct Physical {
    pub(crate) handle: usize,
    pub(crate) device: c_int,
    pub(crate) piece: Arc<Piece>,
    /// True if other processes can import it. False for imported memory.
    pub(crate) exportable: bool,
    pub(crate) _charge: Option<Charge>,
}

impl Physical {
    pub(crate) fn is_exportable(&self) -> bool {
        self.exportable
    }
}
