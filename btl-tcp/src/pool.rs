//! Buffers for fragments and for messages that do not fit the receive buffer: page-aligned, registered with the
//! driver once a device is in use, used again and again.

use std::ptr::NonNull;
use std::sync::Arc;

use cableway_common_cuda::Devices;
use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use cableway_btl::Error;

use crate::NAME;

/// Free buffers kept per size; more are given back to the system.
const KEPT_FREE: usize = 32;
const PAGE: usize = 4096;

/// A buffer of the pool; dropping it gives it back.
pub(crate) struct Buffer {
    memory: Option<Memory>,
    class: usize,
    pool: Arc<Pool>,
}

impl Buffer {
    #[inline]
    pub(crate) fn address(&self) -> NonNull<u8> {
        match &self.memory {
            Some(memory) => memory.address,
            None => NonNull::dangling(),
        }
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let mut free = self.pool.classes[self.class].free.lock();
            if free.len() < KEPT_FREE {
                free.push(memory);
            }
        }
    }
}

/// Buffers of a few sizes.
pub(crate) struct Pool {
    devices: Devices,
    classes: Vec<Class>,
}

struct Class {
    len: usize,
    free: Mutex<Vec<Memory>>,
}

impl Pool {
    /// A pool of buffers with room for each of `sizes` bytes.
    pub(crate) fn new(devices: Devices, sizes: &[usize]) -> Arc<Self> {
        let mut lengths: Vec<usize> = sizes.iter().map(|size| size.next_multiple_of(PAGE)).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let classes = lengths.into_iter().map(|len| Class { len, free: Mutex::default() }).collect();
        Arc::new(Pool { devices, classes })
    }

    /// A buffer of at least `len` bytes.
    ///
    /// # Errors
    /// Longer than the longest of the pool's sizes, or the system has no memory.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Result<Buffer, Error> {
        let (index, class) =
            self.classes.iter().enumerate().find(|(_, class)| class.len >= len).ok_or_else(|| Error::Unavailable {
                btl: NAME,
                operation: "alloc",
                reason: format!("{len} bytes are more than the largest fragment"),
            })?;
        let free = class.free.lock().pop();
        let memory = match free {
            Some(memory) => memory,
            None => Memory::map(class.len, &self.devices)
                .map_err(|error| Error::system(NAME, format!("cannot map a buffer of {} bytes", class.len), error))?,
        };
        Ok(Buffer { memory: Some(memory), class: index, pool: Arc::clone(self) })
    }
}

/// An anonymous mapping, registered with the driver while it lives.
struct Memory {
    address: NonNull<u8>,
    len: usize,
    registration: Option<cableway_common_cuda::HostRegistration>,
}

// SAFETY: the mapping belongs to whoever owns this value, on whatever thread.
unsafe impl Send for Memory {}
// SAFETY: a shared reference gives out the address only; what happens there is its user's concern.
unsafe impl Sync for Memory {}

impl Memory {
    fn map(len: usize, devices: &Devices) -> std::io::Result<Self> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let address = NonNull::new(address.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        // SAFETY: the range stays mapped until `drop`, which ends the registration first.
        let registration = unsafe { devices.register_host(address.as_ptr(), len) };
        Ok(Memory { address, len, registration: Some(registration) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.registration = None;
        // SAFETY: the mapping is ours alone, as long as stated, and nobody uses it after its owner is gone.
        if let Err(errno) = unsafe { munmap(self.address.as_ptr().cast(), self.len) } {
            log::warn!("{NAME}: cannot unmap a buffer of {} bytes: {errno}", self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_fit() {
        let pool = Pool::new(Devices::none(), &[100, 70_000]);
        let small = pool.take(100).unwrap();
        assert_eq!(small.capacity(), PAGE);
        assert_eq!(pool.take(4097).unwrap().capacity(), 18 * PAGE);
        assert!(pool.take(1 << 20).is_err());
        let address = small.address();
        drop(small);
        assert_eq!(pool.take(1).unwrap().address(), address);
    }
}
