//! Reports errors.

use std::ffi::c_int;

use cableway_coll::Error;

use crate::boundary::Code;
use crate::state;

/// Logs an error, and returns its code.
pub(crate) fn report(error: &Error) -> c_int {
    let code = match error {
        Error::Message(error) => {
            state::report(error);
            return Code::from(error) as c_int;
        }
        Error::Device(_) => Code::Device,
        Error::NoMemory { .. } => Code::NoMemory,
        _ => Code::BadArgument,
    };
    log::warn!("{error}");
    code as c_int
}
