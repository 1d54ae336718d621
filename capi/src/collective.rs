//! What the blocking and the nonblocking form of a collective function do with a call that is prepared.

use cableway::{Error, RawCollective, RawRequest};

/// What a function does with its call: it [performs](perform) or [starts](start) it.
pub(crate) trait Finish<R>: FnOnce(RawCollective<'_>) -> Result<R, Error> {}

impl<R, F: FnOnce(RawCollective<'_>) -> Result<R, Error>> Finish<R> for F {}

pub(crate) fn perform(call: RawCollective<'_>) -> Result<(), Error> {
    call.perform()
}

pub(crate) fn start(call: RawCollective<'_>) -> Result<RawRequest, Error> {
    call.start()
}
