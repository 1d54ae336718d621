//! Discovery of a vendor's driver.

use std::sync::atomic::AtomicBool;

use super::Driver;

/// Looks for a vendor's driver in this process.
pub(crate) trait Discovery: Send + Sync {
    /// Returns false while the driver cannot appear in this process, so that all memory is host memory. Called before
    /// each classification.
    /// classification.
    fn expected(&self) -> &'static AtomicBool;

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
