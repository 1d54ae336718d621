//! Communicators.

use std::ffi::c_int;

use crate::arguments::{Out, UNDEFINED};
use crate::code::Failure;
use crate::handle::{Handle, Named, free};
use crate::outcome::guard;

/// A communicator, and whether it belongs to the world.
pub(crate) struct Communicator {
    communicator: cableway::Communicator,
    of_world: bool,
}

impl Named for Communicator {
    const TAG: u64 = 0x7b4f_c1d6_c033_0001;
    const NAME: &'static str = "communicator";
}

/// A handle of the C program.
pub(crate) type Handled = *mut Handle<Communicator>;

impl Communicator {
    pub(crate) fn of_world(communicator: &cableway::Communicator) -> Self {
        Communicator { communicator: communicator.clone(), of_world: true }
    }

    fn own(communicator: cableway::Communicator) -> Handled {
        Box::into_raw(Handle::new(Communicator { communicator, of_world: false }))
    }
}

/// Returns the communicator that a handle names.
///
/// # Safety
/// The same as that of [`Handle::get`].
#[inline]
pub(crate) unsafe fn named<'a>(handle: Handled) -> Result<&'a cableway::Communicator, Failure> {
    // SAFETY: the caller's promise.
    Ok(&unsafe { Handle::get(handle)? }.communicator)
}

/// The rank of this process.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_rank(communicator: Handled, rank: *mut c_int) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        Out::new(rank, "the place for the rank")?.set(named(communicator)?.rank().cast_signed());
        Ok(())
    })
}

/// The number of processes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_size(communicator: Handled, size: *mut c_int) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        Out::new(size, "the place for the size")?.set(named(communicator)?.size().cast_signed());
        Ok(())
    })
}

/// A communicator with the same group and a context of its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_dup(communicator: Handled, made: *mut Handled) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(made, "the place for the communicator")?;
        place.set(Communicator::own(named(communicator)?.dup()?));
        Ok(())
    })
}

/// A communicator for each colour.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_split(communicator: Handled, colour: c_int, key: c_int, made: *mut Handled) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(made, "the place for the communicator")?;
        let colour = match u32::try_from(colour) {
            Ok(colour) => Some(colour),
            Err(_) if colour == UNDEFINED => None,
            Err(_) => {
                let text = format!("invalid colour {colour}: use one of 0 or above, or CABLEWAY_UNDEFINED");
                return Err(Failure::argument(text));
            }
        };
        let part = named(communicator)?.split(colour, key)?;
        place.set(part.map_or(std::ptr::null_mut(), Communicator::own));
        Ok(())
    })
}

/// Frees a communicator.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_communicator_free(communicator: *mut Handled) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let handle = Out::new(communicator, "the place of the handle")?.get();
        if !handle.is_null() && Handle::get(handle)?.of_world {
            return Err(Failure::argument("the communicator of all processes belongs to the world: finalize frees it"));
        }
        free(communicator, drop)
    })
}
