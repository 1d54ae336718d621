//! The buffer of a posted receive.

use cableway_btl::{Region, SharedBytes};
use cableway_common_cuda::{Completion, CopyOrder, Devices, Location, Order};
use cableway_datatype::Convertor;

use super::user_buffer;
use crate::buffer::Buffer;
use crate::error::Error;

/// The buffer of an unmatched receive.
pub(crate) enum ReceiveBuffer {
    /// Taken out.
    None,
    /// One run of host memory, by far the most common. This is all that a small message needs to know.
    Plain { address: *mut u8, len: u64 },
    /// Any other buffer, and the order of copies since it was posted.
    Converted(Convertor, CopyOrder),
}

impl ReceiveBuffer {
    /// Describes a new buffer.
    ///
    /// # Safety
    /// The buffer is valid for writes, and exclusively so, until the message is in it.
    #[inline(always)]
    pub(crate) unsafe fn renew(&mut self, buffer: Buffer<'_>, devices: &Devices) {
        let location = buffer.classify(devices);
        match buffer.contiguous() {
            Some((address, len)) if !location.on_device() => *self = ReceiveBuffer::Plain { address, len },
            // SAFETY: the caller's promise.
            _ => *self = unsafe { Self::converted(buffer, location, devices) },
        }
    }

    /// # Safety
    /// As [`renew`](Self::renew).
    #[inline(never)]
    unsafe fn converted(buffer: Buffer<'_>, location: Location, devices: &Devices) -> Self {
        // SAFETY: the caller's promise.
        let convertor = unsafe { buffer.convertor_to_receive(location, devices) };
        ReceiveBuffer::Converted(convertor, buffer.order())
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        match self {
            ReceiveBuffer::None => 0,
            ReceiveBuffer::Plain { len, .. } => *len,
            ReceiveBuffer::Converted(convertor, _) => convertor.packed_size(),
        }
    }

    #[inline]
    pub(crate) fn is_on_device(&self) -> bool {
        self.on_device().is_some()
    }

    /// Returns its location, if that is on a device.
    #[inline]
    pub(crate) fn on_device(&self) -> Option<&Location> {
        match self {
            ReceiveBuffer::Converted(convertor, _) => {
                Some(convertor.location()).filter(|location| location.on_device())
            }
            _ => None,
        }
    }

    /// Returns the address of its first byte, for error texts.
    pub(crate) fn address(&self) -> usize {
        match self {
            ReceiveBuffer::None => 0,
            ReceiveBuffer::Plain { address, .. } => *address as usize,
            ReceiveBuffer::Converted(convertor, _) => convertor.contiguous().map_or(0, |address| address as usize),
        }
    }

    /// Copies all of `from` if it fits into one run of host memory. Returns false if nothing was copied.
    #[inline(always)]
    pub(crate) fn take_plain(&mut self, from: SharedBytes<'_>) -> bool {
        match *self {
            ReceiveBuffer::Plain { address, len } if from.len() as u64 <= len => {
                // SAFETY: as in `fill`.
                unsafe { copy(from.as_ptr(), address, from.len()) };
                true
            }
            _ => false,
        }
    }

    /// Copies the first `len` bytes of `from`, and waits if a device copies. `len` is at most [`len`](Self::len).
    #[inline]
    pub(crate) fn fill(&mut self, from: SharedBytes<'_>, len: usize) -> Result<(), Error> {
        match self {
            ReceiveBuffer::None => Ok(()),
            ReceiveBuffer::Plain { address, len: capacity } => {
                let len = len.min(*capacity as usize).min(from.len());
                // SAFETY: `len` bytes are readable, and writable by the promise of `renew`'s caller. A payload is not
                // part of a user's buffer.
                unsafe { copy(from.as_ptr(), *address, len) };
                Ok(())
            }
            ReceiveBuffer::Converted(convertor, _) => {
                // SAFETY: the payload is readable and not part of a user's buffer.
                match unsafe { convertor.unpack(from.as_ptr(), len.min(from.len())) } {
                    Ok(_) => Ok(()),
                    Err(error) => Err(Error::of_copy(error, convertor)),
                }
            }
        }
    }

    /// Returns the first `len` bytes if they are one run on a device, with the order of a copy there. `len` is at most
    /// [`len`](Self::len).
    pub(crate) fn region(&self, len: usize, devices: &Devices) -> Option<Region> {
        match self {
            ReceiveBuffer::Converted(convertor, posted) if len != 0 && convertor.location().on_device() => {
                user_buffer::region(convertor, 0, len as u64, order(convertor, *posted, devices))
            }
            _ => None,
        }
    }

    /// Copies as [`fill`](Self::fill) does, but a device's copies may still be under way.
    ///
    /// # Safety
    /// `len` bytes at `from` stay readable until the completion is done.
    pub(crate) unsafe fn start_fill(
        &mut self,
        from: *const u8,
        len: usize,
        devices: &Devices,
    ) -> Result<Completion, Error> {
        match self {
            // SAFETY: the caller's promise.
            ReceiveBuffer::Converted(convertor, posted) => unsafe {
                let started = convertor.start_unpack(from, len, order(convertor, *posted, devices));
                started.map(|(_, completion)| completion).map_err(|error| Error::of_copy(error, convertor))
            },
            // SAFETY: the caller's promise.
            _ => self.fill(unsafe { SharedBytes::new(from, len) }, len).map(|()| Completion::DONE),
        }
    }

    /// Returns the convertor that unpacks a message of many parts, and the order of copies since the receive was posted.
    pub(crate) fn into_convertor(self, devices: &Devices) -> Option<(Convertor, CopyOrder)> {
        match self {
            ReceiveBuffer::None => None,
            ReceiveBuffer::Plain { address, len } => {
                let buffer = Buffer::bytes(address, len);
                // SAFETY: the promise of `renew`'s caller.
                let convertor = unsafe { buffer.convertor_to_receive(buffer.classify(devices), devices) };
                Some((convertor, CopyOrder::begin()))
            }
            ReceiveBuffer::Converted(convertor, posted) => Some((convertor, posted)),
        }
    }
}

/// Returns the order of a copy to a posted buffer.
fn order(convertor: &Convertor, posted: CopyOrder, devices: &Devices) -> Order {
    let mixed = convertor.is_mixed() && !posted.is_settled();
    if mixed { Order::AfterDefaultStream } else { posted.of(convertor.location(), devices) }
}

/// Copies `len` bytes; a single word without a call.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    if len == WORD {
        // SAFETY: the caller's promise.
        unsafe { from.copy_to_nonoverlapping(to, WORD) }
    } else if len != 0 {
        // SAFETY: the caller's promise.
        unsafe { from.copy_to_nonoverlapping(to, len) }
    }
}
