//! Accumulates by the CPU. It copies elements of device memory to the host and back.

use cableway_common_cuda::Devices;

use super::operand::Operand;
use super::{Accumulate, Change, Place, device_failed};
use crate::am::INLINE_LIMIT;
use crate::osc::host::Host;
use crate::osc::wire::Combine;
use crate::refusal::Refusal;

impl Accumulate {
    /// Changes the window's elements. Returns what they were if that was asked for.
    ///
    /// # Safety
    /// The window's memory is valid, and nobody else accesses it as elements of accumulates. The data has
    /// [`data_len`](Self::data_len) bytes.
    pub(super) unsafe fn make(&self, host: &dyn Host, mut data: Operand) -> Result<Option<Operand>, Refusal> {
        let len = usize::try_from(self.reached.len).map_err(|_| Refusal::NoMemory)?;
        if len == 0 {
            return Ok(self.fetch.then_some(Operand::EMPTY));
        }
        // SAFETY: the caller's promise.
        unsafe {
            match self.change {
                Change::Combine(Combine::Keep) if self.fetch => self.read(len).map(Some),
                Change::Combine(Combine::Keep) => Ok(None),
                Change::Combine(Combine::Replace) => {
                    let before = if self.fetch { Some(self.read(len)?) } else { None };
                    self.write(&mut data)?;
                    Ok(before)
                }
                Change::Combine(Combine::Reduce { operation, element }) => {
                    let count = len / self.element.max(1);
                    let data = self.on_host(data)?;
                    let from = data.address();
                    self.combine(len, |into| host.reduce(operation, element, into, from, count))
                }
                Change::CompareSwap => {
                    let (mut before, mut data) = (self.read_to_host(len)?, self.on_host(data)?);
                    let (expected, new) = bytes_of(&mut data)?.split_at(len);
                    if bytes_of(&mut before)? == expected {
                        self.write(&mut Operand::Heap(new.to_vec()))?;
                    }
                    Ok(Some(before))
                }
            }
        }
    }

    /// Combines `len` bytes of elements. `combine` does it in the memory that it gets.
    ///
    /// # Safety
    /// As [`make`](Self::make).
    unsafe fn combine(&self, len: usize, combine: impl FnOnce(*mut u8) -> bool) -> Result<Option<Operand>, Refusal> {
        if let (Place::Host, Some((address, _))) = (&self.place, self.reached.run())
            && address.addr().is_multiple_of(alignment(self.element))
        {
            // SAFETY: the caller's promise.
            let before = if self.fetch { Some(unsafe { self.read(len)? }) } else { None };
            return if combine(address) { Ok(before) } else { Err(Refusal::Reduction) };
        }
        // SAFETY: as above.
        let mut elements = unsafe { self.read_to_host(len)? };
        let before = match self.fetch {
            true => {
                let mut before = Operand::on_host(self.reply.engine(), len)?;
                bytes_of(&mut before)?.copy_from_slice(bytes_of(&mut elements)?);
                Some(before)
            }
            false => None,
        };
        if !combine(elements.address()) {
            return Err(Refusal::Reduction);
        }
        // SAFETY: as above.
        unsafe { self.write(&mut elements)? };
        Ok(before)
    }

    /// Copies the elements.
    ///
    /// # Safety
    /// As [`make`](Self::make).
    unsafe fn read(&self, len: usize) -> Result<Operand, Refusal> {
        if let (Place::Device(at), Some((address, _))) = (&self.place, self.reached.run())
            && len > INLINE_LIMIT
            && let Some(operand) = Operand::on_device(self.reply.engine(), at, len)
        {
            // SAFETY: the caller's promise, and the operand is new.
            unsafe { self.copy(operand.address(), address, len)? };
            return Ok(operand);
        }
        // SAFETY: the caller's promise.
        unsafe { self.read_to_host(len) }
    }

    /// # Safety
    /// As [`make`](Self::make).
    unsafe fn read_to_host(&self, len: usize) -> Result<Operand, Refusal> {
        let (mut operand, devices) = (Operand::on_host(self.reply.engine(), len)?, self.devices());
        let buffer = self.reply.buffer(&self.reached);
        // SAFETY: the caller's promise; the convertor ends here.
        let mut convertor = unsafe { buffer.convertor_to_send(buffer.classify(devices), devices) };
        convertor.pack_slice(bytes_of(&mut operand)?).map_err(|error| device_failed(&error))?;
        Ok(operand)
    }

    /// Replaces the elements.
    ///
    /// # Safety
    /// As [`make`](Self::make).
    unsafe fn write(&self, data: &mut Operand) -> Result<(), Refusal> {
        let Some(bytes) = data.host_bytes() else {
            let (address, len) = self.reached.run().ok_or(Refusal::Device)?;
            // SAFETY: the caller's promise; the data is in memory of its own, which has this length.
            return unsafe { self.copy(address, data.address(), len as usize) };
        };
        let (buffer, devices) = (self.reply.buffer(&self.reached), self.devices());
        // SAFETY: the caller's promise; the convertor ends here.
        let mut convertor = unsafe { buffer.convertor_to_receive(buffer.classify(devices), devices) };
        convertor.unpack_slice(bytes).map(drop).map_err(|error| device_failed(&error))
    }

    /// Returns an operand in memory that the CPU accesses.
    fn on_host(&self, mut operand: Operand) -> Result<Operand, Refusal> {
        if operand.host_bytes().is_some() {
            return Ok(operand);
        }
        let copy = Operand::on_host(self.reply.engine(), operand.len())?;
        // SAFETY: both have this length, and nobody else uses them.
        unsafe { self.copy(copy.address(), operand.address(), operand.len())? };
        Ok(copy)
    }

    /// Copies between any two kinds of memory, and waits.
    ///
    /// # Safety
    /// As [`Devices::copy`].
    unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize) -> Result<(), Refusal> {
        // SAFETY: the caller's promise.
        unsafe { self.devices().copy_for_peer(to, from, len) }.map_err(|error| device_failed(&error))
    }

    fn devices(&self) -> &Devices {
        self.reply.engine().devices()
    }
}

/// Returns the bytes of an operand in host memory.
fn bytes_of(operand: &mut Operand) -> Result<&mut [u8], Refusal> {
    operand.host_bytes().ok_or(Refusal::Device)
}

/// Returns what the address of an element must be a multiple of, for the host's functions.
fn alignment(element: usize) -> usize {
    const LARGEST: usize = align_of::<u128>();
    (1 << element.trailing_zeros()).min(LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignments_are_those_of_the_widest_number_in_an_element() {
        assert_eq!([1, 2, 4, 6, 8, 12, 16, 32].map(alignment), [1, 2, 4, 2, 8, 4, 16, 16]);
    }
}
