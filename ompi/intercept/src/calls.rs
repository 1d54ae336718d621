//! The table of functions.

pub use crate::files::entries::*;
pub use crate::messages::MPIX_Query_cuda_support;
pub use crate::messages::entries::*;

use crate::interpose::Call;
use crate::{files, messages};

/// Returns every function, once for each of its names.
pub fn all() -> impl Iterator<Item = &'static Call> {
    messages::CALLS.iter().chain(files::CALLS).chain([&messages::QUERY])
}
