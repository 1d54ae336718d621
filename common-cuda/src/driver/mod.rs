//! The seam between vendors and the code that decides about device memory.
//!
//! Below it a vendor implements [`Driver`] over its library's functions, and nothing else: no policy, caches or
//! threads. The code above is written once for all vendors: which mechanism copies, in what order, and what is kept.
//! `cuda/` and `hip/` are vendors; `double.rs` is another, for tests. One process may use two vendors.
//!
//! Contract of a vendor:
//! - Every method may be called from any thread. Methods whose documentation says *the context is current* act in the
//!   context that [`Contexts::enter`] has entered. The others need none.
//! - No method creates a context, except [`Contexts::retain_primary`].
//! - No method aborts or panics. A function that the loaded library lacks fails with [`FailureKind::Missing`].
//! - Handles are opaque, and only their vendor reads them. A handle that is destroyed is passed by value.
//!
//! A driver call takes at least 30 ns, so the cost of a virtual call beside it is negligible. `dyn Driver` keeps one
//! copy of the code above, and types that do not name a vendor. The queries of each message are one virtual call:
//! provided methods combine several calls, and are compiled for each vendor.

mod contexts;
mod copies;
mod devices;
mod discovery;
mod failure;
mod handles;
#[cfg(any(feature = "cuda", feature = "rocm"))]
mod hardware;
mod kernels;
mod memory;
mod numbering;
#[cfg(any(feature = "cuda", feature = "rocm"))]
mod search;
mod sharing;
mod streams;

pub(crate) use contexts::{Contexts, Entered};
pub(crate) use copies::Copies;
pub(crate) use devices::{DeviceInfo, Library, Limits};
pub(crate) use discovery::Discovery;
pub(crate) use failure::{Failure, FailureKind};
pub(crate) use handles::{ContextHandle, Event, Function, Module, Pool, Stream};
#[cfg(any(feature = "cuda", feature = "rocm"))]
pub(crate) use hardware::{ANY_EXPECTED, Hardware};
pub(crate) use kernels::{Image, KernelGraph, Kernels, MOST_ARGUMENT};
pub(crate) use memory::{Allocated, Attributes, Mapper, Memory, Refusal, View};
pub(crate) use numbering::{AMD_ALLOCATION, Numbering};
#[cfg(any(feature = "cuda", feature = "rocm"))]
pub(crate) use search::{Search, Searched};
pub(crate) use sharing::Sharing;
pub(crate) use streams::{Priority, Streams, Value};

pub(crate) use crate::direct::DmaBuf;

use crate::error::DeviceError;

/// A loaded driver.
pub(crate) trait Driver:
    DeviceInfo + Contexts + Streams + Copies + Memory + Kernels + Sharing + Send + Sync
{
    /// Returns the driver's own name for the code of a failed call.
    fn code_name(&self, failure: Failure) -> String;

    /// Describes a failure.
    fn reason(&self, failure: Failure) -> String {
        let text = match failure.kind {
            _ if !failure.is_found_here() => return self.code_name(failure),
            FailureKind::Missing => return format!("driver {} does not have this function", self.library().version),
            FailureKind::NoKernel => "no kernel can be launched, or none has found room on the device",
            FailureKind::ContextDestroyed => "the context is destroyed",
            FailureKind::OutOfMemory => "no memory is left",
            FailureKind::DefaultStreamCaptured => {
                "a capture forbids it, and no device memory was left for another stream; end the capture first"
            }
            FailureKind::NotSupported => "it is not supported",
            FailureKind::InvalidValue => "the driver's answer is invalid",
            _ => "the driver gave no descriptor",
        };
        text.to_owned()
    }

    /// Enters a context if it still has this id.
    fn enter_alive(&self, context: ContextHandle, id: u64) -> Result<Entered, Failure> {
        match self.context_id(context) {
            Ok(found) if found == id => self.enter(context),
            _ => Err(Failure::CONTEXT_DESTROYED),
        }
    }

    /// Checks whether an event of a context is done. Any context may be current.
    fn is_done_anywhere(&self, context: ContextHandle, id: u64, event: &Event) -> Result<bool, Failure> {
        if self.context_id(context) != Ok(id) {
            return Err(Failure::CONTEXT_DESTROYED);
        }
        let entered = self.enter_none();
        let answer = self.is_done(event);
        self.leave(entered);
        answer
    }
}

impl dyn Driver {
    /// Converts a failure that concerns `object` to an error.
    pub(crate) fn error(&self, failure: Failure, object: impl Into<String>) -> DeviceError {
        DeviceError { call: failure.call, object: object.into(), reason: self.reason(failure) }
    }
}
