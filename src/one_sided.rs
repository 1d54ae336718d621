//! Blocking one-sided operations, for every kind of caller.

use cableway_pml::{OneSided, Outcome, Place, Request, Signal, Target};

use crate::Error;
use crate::buffer::{RecvBuffer, SendBuffer};
use crate::error::Operation;
use crate::in_flight::InFlight;
use crate::inner::Inner;
use crate::word::{Atomic, Word};

pub(crate) fn put(
    world: &Inner,
    from: &(impl SendBuffer + ?Sized),
    to: Target<'_>,
    signal: Option<Signal<'_>>,
) -> Result<(), Error> {
    let from = from.readable()?;
    perform(world, Operation::one_sided("put", &to.place(), from.len()), |one_sided, request| {
        // SAFETY: the request is new and is waited for; the buffer is borrowed until then.
        unsafe { one_sided.put(from, to, signal, request) }
    })
}

pub(crate) fn get(
    world: &Inner,
    into: &mut (impl RecvBuffer + ?Sized),
    from: Target<'_>,
    signal: Option<Signal<'_>>,
) -> Result<(), Error> {
    let into = into.writable()?;
    perform(world, Operation::one_sided("get", &from.place(), into.len()), |one_sided, request| {
        // SAFETY: as in `put`, borrowed exclusively.
        unsafe { one_sided.get(into, from, signal, request) }
    })
}

pub(crate) fn atomic<T: Word>(world: &Inner, operation: Atomic<T>, at: Place<'_>) -> Result<T, Error> {
    let mut old = T::default();
    let place = (&raw mut old).cast();
    perform(world, Operation::one_sided("atomic", &at, size_of::<T>() as u64), |one_sided, request| {
        // SAFETY: as above; the place has as many bytes as the word.
        unsafe { one_sided.atomic(operation.raw(), T::WIDTH, at, place, request) }
    })?;
    Ok(old)
}

/// Starts an operation and waits for it.
fn perform(
    world: &Inner,
    operation: Operation,
    start: impl FnOnce(&OneSided, *const Request) -> Result<Outcome, cableway_pml::Error>,
) -> Result<(), Error> {
    // Its drop waits, too.
    let request = InFlight::new(&world.engine);
    match start(&world.one_sided, &raw const *request).map_err(|error| operation.failed(error))? {
        Outcome::Complete => return Ok(()),
        Outcome::Started => request.wait(),
    }
    request.result().map(drop).map_err(|error| operation.failed(error))
}
