//! Discovery of a vendor's driver.

use std::sync::atomic::AtomicBool;

use super::{Driver, Numbering};

/// Looks for a vendor's driver in this process.
pub(crate) trait Discovery: Send + Sync {
    /// Returns the name of the vendor's interface.
    fn name(&self) -> &'static str;

    /// Returns false while the driver cannot appear in this process, so that all memory is host memory. Called before
    /// each classification.
    fn expected(&self) -> &'static AtomicBool;

    /// Returns the numbers of the vendor's devices in this process.
    fn numbers(&self) -> &'static Numbering;

    /// Returns false if the machine certainly has none of the vendor's devices, and no driver of the vendor was named.
    fn may_be_here(&self) -> bool {
        true
    }

    /// Returns the driver if the process has loaded it. Loads nothing.
    fn driver(&self) -> Option<&'static dyn Driver>;

    /// Checks cheaply whether the process has no driver.
    #[inline]
    fn is_absent(&self) -> bool {
        false
    }

    /// Loads the driver if it is not loaded yet, and initialises it.
    fn initialise(&self) -> Result<(), crate::DeviceError>;
}
