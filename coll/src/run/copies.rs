//! Copies of contiguous data within a process.

use cableway_common_cuda::{Completion, DeviceError, Devices, Direction, Location, Order};

/// The largest copy between a device and host memory that the driver does not know. A message carries more in pieces
/// through registered memory, because a driver copies to and from other host memory slowly.
const LARGEST_HOST_COPY: usize = 256 << 10;

/// How copies are made.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// They follow no default stream.
    pub(super) settled: bool,
    /// The host memory of a copy between a device and the host is registered.
    pub(super) registered: bool,
}

/// Starts a copy between two runs of bytes: host memory is copied at once, device memory by a device. Returns `None` for
/// runs of different lengths, for memory of two devices or contexts, and for much data in host memory that is not
/// registered: a message copies these.
///
/// # Safety
/// Both runs are allocated and do not overlap, until the completion is done. Until then nobody writes the source or
/// accesses the destination.
///
/// # Errors
/// The device refused.
pub(super) unsafe fn start(
    devices: &Devices,
    (to, len): (*mut u8, u64),
    (from, from_len): (*mut u8, u64),
    Terms { settled, registered }: Terms,
) -> Result<Option<Completion>, DeviceError> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if len as u64 != from_len {
        return Ok(None);
    }
    let (there, here) = (devices.classify(to, len), devices.classify(from, len));
    let whole = |at: &Location, address: *mut u8| devices.one_allocation(at, address, len);
    if !whole(&there, to) || !whole(&here, from) {
        return Ok(None);
    }
    let Some((direction, at)) = Direction::between(&here, &there) else {
        // SAFETY: the caller's promise, and both are host memory.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        return Ok(Some(Completion::DONE));
    };
    let is_left_to_a_message = match direction {
        Direction::DeviceToDevice | Direction::WithinDevice => {
            here.device != there.device || here.context != there.context
        }
        Direction::DeviceToHost | Direction::HostToDevice => !registered && len > LARGEST_HOST_COPY,
    };
    if is_left_to_a_message {
        return Ok(None);
    }
    let order = if settled { Order::None } else { devices.order(&here).max(devices.order(&there)) };
    let mut batch = devices.batch(&at, direction, order)?;
    // SAFETY: the caller's promise.
    unsafe { batch.copy(to, from, len) };
    batch.finish().map(Some)
}
