//! Contexts and the calling thread's capture mode.

use std::ffi::c_int;

use cudarc::driver::sys::{CUcontext, CUdevice, CUstreamCaptureMode_enum};

use super::NUMBERS;
use super::library::CudaDriver;
use crate::driver::{ContextHandle, Contexts, DeviceInfo, Entered, Failure, FailureKind};
use crate::location::DeviceIndex;

/// The first driver with ids of contexts.
const IDS_SINCE: c_int = 12_000;

fn raw(context: ContextHandle) -> CUcontext {
    std::ptr::with_exposed_provenance_mut(context.0)
}

fn handle(context: CUcontext) -> ContextHandle {
    ContextHandle(context.expose_provenance())
}

impl Contexts for CudaDriver {
    fn current_context(&self) -> Result<Option<ContextHandle>, Failure> {
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: fills in a handle.
        unsafe { self.cuCtxGetCurrent(&raw mut context) }?;
        Ok((!context.is_null()).then(|| handle(context)))
    }

    fn current_device(&self) -> Result<DeviceIndex, Failure> {
        let mut device: CUdevice = 0;
        // SAFETY: fills in the current context's device.
        unsafe { self.cuCtxGetDevice(&raw mut device) }?;
        let count = self.device_count()?;
        let first = NUMBERS.first(|| Ok(count))?;
        let mut indices = (first..first + count).map(DeviceIndex);
        let same = |index: &DeviceIndex| self.device(*index) == Ok(device);
        indices.find(same).ok_or(Failure::found("cuCtxGetDevice", FailureKind::InvalidValue))
    }

    #[inline]
    fn context_id(&self, context: ContextHandle) -> Result<u64, Failure> {
        let mut id = 0;
        // SAFETY: the driver checks the handle and fills in the id.
        match unsafe { self.cuCtxGetId(raw(context), &raw mut id) } {
            Ok(()) => Ok(id),
            // Before 12.0 the handle serves as the id.
            Err(Failure { kind: FailureKind::Missing, .. }) => Ok(context.0 as u64),
            Err(failure) => Err(failure),
        }
    }

    fn ids_are_unique(&self) -> bool {
        self.version >= IDS_SINCE
    }

    fn active_primary(&self, device: DeviceIndex) -> Result<Option<ContextHandle>, Failure> {
        let device_handle = self.device(device)?;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: fills in two integers.
        unsafe { self.cuDevicePrimaryCtxGetState(device_handle, &raw mut flags, &raw mut active) }?;
        if active == 0 {
            return Ok(None);
        }
        // The context is active, so retaining it only counts. The application's own reference keeps it afterwards.
        let context = self.retain_primary(device)?;
        self.release_primary(device)?;
        Ok(Some(context))
    }

    fn retain_primary(&self, device: DeviceIndex) -> Result<ContextHandle, Failure> {
        let device = self.device(device)?;
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: fills in a handle, and creates the context if nobody has.
        unsafe { self.cuDevicePrimaryCtxRetain(&raw mut context, device) }?;
        Ok(handle(context))
    }

    fn release_primary(&self, device: DeviceIndex) -> Result<(), Failure> {
        let device = self.device(device)?;
        // SAFETY: gives back a reference that the caller took.
        unsafe { self.cuDevicePrimaryCtxRelease(device) }
    }

    #[inline]
    fn enter(&self, context: ContextHandle) -> Result<Entered, Failure> {
        let mut entered = self.enter_none();
        let enter = || {
            let mut current: CUcontext = std::ptr::null_mut();
            // SAFETY: fills in the current context.
            unsafe { self.cuCtxGetCurrent(&raw mut current) }?;
            if current == raw(context) {
                return Ok(false);
            }
            // SAFETY: a handle of a live context, by the caller's word; the driver refuses others.
            unsafe { self.cuCtxPushCurrent(raw(context)) }.map(|()| true)
        };
        match enter() {
            Ok(pushed) => {
                entered.pushed = pushed;
                Ok(entered)
            }
            Err(failure) => {
                self.leave(entered);
                Err(failure)
            }
        }
    }

    #[inline]
    fn enter_none(&self) -> Entered {
        let mut mode = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED as c_int;
        // SAFETY: exchanges this thread's mode with `mode`. Missing before 10.1, where modes are unknown too.
        let exchanged = unsafe { self.cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        Entered { pushed: false, device: 0, capture_mode: exchanged.is_ok().then_some(mode) }
    }

    #[inline]
    fn leave(&self, entered: Entered) {
        if entered.pushed {
            let mut popped: CUcontext = std::ptr::null_mut();
            // SAFETY: pops what `enter` pushed: what a thread enters it leaves in the reverse order.
            if let Err(failure) = unsafe { self.cuCtxPopCurrent(&raw mut popped) } {
                log::debug!("leaving a context: {} failed with {}", failure.call, failure.code);
            }
        }
        if let Some(mut mode) = entered.capture_mode {
            // SAFETY: gives the thread back its own mode. It cannot fail where the first exchange did not.
            let _ = unsafe { self.cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
    }
}
