//! Streams, events and captures.

use std::ffi::{c_int, c_uint};

use super::contexts::handle;
use super::library::HipDriver;
use super::status::{CAPTURE_ELSEWHERE, is_done};
use crate::driver::{
    ContextHandle, Contexts, DeviceInfo, Driver, Event, Failure, FailureKind, Limits, Priority, Stream, Streams, Value,
};
use crate::location::DeviceIndex;
use crate::word_operation::{WaitCondition, WordAccess, WordOperation};

/// The device's default stream. `hipStreamLegacy` (1) is a name of it since 6.2 only.
static LEGACY: Stream = Stream::new(0);

/// `hipStreamNonBlocking`
const NON_BLOCKING: c_uint = 1;
/// `hipEventDisableTiming`
const DISABLE_TIMING: c_uint = 2;
/// `hipStreamCaptureModeThreadLocal`
const THREAD_LOCAL: c_int = 1;

impl Streams for HipDriver {
    fn new_stream(&self, priority: Priority) -> Result<Stream, Failure> {
        let (mut least, mut greatest): (c_int, c_int) = (0, 0);
        let mut stream = 0;
        // SAFETY: fills in two integers and the new stream.
        unsafe {
            match priority {
                Priority::Normal => self.hipStreamCreateWithFlags(&raw mut stream, NON_BLOCKING)?,
                Priority::Highest => {
                    self.hipDeviceGetStreamPriorityRange(&raw mut least, &raw mut greatest)?;
                    self.hipStreamCreateWithPriority(&raw mut stream, NON_BLOCKING, greatest)?;
                }
            }
        }
        Ok(Stream::new(stream))
    }

    fn destroy_stream(&self, stream: Stream) -> Result<(), Failure> {
        // SAFETY: made by `new_stream`, and given away by its owner.
        unsafe { self.hipStreamDestroy(stream.raw()) }
    }

    #[inline]
    fn is_idle(&self, stream: &Stream) -> Result<bool, Failure> {
        // SAFETY: a stream of the current device.
        is_done(unsafe { self.hipStreamQuery(stream.raw()) })
    }

    fn synchronise(&self, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: a stream of the current device.
        unsafe { self.hipStreamSynchronize(stream.raw()) }
    }

    fn new_event(&self) -> Result<Event, Failure> {
        let mut event = 0;
        // SAFETY: fills in the new event.
        unsafe { self.hipEventCreateWithFlags(&raw mut event, DISABLE_TIMING) }?;
        Ok(Event::new(event))
    }

    fn destroy_event(&self, event: Event) -> Result<(), Failure> {
        // SAFETY: made by `new_event`, and given away by its owner.
        unsafe { self.hipEventDestroy(event.raw()) }
    }

    #[inline]
    fn record(&self, event: &Event, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: event and stream are of the current device.
        unsafe { self.hipEventRecord(event.raw(), stream.raw()) }
    }

    #[inline]
    fn is_done(&self, event: &Event) -> Result<bool, Failure> {
        // SAFETY: an event that is not destroyed.
        is_done(unsafe { self.hipEventQuery(event.raw()) })
    }

    #[inline]
    fn wait(&self, stream: &Stream, event: &Event) -> Result<(), Failure> {
        // SAFETY: event and stream are of the current device.
        unsafe { self.hipStreamWaitEvent(stream.raw(), event.raw(), 0) }
    }

    /// A call for each value: the one that takes several is not in every release. The writes need no signal memory, only
    /// memory that the library knows.
    unsafe fn write_values(&self, stream: &Stream, values: &[Value]) -> Result<(), Failure> {
        if !self.has_stream_values()? {
            return Err(Failure::missing("write_values"));
        }
        for value in values {
            // SAFETY: words that are the caller's; a stream of the current device.
            unsafe {
                match value.wide {
                    true => self.hipStreamWriteValue64(stream.raw(), value.address, value.bits, 0),
                    false => self.hipStreamWriteValue32(stream.raw(), value.address, value.bits as u32, 0),
                }
            }?;
        }
        Ok(())
    }

    unsafe fn operate(&self, stream: &Stream, operations: &[WordOperation]) -> Result<(), Failure> {
        if !self.has_stream_values()? {
            return Err(Failure::missing("operate"));
        }
        for operation in operations {
            // SAFETY: the caller's promise.
            unsafe { self.operate_on_word(stream.raw(), operation) }?;
        }
        Ok(())
    }

    fn check_word_operations(&self, device: DeviceIndex) -> Result<(), String> {
        let missing = self.missing();
        let lacking = ["hipStreamWaitValue64", "hipStreamWriteValue64"].iter().find(|name| missing.contains(name));
        match (lacking, self.limits(device)) {
            (Some(name), _) => Err(format!("the library lacks {name}")),
            (None, Ok(Limits { wide_values: true, .. })) => Ok(()),
            (None, Ok(_)) => Err("the device does not support stream memory operations".to_owned()),
            (None, Err(failure)) => Err(self.code_name(failure)),
        }
    }

    fn context_of(&self, stream: &Stream) -> Result<ContextHandle, Failure> {
        let mut ordinal: c_int = 0;
        // SAFETY: fills in the device; the stream is the program's.
        match unsafe { self.hipStreamGetDevice(stream.raw(), &raw mut ordinal) } {
            Ok(()) => Ok(handle(ordinal)),
            // Before 5.6 the library does not tell. The program calls with the stream's device current.
            Err(Failure { kind: FailureKind::Missing, .. }) => {
                self.current_context()?.ok_or(Failure::found("context_of", FailureKind::InvalidHandle))
            }
            Err(failure) => Err(failure),
        }
    }

    fn is_capturing(&self, stream: &Stream) -> Result<bool, Failure> {
        let mut status: c_int = 0;
        // SAFETY: fills in the status of a stream of the current device.
        match unsafe { self.hipStreamIsCapturing(stream.raw(), &raw mut status) } {
            Ok(()) => Ok(status != 0),
            Err(Failure { kind: FailureKind::Missing, .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    #[inline]
    fn default_stream(&self) -> &Stream {
        &LEGACY
    }

    #[inline]
    fn default_stream_is_usable(&self) -> Result<bool, Failure> {
        let mut status: c_int = 0;
        // SAFETY: fills in the status. This question leaves captures alone.
        match unsafe { self.hipStreamIsCapturing(LEGACY.raw(), &raw mut status) } {
            Err(Failure { code: CAPTURE_ELSEWHERE, .. }) => Ok(false),
            Ok(()) | Err(Failure { kind: FailureKind::Missing, .. }) => Ok(true),
            Err(failure) => Err(failure),
        }
    }

    /// As with CUDA: in the thread-local mode an unsafe call is refused exactly if this thread has begun a capture.
    /// `hipFree` of a null address is such a call (`CHECK_STREAM_CAPTURE_SUPPORTED` in clr).
    fn refuse_capture(&self, _event: Option<&Event>) -> Result<(), Failure> {
        let mut mode = THREAD_LOCAL;
        // SAFETY: exchanges this thread's mode with `mode`.
        if unsafe { self.hipThreadExchangeStreamCaptureMode(&raw mut mode) }.is_err() {
            return Ok(());
        }
        // SAFETY: an address of 0 is nothing to free.
        let answer = unsafe { self.hipFree(0) };
        // SAFETY: gives the mode back that `enter` has set.
        unsafe { self.hipThreadExchangeStreamCaptureMode(&raw mut mode) }?;
        match answer {
            Err(Failure { kind: FailureKind::Capturing, .. }) => answer,
            // Other errors appear in later calls.
            _ => Ok(()),
        }
    }
}

impl HipDriver {
    /// # Safety
    /// As [`Streams::operate`]; the device's streams write and wait for values.
    unsafe fn operate_on_word(&self, stream: usize, operation: &WordOperation) -> Result<(), Failure> {
        let &WordOperation { address, value, wide, access } = operation;
        // SAFETY: the caller's promise.
        unsafe {
            match (access, wide) {
                (WordAccess::Write, true) => self.hipStreamWriteValue64(stream, address, value, 0),
                (WordAccess::Write, false) => self.hipStreamWriteValue32(stream, address, value as u32, 0),
                (WordAccess::Wait(condition), true) => {
                    self.hipStreamWaitValue64(stream, address, value, flags(condition), u64::MAX)
                }
                (WordAccess::Wait(condition), false) => {
                    self.hipStreamWaitValue32(stream, address, value as u32, flags(condition), u32::MAX)
                }
            }
        }
    }
}

/// `hipStreamWaitValueGte`, `Eq`, `And` and `Nor`.
fn flags(condition: WaitCondition) -> c_uint {
    match condition {
        WaitCondition::GreaterOrEqual => 0,
        WaitCondition::Equal => 1,
        WaitCondition::And => 2,
        WaitCondition::Nor => 3,
    }
}
