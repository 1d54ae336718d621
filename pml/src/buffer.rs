//! Describes user memory: its location and layout.

use std::sync::LazyLock;

use cableway_common_cuda::{CopyOrder, DeviceAllocation, Devices, Location};
use cableway_datatype::{Convertor, Layout, Predefined};

use crate::error::Error;

/// A user's buffer to send from or receive into.
#[derive(Clone, Copy)]
pub struct Buffer<'l> {
    address: *mut u8,
    /// Number of elements of `layout`, or of bytes without a layout.
    count: u64,
    layout: Option<&'l Layout>,
    settled: bool,
    in_host: bool,
    allocation: Option<DeviceAllocation>,
}

impl std::fmt::Debug for Buffer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.layout.is_some() { "elements" } else { "bytes" };
        write!(f, "Buffer({} {kind} at {:p})", self.count, self.address)
    }
}

/// The layout of plain bytes.
static BYTE: LazyLock<Layout> = LazyLock::new(|| Predefined::Byte.datatype().commit());

impl<'l> Buffer<'l> {
    /// An empty buffer.
    pub const EMPTY: Buffer<'static> = Buffer {
        address: std::ptr::null_mut(),
        count: 0,
        layout: None,
        settled: false,
        in_host: false,
        allocation: None,
    };

    /// Describes `len` contiguous bytes of host or device memory. `address` is ignored if `len` is 0. A send only reads
    /// the bytes.
    #[inline]
    pub fn bytes(address: *const u8, len: u64) -> Self {
        Buffer { address: address.cast_mut(), count: len, ..Buffer::EMPTY }
    }

    /// Describes `count` elements of `layout` at `address`. Operations keep the layout as long as they need it.
    #[inline]
    pub fn typed(address: *const u8, count: u64, layout: &'l Layout) -> Self {
        Buffer { address: address.cast_mut(), count, layout: Some(layout), ..Buffer::EMPTY }
    }

    /// Describes the same buffer, which lies in a known allocation, so that the driver is not asked where it lies. `None` has
    /// no effect, nor has the allocation of a buffer with a layout. The caller of an unsafe function that takes the buffer
    /// promises that the allocation exists and holds all bytes.
    #[inline]
    pub fn within(mut self, allocation: Option<DeviceAllocation>) -> Self {
        self.allocation = allocation;
        self
    }

    /// Describes the same buffer, which lies in host memory, so that the driver is asked only if it matters whether the memory
    /// is page-locked. It has no effect on a buffer with a layout that is not one run.
    #[inline]
    pub fn in_host(mut self) -> Self {
        self.in_host = true;
        self
    }

    /// Describes the same buffer after the program's work on it: operations follow no default stream. A stream that waits
    /// for such an operation may be one that the default stream waits for.
    pub fn settled(mut self) -> Self {
        self.settled = true;
        self
    }

    /// Describes the same buffer for an operation that a peer has asked for. While mappings are held, the default stream may
    /// wait for one of the program's streams, which may wait for the operation. So it follows no default stream then.
    pub(crate) fn for_peer(self, devices: &Devices) -> Self {
        if devices.are_mappings_held() { self.settled() } else { self }
    }

    /// Returns the allocation that holds the buffer, if it is known.
    #[inline]
    pub(crate) fn allocation(&self) -> Option<DeviceAllocation> {
        self.allocation
    }

    /// Returns whether the buffer is known to lie in host memory.
    pub(crate) fn is_in_host(&self) -> bool {
        self.in_host
    }

    /// Returns whether operations follow no default stream.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Returns the order of an operation on the buffer that begins now.
    #[inline]
    pub(crate) fn order(&self) -> CopyOrder {
        let mut order = CopyOrder::begin();
        if self.settled {
            order.settle();
        }
        order
    }

    /// Returns the address from which the layout's offsets count.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// Returns the number of elements, or of bytes without a layout.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the layout of an element, or `None` for plain bytes.
    pub fn layout(&self) -> Option<&'l Layout> {
        self.layout
    }

    /// Returns the packed length in bytes. If it does not fit in 64 bits, returns the maximum, which no operation
    /// accepts.
    #[inline]
    pub fn len(&self) -> u64 {
        self.packed_len().unwrap_or(u64::MAX)
    }

    /// Returns whether the buffer has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the packed length in bytes.
    ///
    /// # Errors
    /// The length does not fit in 64 bits.
    #[inline]
    pub fn packed_len(&self) -> Result<u64, Error> {
        match self.layout {
            None => Ok(self.count),
            Some(layout) => Ok(layout.packed_size(self.count)?),
        }
    }

    /// Returns the address and length if the buffer is one run of bytes, or empty.
    #[inline]
    pub(crate) fn contiguous(&self) -> Option<(*mut u8, u64)> {
        match self.layout {
            None => Some((self.address, self.count)),
            Some(layout) => match layout.contiguous_span(self.count) {
                Some((offset, len)) if !self.address.is_null() => {
                    Some((self.address.wrapping_offset(offset as isize), len))
                }
                None if self.count == 0 || layout.size() == 0 => Some((self.address, 0)),
                // From MPI_BOTTOM even one run may span allocations. The convertor finds that out.
                _ => None,
            },
        }
    }

    fn layout_or_bytes(&self) -> &'l Layout {
        self.layout.unwrap_or_else(|| &BYTE)
    }

    /// Copies the description, for a request that outlives the borrow.
    pub(crate) fn to_owned(self) -> OwnedBuffer {
        let Buffer { address, count, layout, settled, in_host, allocation } = self;
        OwnedBuffer { address, count, layout: layout.cloned(), settled, in_host, allocation }
    }

    /// Returns where its data lies. Asks the driver only if that may be necessary.
    #[inline]
    pub(crate) fn classify(&self, devices: &Devices) -> Location {
        match self.contiguous() {
            Some(run) => self.classify_run(run, devices),
            None => self.layout_or_bytes().classify(self.address, self.count, devices),
        }
    }

    /// As [`classify`](Self::classify), for the run that [`contiguous`](Self::contiguous) has returned.
    #[inline]
    pub(crate) fn classify_run(&self, (address, len): (*mut u8, u64), devices: &Devices) -> Location {
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        if self.in_host {
            return devices.classify_in_host(address, bytes);
        }
        let known = self.allocation.filter(|_| self.layout.is_none() && len != 0);
        let known = known.and_then(|allocation| devices.located(allocation));
        known.unwrap_or_else(|| devices.classify(address, bytes))
    }

    /// # Safety
    /// The buffer is valid for reads until the convertor and all operations that it started are done.
    #[inline]
    pub(crate) unsafe fn convertor_to_send(&self, location: Location, devices: &Devices) -> Convertor {
        // SAFETY: the caller's promise; the location is that of this buffer.
        let mut convertor =
            unsafe { Convertor::for_send(self.layout_or_bytes(), self.address, self.count, location, devices) };
        if self.settled {
            convertor.follow_nothing();
        }
        convertor
    }

    /// # Safety
    /// The buffer is valid for writes, and exclusively so, until the convertor and all operations that it started are
    /// done.
    #[inline]
    pub(crate) unsafe fn convertor_to_receive(&self, location: Location, devices: &Devices) -> Convertor {
        // SAFETY: the caller's promise; the location is that of this buffer.
        let mut convertor =
            unsafe { Convertor::for_receive(self.layout_or_bytes(), self.address, self.count, location, devices) };
        if self.settled {
            convertor.follow_nothing();
        }
        convertor
    }
}

/// A buffer and its layout.
pub(crate) struct OwnedBuffer {
    address: *mut u8,
    count: u64,
    layout: Option<Layout>,
    settled: bool,
    in_host: bool,
    allocation: Option<DeviceAllocation>,
}

// SAFETY: the address is not dereferenced here. Code that does so relies on the host's promise.
unsafe impl Send for OwnedBuffer {}
// SAFETY: as above.
unsafe impl Sync for OwnedBuffer {}

impl OwnedBuffer {
    pub(crate) fn borrow(&self) -> Buffer<'_> {
        let &OwnedBuffer { address, count, ref layout, settled, in_host, allocation } = self;
        Buffer { address, count, layout: layout.as_ref(), settled, in_host, allocation }
    }
}
