//! Discovery of a vendor's driver.

use std::sync::atomic::AtomicBool;

use super::Driver;

/// Looks for a vendor's driver in this process.
pub(crate) trait Discovery: Send + Sync {
    /// False while the driver cannot turn up in this process, so that all memory is host memory. Read before each
    /// classification.
    fn expected(&self) -> &'static AtomicBool;

    /// The driver, if it is in the process. Loads nothing.
    fn driver(&self) -> Option<&'static dyn Driver>;

    /// Checks cheaply whether the process has no driver.
    #[inline]
    fn is_absent(&self) -> bool {
        false
    }

    /// Loads the driver if it is not loaded yet, and initialises it.
    fn initialise(&self) -> Result<(), crate::DeviceError>;
}
