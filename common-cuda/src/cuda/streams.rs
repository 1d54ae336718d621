//! Streams, events and captures.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::{
    CUcontext, CUevent, CUevent_flags_enum, CUstream, CUstream_flags_enum, CUstreamBatchMemOpParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteValueParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as WrittenValue,
    CUstreamBatchMemOpType_enum as MemOp, CUstreamCaptureMode_enum, CUstreamWriteValue_flags_enum as WriteFlags,
};

use super::library::CudaDriver;
use super::status::{is_capture_elsewhere, is_done};
use super::words;
use crate::driver::{ContextHandle, Event, Failure, FailureKind, Priority, Stream, Streams, Value};
use crate::location::DeviceIndex;
use crate::word_operation::WordOperation;

/// The context's legacy default stream.
static LEGACY: Stream = Stream::new(1);

/// The first driver on which freeing nothing is refused during a capture.
const FREES_NOTHING_IN_CAPTURES: c_int = 13_000;

pub(super) fn raw(stream: &Stream) -> CUstream {
    std::ptr::with_exposed_provenance_mut(stream.raw())
}

fn raw_event(event: &Event) -> CUevent {
    std::ptr::with_exposed_provenance_mut(event.raw())
}

impl Streams for CudaDriver {
    /// `CU_STREAM_NON_BLOCKING`. A blocking stream would wait for kernels unrelated to the message, and would delay the
    /// application's later kernels.
    fn new_stream(&self, priority: Priority) -> Result<Stream, Failure> {
        let (mut least, mut greatest): (c_int, c_int) = (0, 0);
        let mut stream: CUstream = std::ptr::null_mut();
        let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: fills in two integers and the new stream.
        unsafe {
            match priority {
                Priority::Normal => self.cuStreamCreate(&raw mut stream, flags)?,
                Priority::Highest => {
                    self.cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)?;
                    self.cuStreamCreateWithPriority(&raw mut stream, flags, greatest)?;
                }
            }
        }
        Ok(Stream::new(stream.expose_provenance()))
    }

    fn destroy_stream(&self, stream: Stream) -> Result<(), Failure> {
        // SAFETY: made by `new_stream`, and given away by its owner.
        unsafe { self.cuStreamDestroy(raw(&stream)) }
    }

    #[inline]
    fn is_idle(&self, stream: &Stream) -> Result<bool, Failure> {
        // SAFETY: a stream of the current context.
        is_done(unsafe { self.cuStreamQuery(raw(stream)) })
    }

    fn synchronise(&self, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: a stream of the current context.
        unsafe { self.cuStreamSynchronize(raw(stream)) }
    }

    fn new_event(&self) -> Result<Event, Failure> {
        let mut event: CUevent = std::ptr::null_mut();
        let flags = CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as c_uint;
        // SAFETY: fills in the new event.
        unsafe { self.cuEventCreate(&raw mut event, flags) }?;
        Ok(Event::new(event.expose_provenance()))
    }

    fn destroy_event(&self, event: Event) -> Result<(), Failure> {
        // SAFETY: made by `new_event`, and given away by its owner.
        unsafe { self.cuEventDestroy(raw_event(&event)) }
    }

    #[inline]
    fn record(&self, event: &Event, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: event and stream are of the current context.
        unsafe { self.cuEventRecord(raw_event(event), raw(stream)) }
    }

    #[inline]
    fn is_done(&self, event: &Event) -> Result<bool, Failure> {
        // SAFETY: an event that is not destroyed.
        is_done(unsafe { self.cuEventQuery(raw_event(event)) })
    }

    #[inline]
    fn wait(&self, stream: &Stream, event: &Event) -> Result<(), Failure> {
        // SAFETY: event and stream are of the current context.
        unsafe { self.cuStreamWaitEvent(raw(stream), raw_event(event), 0) }
    }

    /// One call writes all values: it costs less than a call for each.
    unsafe fn write_values(&self, stream: &Stream, values: &[Value]) -> Result<(), Failure> {
        const TOGETHER: usize = 4;
        for values in values.chunks(TOGETHER) {
            let mut operations = [CUstreamBatchMemOpParams { pad: [0; 6] }; TOGETHER];
            for (operation, value) in operations.iter_mut().zip(values) {
                operation.writeValue = WriteValueParams {
                    operation: match value.wide {
                        true => MemOp::CU_STREAM_MEM_OP_WRITE_VALUE_64,
                        false => MemOp::CU_STREAM_MEM_OP_WRITE_VALUE_32,
                    },
                    address: value.address,
                    __bindgen_anon_1: WrittenValue { value64: value.bits },
                    flags: WriteFlags::CU_STREAM_WRITE_VALUE_DEFAULT as c_uint,
                    alias: 0,
                };
            }
            // SAFETY: as many operations as values, on words that are the caller's; a stream of the current context.
            unsafe { self.cuStreamBatchMemOp(raw(stream), values.len() as c_uint, operations.as_mut_ptr(), 0) }?;
        }
        Ok(())
    }

    unsafe fn operate(&self, stream: &Stream, operations: &[WordOperation]) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { words::operate(self, raw(stream), operations) }
    }

    fn check_word_operations(&self, device: DeviceIndex) -> Result<(), String> {
        words::check(self, device)
    }

    fn context_of(&self, stream: &Stream) -> Result<ContextHandle, Failure> {
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: fills in the context; the stream is the program's.
        unsafe { self.cuStreamGetCtx(raw(stream), &raw mut context) }?;
        Ok(ContextHandle(context.expose_provenance()))
    }

    fn is_capturing(&self, stream: &Stream) -> Result<bool, Failure> {
        let mut status: c_int = 0;
        // SAFETY: fills in the status of a stream of the current context.
        match unsafe { self.cuStreamIsCapturing(raw(stream), &raw mut status) } {
            Ok(()) => Ok(status != 0),
            // Before CUDA 10.0 there are no captures.
            Err(Failure { kind: FailureKind::Missing, .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn captures_words(&self) -> bool {
        true
    }

    #[inline]
    fn default_stream(&self) -> &Stream {
        &LEGACY
    }

    #[inline]
    fn default_stream_is_usable(&self) -> Result<bool, Failure> {
        let mut status: c_int = 0;
        // SAFETY: fills in the status. This question leaves captures alone.
        match unsafe { self.cuStreamIsCapturing(raw(&LEGACY), &raw mut status) } {
            Err(failure) if is_capture_elsewhere(failure) => Ok(false),
            // The function is missing before CUDA 10.0, which has no captures either.
            Ok(()) | Err(Failure { kind: FailureKind::Missing, .. }) => Ok(true),
            Err(failure) => Err(failure),
        }
    }

    fn capture_test_needs_event(&self) -> bool {
        self.version < FREES_NOTHING_IN_CAPTURES
    }

    /// The driver cannot report this directly. But in the thread-local mode it refuses an unsafe call exactly if this
    /// thread has begun a capture (other than a relaxed one). Captures of other threads are not affected. The refusal
    /// invalidates this thread's capture, as the thread's own unsafe calls would.
    ///
    /// On the tested drivers, freeing a null address is such a call. It costs 0.02 us, and the query of an event 1.3
    /// us.
    fn refuse_capture(&self, event: Option<&Event>) -> Result<(), Failure> {
        let mut mode = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as c_int;
        // SAFETY: exchanges this thread's mode with `mode`.
        if unsafe { self.cuThreadExchangeStreamCaptureMode(&raw mut mode) }.is_err() {
            // Drivers before 10.1 lack the function; `enter` has detected that, too.
            return Ok(());
        }
        let answer = match event {
            // SAFETY: an event of the current context.
            Some(event) => unsafe { self.cuEventQuery(raw_event(event)) },
            // SAFETY: an address of 0 is nothing to free.
            None => unsafe { self.cuMemFree(0) },
        };
        // SAFETY: gives the mode back that `enter` has set.
        unsafe { self.cuThreadExchangeStreamCaptureMode(&raw mut mode) }?;
        match answer {
            Err(Failure { kind: FailureKind::Capturing, .. }) => answer,
            // Other errors appear in later calls.
            _ => Ok(()),
        }
    }
}
