//! Contexts: found, entered and left.

use super::{ContextHandle, Failure};
use crate::location::DeviceIndex;

/// The state that [`Contexts::leave`] restores.
#[derive(Debug)]
pub(crate) struct Entered {
    /// A context was made current.
    pub(crate) pushed: bool,
    /// The thread's capture mode, where the driver has one.
    pub(crate) capture_mode: Option<std::ffi::c_int>,
}

/// Contexts of the program. A vendor without contexts has one for each device.
pub(crate) trait Contexts {
    /// The calling thread's current context.
    fn current_context(&self) -> Result<Option<ContextHandle>, Failure>;

    /// The device of the current context.
    fn current_device(&self) -> Result<DeviceIndex, Failure>;

    /// A number that no other context of the process has or had; fails for a context that is gone.
    fn context_id(&self, context: ContextHandle) -> Result<u64, Failure>;

    /// Checks whether ids are never used again. Otherwise only entering a context shows that it is gone.
    fn ids_are_unique(&self) -> bool {
        true
    }

    /// The primary context of a device if somebody has activated it.
    fn active_primary(&self, device: DeviceIndex) -> Result<Option<ContextHandle>, Failure>;

    /// Takes a reference to a device's primary context, which is created if need be.
    fn retain_primary(&self, device: DeviceIndex) -> Result<ContextHandle, Failure>;

    /// Gives one reference back.
    fn release_primary(&self, device: DeviceIndex) -> Result<(), Failure>;

    /// Makes a context current, and has the calls that follow on this thread leave captures of other threads alone.
    /// The caller knows that the context is alive.
    fn enter(&self, context: ContextHandle) -> Result<Entered, Failure>;

    /// The same for calls that need no current context.
    fn enter_none(&self) -> Entered;

    /// Ends what `enter` or `enter_none` began, the latest first. On the same thread.
    fn leave(&self, entered: Entered);
}
