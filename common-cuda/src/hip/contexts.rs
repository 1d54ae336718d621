//! Devices as contexts, each thread's current device, and its capture mode.
//!
//! The handle of a device's context is the driver's number plus 1. `hipDeviceReset` frees everything on the device, which
//! then goes on under the same number. No call reports this, so streams and events of before fail one by one
//! (`hipErrorContextIsDestroyed`).

use std::ffi::c_int;

use super::NUMBERS;
use super::library::HipDriver;
use crate::driver::{ContextHandle, Contexts, Entered, Failure, FailureKind};
use crate::location::DeviceIndex;

/// `hipStreamCaptureModeRelaxed`.
const RELAXED: c_int = 2;

/// Set in the ids of contexts. The other vendor's ids count from 1.
const ID: u64 = 1 << 60;

pub(super) fn handle(ordinal: c_int) -> ContextHandle {
    ContextHandle(ordinal as usize + 1)
}

fn ordinal(context: ContextHandle) -> c_int {
    context.0 as c_int - 1
}

impl HipDriver {
    /// Converts a device's number in this process to the library's.
    pub(super) fn ordinal(&self, device: DeviceIndex) -> Result<c_int, Failure> {
        let count = self.count()?;
        let ordinal = NUMBERS.ordinal(device, || Ok(count))?;
        let exists = u32::try_from(ordinal).is_ok_and(|ordinal| ordinal < count);
        if exists { Ok(ordinal) } else { Err(Failure::found("device", FailureKind::NotSupported)) }
    }

    /// Converts the library's number of a device.
    pub(super) fn index(&self, ordinal: c_int) -> Option<DeviceIndex> {
        NUMBERS.index(ordinal, || self.count())
    }

    /// Returns the library's number of the thread's current device.
    #[inline]
    pub(super) fn current_ordinal(&self) -> Result<c_int, Failure> {
        self.count()?;
        let mut device: c_int = 0;
        // SAFETY: fills in the number.
        unsafe { self.hipGetDevice(&raw mut device) }?;
        Ok(device)
    }

    /// Checks whether the program uses a device.
    fn is_active(&self, ordinal: c_int) -> Result<bool, Failure> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: fills in two integers.
        unsafe { self.hipDevicePrimaryCtxGetState(ordinal, &raw mut flags, &raw mut active) }?;
        Ok(active != 0)
    }
}

impl Contexts for HipDriver {
    /// A thread that has chosen no device has device 0. It counts only if the program uses it.
    fn current_context(&self) -> Result<Option<ContextHandle>, Failure> {
        let ordinal = self.current_ordinal()?;
        Ok(self.is_active(ordinal)?.then(|| handle(ordinal)))
    }

    fn current_device(&self) -> Result<DeviceIndex, Failure> {
        let ordinal = self.current_ordinal()?;
        self.index(ordinal).ok_or(Failure::found("hipGetDevice", FailureKind::InvalidValue))
    }

    #[inline]
    fn context_id(&self, context: ContextHandle) -> Result<u64, Failure> {
        Ok(ID | context.0 as u64)
    }

    fn active_primary(&self, device: DeviceIndex) -> Result<Option<ContextHandle>, Failure> {
        let ordinal = self.ordinal(device)?;
        Ok(self.is_active(ordinal)?.then(|| handle(ordinal)))
    }

    /// A device's context is there as long as the process. `hipDevicePrimaryCtxRetain` counts nothing.
    fn retain_primary(&self, device: DeviceIndex) -> Result<ContextHandle, Failure> {
        self.ordinal(device).map(handle)
    }

    fn release_primary(&self, _device: DeviceIndex) -> Result<(), Failure> {
        Ok(())
    }

    /// `hipCtxPopCurrent` does not restore the thread's device, so the device is exchanged.
    #[inline]
    fn enter(&self, context: ContextHandle) -> Result<Entered, Failure> {
        let mut entered = self.enter_none();
        let enter = || {
            let (current, wanted) = (self.current_ordinal()?, ordinal(context));
            if current == wanted {
                return Ok((false, 0));
            }
            // SAFETY: the library checks the number.
            unsafe { self.hipSetDevice(wanted) }.map(|()| (true, current))
        };
        match enter() {
            Ok((pushed, device)) => {
                (entered.pushed, entered.device) = (pushed, device);
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
        let mut mode = RELAXED;
        // SAFETY: exchanges this thread's mode with `mode`. Missing before 5.2.
        let exchanged = unsafe { self.hipThreadExchangeStreamCaptureMode(&raw mut mode) };
        Entered { pushed: false, device: 0, capture_mode: exchanged.is_ok().then_some(mode) }
    }

    #[inline]
    fn leave(&self, entered: Entered) {
        if entered.pushed
            // SAFETY: the device that was current before.
            && let Err(failure) = unsafe { self.hipSetDevice(entered.device) }
        {
            log::debug!("leaving a device: {} failed with {}", failure.call, failure.code);
        }
        if let Some(mut mode) = entered.capture_mode {
            // SAFETY: gives the thread back its own mode.
            let _ = unsafe { self.hipThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
    }
}
