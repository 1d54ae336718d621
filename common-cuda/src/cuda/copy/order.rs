//! Operations and the application's streams: their order after the default stream, and captures, which they leave alone.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent_st, CUstreamCaptureMode_enum};

use super::{Operation, Start};
use crate::copy::Direction;
use crate::cuda::context::Context;
use crate::cuda::driver::Driver;
use crate::cuda::status::Failure;
use crate::error::DeviceError;
use crate::location::Location;
use crate::vendor::VendorCompletion;

/// Of what copies nothing; memory and direction say nothing then.
const NO_COPY: Start = Start { at: Location::HOST, direction: Direction::DeviceToDevice, first: true, ordered: true };

impl Operation {
    /// An operation that copies nothing, and is over once the work is that the context's legacy default stream holds
    /// now. None if it is already.
    pub(in crate::cuda) fn after_legacy(
        context: Arc<Context>,
    ) -> Result<Option<Box<dyn VendorCompletion>>, DeviceError> {
        let mut operation = Operation::begin(context.clone(), NO_COPY);
        match operation.record_legacy(&context) {
            Ok(true) => {
                operation.by_engine = true;
                Ok(Some(operation))
            }
            answer => {
                let answer = answer.map_err(|failure| operation.error(&context, failure));
                operation.rest();
                answer.map(|_| None)
            }
        }
    }

    /// Whether the context's legacy default stream has nothing left to do.
    pub(in crate::cuda) fn ask_legacy(context: &Arc<Context>) -> Result<bool, DeviceError> {
        let mut operation = Operation::begin(context.clone(), NO_COPY);
        let asked = operation.settled(context).map_err(|failure| operation.error(context, failure));
        operation.rest();
        asked
    }

    /// Whether kernels make copies in the context at present.
    pub(in crate::cuda) fn kernels(context: &Context) -> bool {
        if !context.settings.kernels {
            return false;
        }
        if !context.kernels.tried()
            && let Ok(_scope) = context.enter()
        {
            context.kernels.load(context);
        }
        context.kernels.ready()
    }

    /// Whether a first copy on a user's buffer may begin without waiting for the default stream.
    pub(super) fn may_begin(&mut self, context: &Context) -> Result<bool, Failure> {
        if self.start.ordered {
            return self.settled(context);
        }
        let _scope = context.enter()?;
        refuse_capture(context.driver, || self.event(context.driver))?;
        Ok(true)
    }

    pub(super) fn settled(&mut self, context: &Context) -> Result<bool, Failure> {
        let driver = context.driver;
        let _scope = context.enter()?;
        refuse_capture(driver, || self.event(driver))?;
        // Asked again and again while a message waits.
        let idle = context.is_settled(driver)? == Some(true);
        if idle {
            context.kernels.load_idle(context);
        }
        Ok(idle)
    }

    /// Records the event in the legacy stream; false if nothing is to be waited for.
    pub(super) fn record_legacy(&mut self, context: &Context) -> Result<bool, Failure> {
        let driver = context.driver;
        let _scope = context.enter()?;
        refuse_capture(driver, || self.event(driver))?;
        // Cheaper than an event where the stream is idle, as it mostly is: an event is waited for 1.5 us at least.
        let idle = context.is_settled(driver)?;
        if idle == Some(true) {
            context.kernels.load_idle(context);
        }
        if idle != Some(false) {
            return Ok(false);
        }
        let event = self.event(driver)?;
        context.streams.record_legacy(driver, event)
    }
}

/// Fails if the calling thread is capturing.
///
/// The driver has no such question. But a call that is unsafe in a capture is refused in the thread-local mode exactly
/// if this thread has begun a capture (other than a relaxed one), and captures of other threads are left alone. The
/// refusal invalidates this thread's capture, as its own unsafe calls would.
///
/// To free nothing is such a call on the drivers where that was tried, and costs 0.02 us; the query of an event costs
/// 1.3 us.
pub(super) fn refuse_capture(
    driver: &Driver,
    event: impl FnOnce() -> Result<*mut CUevent_st, Failure>,
) -> Result<(), Failure> {
    const FREES_NOTHING_IN_CAPTURES: c_int = 13_000;
    let event = if driver.version < FREES_NOTHING_IN_CAPTURES { Some(event()?) } else { None };
    let mut mode = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as c_int;
    // SAFETY: exchanges this thread's mode with `mode`.
    if unsafe { driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) }.is_err() {
        // Drivers before 10.1; the scope has found that out too.
        return Ok(());
    }
    let answer = match event {
        // SAFETY: our own event, of the current context.
        Some(event) => unsafe { driver.cuEventQuery(event) },
        // SAFETY: an address of 0 is nothing to free.
        None => unsafe { driver.cuMemFree(0) },
    };
    // SAFETY: gives the scope's mode back.
    unsafe { driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) }?;
    match answer {
        Err(Failure { code: Failure::CAPTURE_UNSUPPORTED, .. }) => answer,
        // Whatever else is wrong will show when something is asked for.
        _ => Ok(()),
    }
}
