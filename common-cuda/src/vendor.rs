//! What a vendor of devices supplies, and the values that it hands out.
//!
//! Contract of a vendor: every method may be called from any thread, with any or no context current, and leaves the
//! caller's current context as it was. None creates a context. None aborts: failures come back as [`DeviceError`].

use std::fmt;

use crate::location::Location;

/// Why something on a device failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{call} failed on {object}: {reason}")]
#[non_exhaustive]
pub struct DeviceError {
    /// The driver's call.
    pub call: &'static str,
    /// The buffer, device or context concerned.
    pub object: String,
    /// The driver's own name for the error, and what to do about it where that is known.
    pub reason: String,
}

/// Which way a copy goes. Decides the stream, so that both directions overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From device to host memory.
    DeviceToHost,
    /// From host to device memory.
    HostToDevice,
    /// Between device memories that this process can address.
    DeviceToDevice,
}

/// What a batch of copies waits for first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Work already in the context's legacy default stream, where the parameter `default_stream_order` says so. For
    /// the first batch of an operation on a user's buffer.
    AfterDefaultStream,
    /// Nothing: an earlier batch of the same operation has waited.
    None,
}

/// Copies in the making; see [`CopyBatch`].
pub(crate) trait VendorBatch {
    /// As [`CopyBatch::copy`].
    unsafe fn copy(&mut self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), DeviceError>;
    /// As [`CopyBatch::copy_2d`].
    unsafe fn copy_2d(
        &mut self,
        dst: (*mut u8, usize),
        src: (*const u8, usize),
        width: usize,
        rows: usize,
    ) -> Result<(), DeviceError>;
    fn finish(self: Box<Self>) -> Result<Completion, DeviceError>;
}

/// Several copies that complete together. Created by [`Devices::batch`](crate::Devices::batch).
///
/// Copies may start at once and in any order among themselves; none is done before the batch's completion is.
pub struct CopyBatch<'d> {
    pub(crate) inner: Box<dyn VendorBatch + 'd>,
}

impl CopyBatch<'_> {
    /// Adds a copy of `len` bytes.
    ///
    /// # Safety
    /// Both ranges stay allocated until the completion is done, and nobody writes the source or touches the
    /// destination until then.
    ///
    /// # Errors
    /// The driver refused; copies added before may still run, so the batch must still be finished or dropped (which
    /// waits).
    pub unsafe fn copy(&mut self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the vendor's precondition.
        unsafe { self.inner.copy(dst, src, len) }
    }

    /// Adds a copy of `rows` rows of `width` bytes; a side is its address and the distance between its rows.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), for every row.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn copy_2d(
        &mut self,
        dst: (*mut u8, usize),
        src: (*const u8, usize),
        width: usize,
        rows: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise is the vendor's precondition.
        unsafe { self.inner.copy_2d(dst, src, width, rows) }
    }

    /// Ends the batch.
    ///
    /// # Errors
    /// The completion could not be recorded.
    pub fn finish(self) -> Result<Completion, DeviceError> {
        self.inner.finish()
    }
}

/// Whether a vendor's asynchronous work is done.
pub(crate) trait VendorCompletion: Send {
    fn poll(&mut self) -> Result<bool, DeviceError>;
    fn wait(&mut self) -> Result<(), DeviceError>;
}

/// Asynchronous copies on their way. Dropped before it is done, it waits: the memory is the caller's again after.
pub struct Completion {
    pub(crate) inner: Option<Box<dyn VendorCompletion>>,
}

impl Completion {
    /// One that is done already.
    pub const DONE: Completion = Completion { inner: None };

    /// Whether the copies are done. Never blocks.
    ///
    /// # Errors
    /// The copies failed; the destination's content is undefined.
    pub fn poll(&mut self) -> Result<bool, DeviceError> {
        let Some(inner) = &mut self.inner else { return Ok(true) };
        let result = inner.poll();
        if !matches!(result, Ok(false)) {
            self.inner = None;
        }
        result
    }

    /// Waits until the copies are done.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn wait(mut self) -> Result<(), DeviceError> {
        self.inner.take().map_or(Ok(()), |mut inner| inner.wait())
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(mut inner) = self.inner.take()
            && let Err(error) = inner.wait()
        {
            log::warn!("copies that nobody waited for: {error}");
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("done", &self.inner.is_none()).finish()
    }
}

/// A host range that is registered with the driver as soon as a device is in use, and again when the context it was
/// registered in is gone. Dropping it unregisters.
#[must_use = "dropping it unregisters the range"]
pub struct HostRegistration {
    #[expect(dead_code, reason = "held for its Drop")]
    pub(crate) inner: Option<Box<dyn Send + Sync>>,
}

/// A vendor of devices.
pub(crate) trait Vendor: Send + Sync {
    fn classify(&self, address: *const u8, len: usize) -> Location;
    fn batch<'d>(
        &'d self,
        at: &Location,
        direction: Direction,
        order: Order,
    ) -> Result<Box<dyn VendorBatch + 'd>, DeviceError>;
    unsafe fn register_host(&self, address: *mut u8, len: usize) -> HostRegistration;
}
