//! Registered memory.

use std::ffi::{c_int, c_void};

use cableway::RawMemory;

use crate::arguments::{self, Out, rank};
use crate::code::Failure;
use crate::handle::{Handle, Named, free};
use crate::memory::Memory;
use crate::outcome::guard;
use crate::world::World;

/// Memory of this process that others read and write.
pub(crate) struct Registration(cableway::Registration<RawMemory>);

impl Named for Registration {
    const TAG: u64 = 0x7b4f_c1d6_4e61_57e4;
    const NAME: &'static str = "registration";
}

/// `cableway_remote_key`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RemoteKey {
    bytes: [u8; size_of::<cableway::RemoteKey>()],
}

impl Registration {
    pub(crate) fn memory(&self) -> &cableway::RegisteredMemory {
        &self.0
    }
}

impl RemoteKey {
    /// Returns the key at an address.
    ///
    /// # Safety
    /// The address is null, or a key is there.
    pub(crate) unsafe fn read(key: *const RemoteKey, name: &str) -> Result<cableway::RemoteKey, Failure> {
        if key.is_null() {
            return Err(arguments::null(name));
        }
        // SAFETY: the caller's promise. Any bytes are a key, which the owner of its memory checks.
        Ok(unsafe { key.cast::<cableway::RemoteKey>().read_unaligned() })
    }
}

/// How a word is compared.
#[derive(Clone, Copy)]
struct Comparison(fn(&u64, &u64) -> bool);

impl Comparison {
    fn new(number: c_int) -> Result<Comparison, Failure> {
        Ok(Comparison(match number {
            1 => u64::eq,
            2 => u64::ne,
            3 => u64::lt,
            4 => u64::le,
            5 => u64::gt,
            6 => u64::ge,
            _ => return Err(Failure::argument(format!("there is no comparison {number}: use a cableway_comparison"))),
        }))
    }
}

/// Registers memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_register(
    world: *mut Handle<World>,
    address: *mut c_void,
    bytes: usize,
    made: *mut *mut Handle<Registration>,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(made, "the place for the registration")?;
        // Checks the address and the length.
        Memory { address, count: bytes, datatype: std::ptr::null() }.buffer()?;
        let registration = Handle::get(world)?.world().register(RawMemory::new(address, bytes as u64))?;
        place.set(Box::into_raw(Handle::new(Registration(registration))));
        Ok(())
    })
}

/// Ends a registration.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_deregister(registration: *mut *mut Handle<Registration>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe { free(registration, drop) })
}

/// The key of a registration.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_registration_key(registration: *mut Handle<Registration>, key: *mut RemoteKey) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(key, "the place for the key")?;
        let key = *Handle::get(registration)?.0.key();
        // SAFETY: the key is plain data without padding, of the same size.
        place.set(std::mem::transmute::<cableway::RemoteKey, RemoteKey>(key));
        Ok(())
    })
}

/// Reads a word.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_registration_load(
    registration: *mut Handle<Registration>,
    offset: u64,
    value: *mut u64,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(value, "the place for the value")?;
        place.set(Handle::get(registration)?.0.load(offset)?);
        Ok(())
    })
}

/// Waits until a word compares to a value.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_registration_wait(
    registration: *mut Handle<Registration>,
    offset: u64,
    comparison: c_int,
    value: u64,
    from: c_int,
    seen: *mut u64,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let (registration, Comparison(holds)) = (Handle::get(registration)?, Comparison::new(comparison)?);
        let found = registration.0.wait_until(offset, rank(from)?, |word| holds(&word, &value))?;
        if !seen.is_null() {
            seen.write(found);
        }
        Ok(())
    })
}

/// Copies registered memory to other memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_registration_read(
    registration: *mut Handle<Registration>,
    offset: u64,
    buffer: *mut c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let mut buffer = Memory { address: buffer, count: bytes, datatype: std::ptr::null() }.buffer()?;
        Ok(Handle::get(registration)?.0.read(offset, &mut buffer)?)
    })
}

/// Copies other memory to registered memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_registration_write(
    registration: *mut Handle<Registration>,
    offset: u64,
    buffer: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let buffer = Memory { address: buffer, count: bytes, datatype: std::ptr::null() }.buffer()?;
        Ok(Handle::get(registration)?.0.write(offset, &buffer)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_those_of_their_numbers() {
        let found =
            |number| [(1, 2), (2, 2), (3, 2)].map(|(word, value)| Comparison::new(number).unwrap().0(&word, &value));
        assert_eq!(found(1), [false, true, false]);
        assert_eq!(found(2), [true, false, true]);
        assert_eq!(found(3), [true, false, false]);
        assert_eq!(found(4), [true, true, false]);
        assert_eq!(found(5), [false, false, true]);
        assert_eq!(found(6), [false, true, true]);
        assert!(Comparison::new(0).is_err() && Comparison::new(7).is_err());
    }
}
