//! Device memory that the library allocates, for programs without a toolkit of the device's vendor.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use cableway::{BufferKind, DeviceBuffer, DeviceIndex};

use crate::arguments::{self, Out};
use crate::code::Failure;
use crate::handle::{Handle, Named, free};
use crate::outcome::guard;
use crate::world::World;

/// An allocation. Copies to it exclude each other.
pub(crate) struct Memory(Mutex<DeviceBuffer>);

impl Named for Memory {
    const TAG: u64 = 0x7b4f_c1d6_de71_ce00;
    const NAME: &'static str = "device buffer";
}

/// Returns the kind that the program numbers so.
fn kind(number: c_int) -> Result<BufferKind, Failure> {
    match number {
        1 => Ok(BufferKind::Device),
        2 => Ok(BufferKind::Managed),
        3 => Ok(BufferKind::Pinned),
        _ => Err(Failure::argument(format!("there is no kind of memory {number}: use a cableway_memory_kind"))),
    }
}

impl Memory {
    fn lock(&self) -> std::sync::MutexGuard<'_, DeviceBuffer> {
        // After a panic no call comes here.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The number of devices.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_device_count(world: *mut Handle<World>, count: *mut c_int) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(count, "the place for the number")?;
        let devices = Handle::get(world)?.devices();
        let found = devices.initialise().and_then(|()| devices.facts()).map_err(cableway::Error::from)?;
        place.set(c_int::try_from(found.devices.len()).unwrap_or(c_int::MAX));
        Ok(())
    })
}

/// Allocates memory of a device.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_device_allocate(
    world: *mut Handle<World>,
    device: c_int,
    kind: c_int,
    bytes: usize,
    buffer: *mut *mut Handle<Memory>,
    address: *mut *mut c_void,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(buffer, "the place for the buffer")?;
        let address = Out::new(address, "the place for the address")?;
        let (devices, kind) = (Handle::get(world)?.devices(), self::kind(kind)?);
        let index = u32::try_from(device);
        let index = index.map_err(|_| Failure::argument(format!("there is no device {device}")))?;
        let allocated = devices.initialise().and_then(|()| DeviceBuffer::new(devices, DeviceIndex(index), kind, bytes));
        let allocated = allocated.map_err(cableway::Error::from)?;
        address.set(allocated.as_device_ptr().cast());
        place.set(Box::into_raw(Handle::new(Memory(Mutex::new(allocated)))));
        Ok(())
    })
}

/// Copies host memory to a buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_device_write(
    buffer: *mut Handle<Memory>,
    offset: usize,
    source: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let source = arguments::array(source.cast::<u8>(), bytes, "the memory to copy")?;
        let written = Handle::get(buffer)?.lock().copy_from_host(offset, source);
        Ok(written.map_err(cableway::Error::from)?)
    })
}

/// Copies a buffer to host memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_device_read(
    buffer: *mut Handle<Memory>,
    offset: usize,
    destination: *mut c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let destination = arguments::array_mut(destination.cast::<u8>(), bytes, "the memory to copy to")?;
        let read = Handle::get(buffer)?.lock().copy_to_host(offset, destination);
        Ok(read.map_err(cableway::Error::from)?)
    })
}

/// Frees a buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_device_free(buffer: *mut *mut Handle<Memory>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe { free(buffer, drop) })
}
