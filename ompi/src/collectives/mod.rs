//! Collective operations of communicators, for the shim: `shim/collectives/operations.h`.

mod description;
mod function;
mod report;
mod running;

use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

use cableway_base::parameters;
use cableway_coll::{Collectives, Element, Groups, Members, Notices, Passed, Performer, Reach, ReduceOperation};
use cableway_pml::{Communicator, Engine};

pub(crate) use description::Description;
pub(crate) use report::report;

use crate::boundary::Code;
use crate::guard::guarded;
use crate::state;

/// What all communicators share.
struct Shared {
    collectives: Arc<Collectives>,
    notices: Arc<Notices>,
}

/// Returns the collective operations of all communicators.
pub(crate) fn shared(engine: &Engine) -> Option<&'static Arc<Collectives>> {
    Some(&all(engine)?.collectives)
}

fn all(engine: &Engine) -> Option<&'static Shared> {
    static SHARED: OnceLock<Option<Shared>> = OnceLock::new();
    let share = || {
        let collectives = Collectives::new(engine.handle()?, &state::parameters().unwrap_or_default());
        Some(Shared { collectives, notices: Notices::carried_by(engine) })
    };
    SHARED.get_or_init(share).as_ref()
}

/// Prints the algorithms that are chosen from now on by rank 0 of each communicator, if this process is that rank.
pub(crate) fn explain(engine: &Engine) {
    if let Some(shared) = shared(engine) {
        shared.report_choices(state::print_line);
    }
}

/// `struct cableway_between`
#[repr(C)]
struct BetweenDescription {
    first: bool,
    local: u32,
    own: *const Communicator,
}

/// # Safety
/// `communicator` is from `cableway_communicator_add`, and not removed. `between` is null for an intracommunicator, else
/// valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_collectives_new(
    communicator: *const Communicator,
    between: *const BetweenDescription,
) -> *const Members {
    guarded(std::ptr::null(), || {
        let Some(shared) = state::engine().and_then(all) else { return std::ptr::null() };
        let parameters = state::parameters().unwrap_or_default();
        if parameters.coll_performer == parameters::Performer::Mpi {
            return std::ptr::null();
        }
        // SAFETY: the caller's promise.
        let on = unsafe { counted(communicator) };
        // SAFETY: as above.
        let reach = match unsafe { between.as_ref() } {
            None => Reach::Within,
            Some(&BetweenDescription { first, local, own }) => {
                // SAFETY: as above.
                let own = (!own.is_null()).then(|| unsafe { counted(own) });
                Reach::Between { groups: Groups { first, local, remote: on.group().len() as u32 }, own }
            }
        };
        let members = Members::new(&shared.collectives, &shared.notices, on, reach, &parameters);
        // Only calls for which the members have agreed on device memory come here.
        members.group().expect_devices(true);
        Arc::into_raw(members)
    })
}

/// Returns a counted reference.
///
/// # Safety
/// `communicator` is from `cableway_communicator_add`, and not removed.
pub(crate) unsafe fn counted(communicator: *const Communicator) -> Arc<Communicator> {
    // SAFETY: the caller's promise.
    unsafe {
        Arc::increment_strong_count(communicator);
        Arc::from_raw(communicator)
    }
}

/// # Safety
/// `members` is from [`cableway_collectives_new`], is freed only once, and no operation is under way.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_collectives_free(members: *const Members, wait: bool) {
    guarded((), || {
        // SAFETY: the caller's promise.
        let members = unsafe { Arc::from_raw(members) };
        if wait {
            members.leave();
        }
    });
}

/// Says who performs a call, and counts it if all members make it. `bytes` is a size that is equal at all members, or the
/// maximum. Returns an `enum cableway_performer`.
///
/// # Safety
/// `members` is from [`cableway_collectives_new`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_collectives_begin(members: *const Members, counted: bool, bytes: u64) -> c_int {
    guarded(Performer::Host as c_int, || {
        // SAFETY: the caller's promise.
        unsafe { &*members }.begin(counted, bytes) as c_int
    })
}

/// Notes that this process passes device memory, at one of two addresses.
///
/// # Safety
/// `members` is from [`cableway_collectives_new`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_collectives_want(members: *const Members, send: *const c_void, receive: *const c_void) {
    guarded((), || {
        let passed = Passed { send: send.cast(), receive: receive.cast() };
        // SAFETY: the caller's promise.
        unsafe { &*members }.note_device_memory(passed);
    });
}

/// Checks whether MPI defines an operation for an element type, by their numbers in the lists of all.
#[unsafe(no_mangle)]
extern "C" fn cableway_reduction_defined(operation: c_int, element: c_int) -> bool {
    guarded(false, || {
        let operation = usize::try_from(operation).ok().and_then(|number| ReduceOperation::ALL.get(number));
        let element = usize::try_from(element).ok().and_then(|number| Element::ALL.get(number));
        operation.zip(element).is_some_and(|(operation, element)| operation.applies_to(*element))
    })
}

/// Performs an operation, and waits for it.
///
/// # Safety
/// `members` is from [`cableway_collectives_new`]; the description is valid, and so is its memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_collectives_run(members: *const Members, description: *const Description) -> c_int {
    guarded(Code::Internal as c_int, || {
        // SAFETY: the caller's promise.
        let (members, call) = unsafe { (&*members, (*description).call()) };
        let started = call.and_then(|call| {
            members.note_memory(&call);
            // SAFETY: as above.
            unsafe { members.group().start_blocking(&call) }
        });
        match started {
            Ok(operation) => running::wait(operation),
            Err(error) => report(&error),
        }
    })
}

/// Starts an operation. `shim_collective_completed` is called with `owner` when it has finished, perhaps during this
/// call.
///
/// # Safety
/// As [`cableway_collectives_run`]; the memory stays valid until the operation has finished.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_collectives_start(
    members: *const Members,
    description: *const Description,
    owner: *mut c_void,
) -> c_int {
    guarded(Code::Internal as c_int, || {
        // SAFETY: the caller's promise.
        let started = unsafe { (*description).call().and_then(|call| (*members).group().start(&call)) };
        match started {
            Ok(operation) => {
                running::add(operation, owner);
                Code::Ok as c_int
            }
            Err(error) => report(&error),
        }
    })
}
