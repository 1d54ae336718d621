//! The convertor: moves any range of a message's packed bytes between the user's buffer and internal memory.

#[cfg(any(feature = "cuda", feature = "rocm"))]
mod device;
#[cfg(not(any(feature = "cuda", feature = "rocm")))]
#[path = "no_device.rs"]
mod device;
mod host;
mod loops;
mod message;
mod on_device;
mod pieces;

use cableway_common_cuda::{Completion, Devices, Location, MemoryClass, Order, Spread, Strided};

use self::device::DeviceSide;
use self::message::{Message, at};
use self::on_device::Device;
use crate::error::Error;
use crate::layout::Layout;

pub use pieces::Piece;

/// Packs or unpacks one message. The position counts packed bytes. Every call continues at the end of the last one.
/// [`set_position`](Self::set_position) costs nothing, also in the middle of a basic element.
///
/// A convertor of a contiguous message holds no reference to the layout, and its creation allocates nothing.
pub struct Convertor {
    /// The first byte for a contiguous message, else the buffer's address.
    address: *mut u8,
    position: u64,
    size: u64,
    count: u64,
    /// `None` for a contiguous message.
    layout: Option<Layout>,
    receives: bool,
    location: Location,
    device: Device,
}

// SAFETY: the buffer is the user's promise for as long as the convertor is used, on whatever thread.
unsafe impl Send for Convertor {}

impl Convertor {
    /// Creates a convertor that reads `count` elements at `base`, whose memory is at `location` (see
    /// [`Layout::classify`]). If they may span several allocations ([`Layout::in_one_allocation`] is false), it
    /// classifies every block; use its [`location`](Self::location) then.
    ///
    /// # Safety
    /// The elements' bytes stay allocated and unchanged until the convertor and everything that it started are done.
    /// `location` is right.
    #[inline]
    pub unsafe fn for_send(
        layout: &Layout,
        base: *const u8,
        count: u64,
        location: Location,
        devices: &Devices,
    ) -> Convertor {
        Self::new(layout, base.cast_mut(), count, location, devices, false)
    }

    /// Creates a convertor that writes `count` elements at `base`; otherwise as [`for_send`](Self::for_send). As in
    /// MPI, elements must not overlap: the value of a byte that two elements share is undefined.
    ///
    /// # Safety
    /// The elements' bytes stay allocated, and no other code accesses them, until the convertor and everything that it
    /// started are done. `location` is right.
    #[inline]
    pub unsafe fn for_receive(
        layout: &Layout,
        base: *mut u8,
        count: u64,
        location: Location,
        devices: &Devices,
    ) -> Convertor {
        Self::new(layout, base, count, location, devices, true)
    }

    #[inline]
    fn new(
        layout: &Layout,
        base: *mut u8,
        count: u64,
        location: Location,
        devices: &Devices,
        receives: bool,
    ) -> Convertor {
        match layout.contiguous_span(count) {
            Some((offset, size)) if !base.is_null() => {
                let address = at(base, offset);
                let device = Device::of(&location, devices);
                Convertor { address, position: 0, size, count, layout: None, receives, location, device }
            }
            _ => Self::looked_into(layout, base, count, location, devices, receives),
        }
    }

    /// Creates a convertor whose message may lie in several allocations.
    fn looked_into(
        layout: &Layout,
        base: *mut u8,
        count: u64,
        location: Location,
        devices: &Devices,
        receives: bool,
    ) -> Convertor {
        let size = layout.size().saturating_mul(count);
        if size == 0 {
            let (layout, device) = (None, Device::None);
            return Convertor { address: base, position: 0, size, count, layout, receives, location, device };
        }
        let message = Message { layout: Some(layout), count, base };
        let (location, device) = if layout.in_one_allocation(base, count, &location, devices) {
            (location, Device::of(&location, devices))
        } else {
            let (location, side) = DeviceSide::by_block(&message, size, devices);
            (location, side.map_or(Device::None, Device::Used))
        };
        let mixed = device.is_mixed();
        let (address, layout) = match layout.contiguous_span(count) {
            Some((offset, _)) if !mixed => (at(base, offset), None),
            _ => (base, Some(layout.clone())),
        };
        Convertor { address, position: 0, size, count, layout, receives, location, device }
    }

    /// Returns the number of bytes of the message.
    #[inline]
    pub fn packed_size(&self) -> u64 {
        self.size
    }

    /// Returns the number of bytes before the position.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Moves to `position`, at most to the end.
    #[inline]
    pub fn set_position(&mut self, position: u64) {
        self.position = position.min(self.size);
    }

    /// Returns the number of bytes from the position to the end.
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.size - self.position
    }

    /// Returns the location of the buffer; of a mixed one, the location of its first block on a device.
    #[inline]
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Checks whether the buffer lies in several allocations, at least one of them on a device. It then supports
    /// packing and unpacking only: do not pass its pieces to code that expects one kind of memory.
    pub fn is_mixed(&self) -> bool {
        self.device.is_mixed()
    }

    /// Returns the first byte of the message if it is one run of bytes in one allocation. Returns `None` for an empty
    /// message.
    #[inline]
    pub fn contiguous(&self) -> Option<*mut u8> {
        (self.layout.is_none() && self.size != 0).then_some(self.address)
    }

    /// Describes a message in one allocation on a device as blocks at regular distances: the first byte of the blocks'
    /// range, the range's length, and the blocks relative to that byte. Returns `None` for any other message.
    pub fn strided(&self) -> Option<(*mut u8, usize, Strided)> {
        if self.size == 0 || !self.location.on_device() || self.is_mixed() {
            return None;
        }
        let strided = match &self.layout {
            Some(layout) => layout.strided(self.count)?,
            None => Strided::run(self.size),
        };
        let (low, len, inside) = strided.within_span()?;
        Some((at(self.address, low), usize::try_from(len).ok()?, inside))
    }

    /// Describes a message in one allocation on a device for kernels that can now pack it into other device memory and
    /// unpack it from there: the base of its blocks, and the blocks. Returns `None` for any other message. Irregular
    /// blocks of a layout are listed at the first call.
    pub fn spread(&self, devices: &Devices) -> Option<(*mut u8, Spread)> {
        if self.size == 0 || self.location.class != MemoryClass::Device || self.is_mixed() {
            return None;
        }
        let (low, spread) = match &self.layout {
            Some(layout) => (layout.span(self.count)?.0, layout.spread(self.count, devices)?),
            None => (0, Spread::Regular(Strided::run(self.size))),
        };
        let able = devices.kernel_reaches(&self.location, at(self.address, low))
            && devices.packs_between(&self.location, &spread);
        able.then_some((self.address, spread))
    }

    /// Packs up to `len` bytes into host memory at `out`, and waits for them. Returns their number.
    ///
    /// # Safety
    /// `len` bytes at `out` are exclusively writable and not a part of the message.
    ///
    /// # Errors
    /// The device refused. The content of `out` is undefined, and the position has not moved.
    #[inline]
    pub unsafe fn pack(&mut self, out: *mut u8, len: usize) -> Result<usize, Error> {
        let take = self.next(len);
        if self.device.is_some() {
            // SAFETY: as below.
            return unsafe { self.move_by_device::<true>(out, take) };
        }
        // SAFETY: the constructor's promise for the buffer, the caller's for `out`; `take` bytes remain.
        unsafe { self.move_on_host::<true>(out, take) };
        self.position += take;
        Ok(take as usize)
    }

    /// Unpacks `len` bytes of host memory at `from`, to which another process may be writing: a torn read only yields
    /// arbitrary data. Waits for them, and returns their number, always `len`.
    ///
    /// # Safety
    /// `len` bytes at `from` are readable and not a part of the message.
    ///
    /// # Errors
    /// Fewer than `len` bytes are left, the convertor is for sending, or the device refused. The position is unchanged.
    #[inline]
    pub unsafe fn unpack(&mut self, from: *const u8, len: usize) -> Result<usize, Error> {
        let take = self.accept(len)?;
        if self.device.is_some() {
            // SAFETY: as below.
            return unsafe { self.move_by_device::<false>(from.cast_mut(), take) };
        }
        // SAFETY: as in `pack`; the buffer may be written, as `accept` has checked.
        unsafe { self.move_on_host::<false>(from.cast_mut(), take) };
        self.position += take;
        Ok(take as usize)
    }

    /// [`pack`](Self::pack) into a slice.
    ///
    /// # Errors
    /// As there.
    pub fn pack_slice(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        // SAFETY: the slice is exclusively borrowed, hence no part of a buffer that others may read.
        unsafe { self.pack(out.as_mut_ptr(), out.len()) }
    }

    /// [`unpack`](Self::unpack) from a slice.
    ///
    /// # Errors
    /// As there.
    pub fn unpack_slice(&mut self, from: &[u8]) -> Result<usize, Error> {
        // SAFETY: the slice is borrowed, hence no part of a buffer that only the convertor may touch.
        unsafe { self.unpack(from.as_ptr(), from.len()) }
    }

    /// As [`pack`](Self::pack), but copies by a device may be under way on return: the bytes are at `out` once the
    /// completion is done. `order` is the work that they wait for.
    ///
    /// # Safety
    /// As [`pack`](Self::pack), until the completion is done.
    ///
    /// # Errors
    /// As [`pack`](Self::pack).
    pub unsafe fn start_pack(&mut self, out: *mut u8, len: usize, order: Order) -> Result<(usize, Completion), Error> {
        let take = self.next(len);
        // SAFETY: as in `pack`, until the completion is done.
        unsafe { self.start::<true>(out, take, order) }
    }

    /// As [`unpack`](Self::unpack), but copies by a device may be under way on return: `from` may be reused once the
    /// completion is done. `order` is the work that they wait for.
    ///
    /// # Safety
    /// As [`unpack`](Self::unpack), until the completion is done.
    ///
    /// # Errors
    /// As [`unpack`](Self::unpack).
    pub unsafe fn start_unpack(
        &mut self,
        from: *const u8,
        len: usize,
        order: Order,
    ) -> Result<(usize, Completion), Error> {
        let take = self.accept(len)?;
        // SAFETY: as in `unpack`, until the completion is done.
        unsafe { self.start::<false>(from.cast_mut(), take, order) }
    }

    /// Appends the next pieces of the user's buffer to `out`, at most `max_entries` and `max_bytes`, as for `writev`.
    /// Moves the position behind them, and returns their bytes. Adjacent bytes form one piece.
    pub fn iovec(&mut self, max_entries: usize, max_bytes: u64, out: &mut Vec<Piece>) -> u64 {
        let end = self.position + self.remaining().min(max_bytes);
        if end == self.position || max_entries == 0 {
            return 0;
        }
        let taken = pieces::list(&self.message(), self.position..end, max_entries, out);
        self.position += taken;
        taken
    }

    /// Returns the bytes of the next step if the caller has `len`.
    #[inline]
    fn next(&self, len: usize) -> u64 {
        self.remaining().min(len as u64)
    }

    /// Checks whether `len` bytes may be unpacked now.
    #[inline]
    fn accept(&self, len: usize) -> Result<u64, Error> {
        if !self.receives {
            return Err(Error::ReadOnly);
        }
        if len as u64 > self.remaining() {
            return Err(Error::Overrun { given: len, remaining: self.remaining() });
        }
        Ok(len as u64)
    }

    fn message(&self) -> Message<'_> {
        Message { layout: self.layout.as_ref(), count: self.count, base: self.address }
    }

    /// Moves the next `len` bytes between the buffer and `packed`, and waits.
    ///
    /// # Safety
    /// As [`start`](Self::start), until it returns.
    #[cold]
    unsafe fn move_by_device<const PACK: bool>(&mut self, packed: *mut u8, len: u64) -> Result<usize, Error> {
        let order = self.device.used(&self.location).map_or(Order::None, |device| device.order());
        let before = self.position;
        // SAFETY: the caller's promise, and the completion is waited for.
        let (moved, completion) = unsafe { self.start::<PACK>(packed, len, order) }?;
        if let Err(error) = completion.wait() {
            self.position = before;
            return Err(error.into());
        }
        Ok(moved)
    }

    /// Starts to move the next `len` bytes between the buffer and `packed`.
    ///
    /// # Safety
    /// The buffer is writable for unpacking. `len` bytes at `packed` are valid until the completion is done. `len`
    /// bytes remain.
    unsafe fn start<const PACK: bool>(
        &mut self,
        packed: *mut u8,
        len: u64,
        order: Order,
    ) -> Result<(usize, Completion), Error> {
        let message = Message { layout: self.layout.as_ref(), count: self.count, base: self.address };
        let range = self.position..self.position + len;
        let completion = match self.device.used(&self.location) {
            // SAFETY: the range lies within the message, which is valid by the constructor's promise.
            Some(device) => unsafe { device.transfer::<PACK>(&message, range, packed, order) }?,
            None => {
                // SAFETY: as above, of host memory.
                unsafe { self.move_on_host::<PACK>(packed, len) };
                Completion::DONE
            }
        };
        self.position += len;
        Ok((len as usize, completion))
    }

    /// Moves the next `len` bytes between the buffer and `packed` by the CPU.
    ///
    /// # Safety
    /// The buffer is host memory, and writable for unpacking. `len` bytes at `packed` are valid, and `len` bytes
    /// remain.
    #[inline]
    unsafe fn move_on_host<const PACK: bool>(&self, packed: *mut u8, len: u64) {
        if self.layout.is_none() {
            let user = at(self.address, self.position as i64);
            // SAFETY: a contiguous message's bytes from its position on; both sides are valid by the caller's promise,
            // and do not overlap.
            return unsafe { loops::move_bytes::<PACK>(user, packed, len as usize) };
        }
        let range = self.position..self.position + len;
        // SAFETY: the range lies within the message, whose bytes are valid by the constructor's promise.
        unsafe { host::move_range::<PACK>(&self.message(), range, packed) }
    }
}

impl std::fmt::Debug for Convertor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Convertor")
            .field("address", &self.address)
            .field("position", &self.position)
            .field("size", &self.size)
            .field("contiguous", &self.layout.is_none())
            .field("location", &self.location)
            .finish_non_exhaustive()
    }
}
