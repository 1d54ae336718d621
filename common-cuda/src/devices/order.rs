//! The order of messages after the program's default streams.

use super::Devices;
use crate::copies::Completion;
use crate::error::DeviceError;
use crate::location::Location;
use crate::order;

/// A point in time, as [`Devices::settled_since`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Devices {
    /// Returns a completion that is done with the present work of the default stream of the buffer at `at`. Let another
    /// process read or write the buffer only after that. For host memory, or if the parameter `default_stream_order`
    /// requires no order, it is done at once.
    ///
    /// # Errors
    /// The buffer's context is destroyed, or the calling thread captures a graph.
    pub fn default_stream(&self, at: &Location) -> Result<Completion, DeviceError> {
        match self.platform() {
            Some(platform) if at.on_device() => platform.default_stream(at),
            _ => Ok(Completion::DONE),
        }
    }

    /// Returns the present moment. Store it with an operation that begins.
    pub fn moment(&self) -> Moment {
        Moment(order::moment())
    }

    /// Checks whether the work that the default stream of the buffer at `at` had at a moment is known to be done. Then
    /// nothing needs to wait for it ([`Order::None`](crate::Order::None)). Makes no driver call.
    pub fn settled_since(&self, at: &Location, moment: Moment) -> bool {
        self.platform().is_none_or(|platform| platform.settled_since(at, moment.0))
    }

    /// Asks the driver whether that stream is idle. [`settled_since`](Self::settled_since) uses the answer. Takes more
    /// than a microsecond, so call it when there is nothing else to do.
    ///
    /// # Errors
    /// As [`default_stream`](Self::default_stream).
    pub fn ask_default_stream(&self, at: &Location) -> Result<bool, DeviceError> {
        match self.platform() {
            Some(platform) if at.on_device() => platform.ask_default_stream(at),
            _ => Ok(true),
        }
    }
}
