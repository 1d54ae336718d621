//! Contexts: finding, entering and leaving them.

use super::{ContextHandle, Failure};
use crate::location::DeviceIndex;

/// The state that [`Contexts::leave`] restores.
#[derive(Debug)]
pub(crate) struct Entered {
    /// A context was made current.
    pub(crate) pushed: bool,
    /// The device that was current before, where threads have a current device instead of a stack of contexts.
    pub(crate) device: std::ffi::c_int,
    /// The thread's capture mode, where the driver has one.
    pub(crate) capture_mode: Option<std::ffi::c_int>,
}

/// Contexts of the program. A vendor without contexts has one for each device.
pub(crate) trait Contexts {
    /// Returns the calling thread's current context.
    fn current_context(&self) -> Result<Option<ContextHandle>, Failure>;

    /// Returns the device of the current context.
    fn current_device(&self) -> Result<DeviceIndex, Failure>;

    /// Returns a number that no other context of the process has or had. Fails for a destroyed context.
    fn context_id(&self, context: ContextHandle) -> Result<u64, Failure>;

    /// Checks whether ids are never reused. If they are, only entering a context shows that it is destroyed.
    fn ids_are_unique(&self) -> bool {
        true
    }

    /// Returns the primary context of a device if it is active.
    fn active_primary(&self, device: DeviceIndex) -> Result<Option<ContextHandle>, Failure>;

    /// Takes a reference to a device's primary context. Creates the context if necessary.
    fn retain_primary(&self, device: DeviceIndex) -> Result<ContextHandle, Failure>;

    /// Releases one reference.
    fn release_primary(&self, device: DeviceIndex) -> Result<(), Failure>;

    /// Makes a context current. The following calls on this thread leave captures of other threads alone. The caller
    /// knows that the context exists.
    fn enter(&self, context: ContextHandle) -> Result<Entered, Failure>;

    /// Does the same for calls that need no current context.
    fn enter_none(&self) -> Entered;

    /// Undoes `enter` or `enter_none`, the latest first, on the same thread.
    fn leave(&self, entered: Entered);
}
