//! Our streams in one context, and their order after the application's default stream.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::{CUevent, CUevent_flags_enum, CUevent_st, CUstream, CUstream_flags_enum, CUstream_st};
use parking_lot::Mutex;

use super::context::Handle;
use super::driver::Driver;
use super::recorded::Recorded;
use super::status::Failure;
use crate::copy::Direction;

/// One stream for each direction, so that copies of both overlap, and the event that orders them.
#[derive(Default)]
pub(super) struct Streams {
    made: Mutex<[Option<Handle<CUstream_st>>; 3]>,
    recorded: [Recorded; 3],
    order: Mutex<Option<Handle<CUevent_st>>>,
}

impl Streams {
    /// The stream of a direction, made on first use. Its context is current.
    ///
    /// It never waits for the legacy default stream by itself (`CU_STREAM_NON_BLOCKING`): a blocking stream would wait
    /// for kernels that have nothing to do with the message, and make the application's later kernels wait for us.
    pub(super) fn of(&self, driver: &Driver, direction: Direction) -> Result<CUstream, Failure> {
        let mut made = self.made.lock();
        let slot = &mut made[direction as usize];
        if let Some(stream) = slot {
            return Ok(stream.0);
        }
        let stream = new_stream(driver)?;
        *slot = Some(Handle(stream));
        Ok(stream)
    }

    /// The events in the stream of a direction.
    pub(super) fn recorded(&self, direction: Direction) -> &Recorded {
        &self.recorded[direction as usize]
    }

    /// Makes later work in `stream` wait for what the legacy default stream holds now. The context is current.
    ///
    /// An event, always: on an H200 it adds 1.0 us to a copy, a query that finds the stream idle 1.3 us.
    pub(super) fn order_after_legacy(&self, driver: &Driver, stream: CUstream) -> Result<(), Failure> {
        if !legacy_is_usable(driver)? {
            warn_of_capture();
            return Ok(());
        }
        // Held from record to wait only to keep the pair together; either order of two threads' pairs is right.
        let mut order = self.order.lock();
        let event = match *order {
            Some(event) => event.0,
            None => order.insert(Handle(new_event(driver)?)).0,
        };
        // SAFETY: the event is of the current context, which is the legacy stream's and `stream`'s.
        unsafe {
            driver.cuEventRecord(event, LEGACY)?;
            driver.cuStreamWaitEvent(stream, event, 0)
        }
    }

    /// Whether the legacy default stream has nothing left to do; none where a capture forbids to ask. The context is
    /// current.
    ///
    /// The answer covers the work that the stream waits for, as seen on driver 580: blocking streams and per-thread
    /// default streams, but no non-blocking ones.
    pub(super) fn legacy_is_idle(&self, driver: &Driver) -> Result<Option<bool>, Failure> {
        if !legacy_is_usable(driver)? {
            warn_of_capture();
            return Ok(None);
        }
        ask_legacy(driver).map(Some)
    }

    /// The same for work of ours that no message needs, which can wait for the end of a capture.
    pub(super) fn legacy_is_quiet(&self, driver: &Driver) -> Result<bool, Failure> {
        if legacy_is_usable(driver)? { ask_legacy(driver) } else { Ok(false) }
    }

    /// Records `event` after what the legacy default stream holds now; false where a capture forbids it. The context is
    /// current.
    pub(super) fn record_legacy(&self, driver: &Driver, event: CUevent) -> Result<bool, Failure> {
        let usable = legacy_is_usable(driver)?;
        if usable {
            // SAFETY: the event is of the current context, which is the legacy stream's.
            unsafe { driver.cuEventRecord(event, LEGACY) }?;
        } else {
            warn_of_capture();
        }
        Ok(usable)
    }

    /// Destroys them. The context is current and no work is in the streams.
    pub(super) fn destroy(&self, driver: &Driver) {
        for stream in self.made.lock().iter_mut().filter_map(Option::take) {
            // SAFETY: made by `of`, and taken out, so that nobody uses it again.
            if let Err(failure) = unsafe { driver.cuStreamDestroy(stream.0) } {
                log::debug!("destroying a stream: {}", driver.reason(failure));
            }
        }
        if let Some(event) = self.order.lock().take() {
            destroy_event(driver, event.0);
        }
    }
}

/// The context's legacy default stream.
const LEGACY: CUstream = std::ptr::without_provenance_mut(1);

fn warn_of_capture() {
    cableway_base::warn_once("cuda/order-in-capture", || {
        "a stream capture keeps the default stream from being waited for; device buffers are copied without that order \
         while it lasts"
            .to_owned()
    });
}

/// Whether the current context's legacy stream can be used: not while a stream that synchronises with it captures, in
/// any thread. To record in it would invalidate that capture; and the application cannot have used it since.
fn legacy_is_usable(driver: &Driver) -> Result<bool, Failure> {
    let mut status: c_int = 0;
    // SAFETY: fills in the status. This question leaves captures alone.
    match unsafe { driver.cuStreamIsCapturing(LEGACY, &raw mut status) } {
        Err(Failure { code: Failure::CAPTURE_IMPLICIT, .. }) => Ok(false),
        // Missing before CUDA 10.0, which has no captures either.
        Ok(()) | Err(Failure { code: Failure::MISSING, .. }) => Ok(true),
        Err(failure) => Err(failure),
    }
}

/// Whether the current context's legacy stream has nothing left to do.
fn ask_legacy(driver: &Driver) -> Result<bool, Failure> {
    // SAFETY: the current context's legacy stream.
    match unsafe { driver.cuStreamQuery(LEGACY) } {
        Ok(()) => Ok(true),
        Err(Failure { code: Failure::NOT_READY, .. }) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// A new stream in the current context, which never waits for the legacy default stream by itself.
pub(super) fn new_stream(driver: &Driver) -> Result<CUstream, Failure> {
    let mut stream: CUstream = std::ptr::null_mut();
    let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING as c_uint;
    // SAFETY: fills in the new stream.
    unsafe { driver.cuStreamCreate(&raw mut stream, flags) }?;
    Ok(stream)
}

/// A new event in the current context.
pub(super) fn new_event(driver: &Driver) -> Result<CUevent, Failure> {
    let mut event: CUevent = std::ptr::null_mut();
    // SAFETY: fills in the new event.
    unsafe { driver.cuEventCreate(&raw mut event, CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as c_uint) }?;
    Ok(event)
}

/// Destroys an event that nobody uses any more.
pub(super) fn destroy_event(driver: &Driver, event: CUevent) {
    // SAFETY: the caller owns the event.
    if let Err(failure) = unsafe { driver.cuEventDestroy(event) } {
        log::debug!("destroying an event: {}", driver.reason(failure));
    }
}
