//! Streams of the program.

use std::sync::Arc;

use super::Devices;
use crate::copies::CopyQueue;
use crate::driver::{Failure, FailureKind, Stream};
use crate::error::DeviceError;
use crate::facts::Vendor;
use crate::kernels::{CopySlotNumber, Signalled};
use crate::location::{DeviceIndex, Location, MemoryClass};
use crate::word_operation::{WordAccess, WordOperation};

/// A stream that the program has made, in a context of the program.
pub struct ProgramStream {
    pub(super) queue: Arc<CopyQueue>,
    stream: Stream,
    device: DeviceIndex,
    /// Kernels make small copies that are followed by writes of words. AMD's devices were not measured.
    copies_by_kernel: bool,
}

/// A step that is added to a stream.
#[derive(Clone, Copy, Debug)]
pub enum StreamStep {
    /// An operation on a word.
    Word(WordOperation),
    /// Writes 0 to the word of 64 bits at this address, as the stream's device sees it. That becomes visible before the
    /// effects of later steps, but says nothing of earlier work.
    Clear(u64),
    /// A copy of `len` bytes between memory that the stream's device accesses.
    Copy {
        /// Where to.
        dst: *mut u8,
        /// Where from.
        src: *const u8,
        /// The length in bytes.
        len: usize,
        /// The slot of a kernel that may make the copy, because kernels in the stream's context may access both sides.
        by_kernel: Option<CopySlotNumber>,
    },
    /// A copy of what has arrived, by a kernel: kernels in the stream's context may access both sides, and
    /// [`ProgramStream::copies_by_kernel`] holds.
    CopyArrived {
        /// Where to.
        dst: *mut u8,
        /// Where from.
        src: *const u8,
        /// The most bytes that may arrive.
        most: usize,
        /// The address of a word of 64 bits, as the stream's device sees it: the number of bytes when the copy begins, and 0
        /// after it.
        arrived: u64,
        /// The kernel's slot.
        slot: CopySlotNumber,
    },
}

/// A slot of copies that kernels make in a context. Copies that may overlap need slots of their own. It is dropped once the
/// stream has passed them.
pub struct CopySlot {
    queue: Arc<CopyQueue>,
    number: CopySlotNumber,
}

impl CopySlot {
    /// Returns the number for [`StreamStep::Copy`].
    pub fn number(&self) -> CopySlotNumber {
        self.number
    }
}

impl Drop for CopySlot {
    fn drop(&mut self) {
        self.queue.workspace.kernels.give_slot_back(self.number);
    }
}

impl StreamStep {
    /// Returns whether the stream waits for a word.
    pub fn is_wait(&self) -> bool {
        self.word().is_some_and(|operation| matches!(operation.access, WordAccess::Wait(_)))
    }

    fn word(&self) -> Option<WordOperation> {
        match self {
            StreamStep::Word(operation) => Some(*operation),
            StreamStep::Clear(address) => Some(WordOperation::write(*address, 0)),
            StreamStep::Copy { .. } | StreamStep::CopyArrived { .. } => None,
        }
    }
}

impl Devices {
    /// Describes a stream of the program by its handle: a `CUstream`, or a `hipStream_t` for AMD's devices. The handles of
    /// the default streams mean those of the current context and thread.
    ///
    /// Makes what copies in the stream's context need, so that a copy made while the stream waits makes nothing.
    ///
    /// # Safety
    /// The stream exists until the value is dropped.
    ///
    /// # Errors
    /// The vendor's driver is not loaded, its streams cannot operate on words (the error says what to do), or the driver
    /// refused.
    pub unsafe fn program_stream(&self, vendor: Vendor, handle: usize) -> Result<ProgramStream, DeviceError> {
        let object = || format!("stream {handle:#x}");
        let of_vendor = self.platforms().find(|platform| platform.vendor() == Some(vendor));
        let platform = of_vendor.ok_or_else(|| DeviceError::no_driver(CALL, object()))?;
        let contexts = platform.contexts().ok_or_else(|| DeviceError::no_driver(CALL, object()))?;
        let driver = contexts.driver;
        let stream = Stream::new(handle);
        let found = contexts.of_stream(&stream).and_then(|queue| {
            let workspace = &queue.workspace;
            platform.registrations.settle(&workspace.context);
            let _scope = workspace.context.enter()?;
            let device = driver.current_device()?;
            workspace.make_streams()?;
            workspace.load_kernels(false);
            Ok((queue.clone(), device))
        });
        let (queue, device) = found.map_err(|failure| driver.error(failure, object()))?;
        driver.check_word_operations(device).map_err(|reason| DeviceError { call: CALL, object: object(), reason })?;
        let copies_by_kernel = vendor == Vendor::Nvidia;
        Ok(ProgramStream { queue, stream, device, copies_by_kernel })
    }
}

/// The call in errors.
const CALL: &str = "stream_operations";

impl ProgramStream {
    /// Returns the handle that the program gave.
    pub fn handle(&self) -> usize {
        self.stream.raw()
    }

    /// Loads the kernels of collectives in the stream's context, if its default stream is idle and loading is not held off
    /// ([`Devices::hold_mappings`]). Kernels that are not loaded are left to the host.
    pub fn load_collectives(&self) {
        self.queue.load_collectives();
    }

    /// Returns where memory would lie that was allocated in the stream's context.
    pub fn location(&self) -> Location {
        let context = self.queue.workspace.context.id;
        Location { class: MemoryClass::Device, device: Some(self.device), context, buffer_id: 0 }
    }

    /// Adds operations on words to the stream, in their order.
    ///
    /// # Safety
    /// Every word is valid until the stream has passed the operations. Others access it atomically.
    ///
    /// # Errors
    /// The stream captures a graph, its context is destroyed, or the driver refused.
    pub unsafe fn operate(&self, operations: &[WordOperation]) -> Result<(), DeviceError> {
        let context = &self.queue.workspace.context;
        let operated = context.enter().and_then(|_scope| {
            self.refuse_capture()?;
            // SAFETY: the caller's promise; the stream is of this context.
            unsafe { context.driver.operate(&self.stream, operations) }
        });
        operated.map_err(|failure| self.error(failure))
    }

    /// Adds a copy of `len` bytes to the stream, between memory that its device accesses.
    ///
    /// # Safety
    /// Both ranges are valid, and nobody else uses them conflictingly, until the stream has passed the copy.
    ///
    /// # Errors
    /// As [`operate`](Self::operate).
    pub unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), DeviceError> {
        let context = &self.queue.workspace.context;
        let copied = context.enter().and_then(|_scope| {
            self.refuse_capture()?;
            // SAFETY: the caller's promise; the stream is of this context.
            unsafe { context.driver.copy(dst, src, len, &self.stream) }
        });
        copied.map_err(|failure| self.error(failure))
    }

    /// Adds steps to the stream, in their order. Adjacent operations on words reach the driver by one call. A small copy and
    /// the writes beside it may become one kernel. If the stream captures a graph, they become part of it.
    ///
    /// # Safety
    /// As [`operate`](Self::operate) and [`copy`](Self::copy), also at each launch of a graph that contains them.
    ///
    /// # Errors
    /// The stream's context is destroyed, or the driver refused. The stream may have got the first steps.
    pub unsafe fn enqueue(&self, steps: &[StreamStep]) -> Result<(), DeviceError> {
        let context = &self.queue.workspace.context;
        let added = context.enter().and_then(|_scope| {
            let kernels = &self.queue.workspace.kernels;
            let mut able = self.copies_by_kernel();
            let by_kernel = |able: bool, steps| if able { self.copy_by_kernel(steps) } else { None };
            let mut words: Vec<WordOperation> = Vec::new();
            let mut rest = steps;
            while let Some(first) = rest.first() {
                if let Some((copy, count)) = by_kernel(able, rest) {
                    // SAFETY: the caller's promise; the stream is of this context.
                    able = unsafe { kernels.copy_signalled(copy, &self.stream) }?;
                    if able {
                        rest = &rest[count..];
                        continue;
                    }
                }
                if let StreamStep::CopyArrived { .. } = first {
                    return Err(Failure::missing("kernels"));
                }
                if let StreamStep::Copy { dst, src, len, .. } = *first {
                    // SAFETY: as above.
                    unsafe { context.driver.copy(dst, src, len, &self.stream) }?;
                    rest = &rest[1..];
                    continue;
                }
                words.clear();
                words.extend(first.word());
                rest = &rest[1..];
                while let Some(word) = rest.first().and_then(StreamStep::word)
                    && by_kernel(able, rest).is_none()
                {
                    words.push(word);
                    rest = &rest[1..];
                }
                // SAFETY: as above.
                unsafe { context.driver.operate(&self.stream, &words) }?;
            }
            Ok(())
        });
        added.map_err(|failure| self.error(failure))
    }

    /// Returns what a kernel does faster than a copy engine, if the steps begin with that, and the number of these steps: a
    /// word that is cleared, perhaps, then a copy, then writes.
    fn copy_by_kernel(&self, steps: &[StreamStep]) -> Option<(Signalled, usize)> {
        let clears = match steps.first()? {
            StreamStep::Word(_) => return None,
            StreamStep::Clear(address) => Some(*address),
            StreamStep::Copy { .. } | StreamStep::CopyArrived { .. } => None,
        };
        let at = usize::from(clears.is_some());
        let (mut copy, alone) = match *steps.get(at)? {
            StreamStep::Copy { dst, src, len, by_kernel: Some(slot) } => (Signalled::new(dst, src, len, slot)?, false),
            StreamStep::CopyArrived { dst, src, most, arrived, slot } => {
                let mut copy = Signalled::new(dst, src, most, slot)?;
                copy.arrived_at(arrived);
                (copy, true)
            }
            _ => return None,
        };
        copy.clear_before(clears);
        let behind = steps[at + 1..].iter().map_while(StreamStep::word);
        let count = behind.take_while(|word| copy.write_behind(*word)).count();
        (alone || count != 0).then_some((copy, at + 1 + count))
    }

    /// Checks whether kernels make small copies of the stream.
    pub fn copies_by_kernel(&self) -> bool {
        self.copies_by_kernel && self.queue.workspace.kernels.are_loaded()
    }

    /// Takes a slot for copies of the stream. Returns `None` if kernels make none, or all slots are in use.
    pub fn copy_slot(&self) -> Option<CopySlot> {
        let kernels = &self.queue.workspace.kernels;
        let number = if self.copies_by_kernel { kernels.take_slot()? } else { return None };
        Some(CopySlot { queue: self.queue.clone(), number })
    }

    /// Checks whether a graph that the stream captures can contain operations on words.
    pub fn captures_words(&self) -> bool {
        self.queue.workspace.context.driver.captures_words()
    }

    /// Checks whether the stream captures a graph.
    ///
    /// # Errors
    /// The stream's context is destroyed, or the driver refused.
    pub fn is_capturing(&self) -> Result<bool, DeviceError> {
        let context = &self.queue.workspace.context;
        let asked = context.enter().and_then(|_scope| context.driver.is_capturing(&self.stream));
        asked.map_err(|failure| self.error(failure))
    }

    /// Checks whether the stream has done all of its work. One that captures a graph counts as busy.
    ///
    /// # Errors
    /// The stream's context is destroyed, or the driver refused.
    pub fn is_idle(&self) -> Result<bool, DeviceError> {
        let context = &self.queue.workspace.context;
        let asked = context.enter().and_then(|_scope| {
            // A query would invalidate the capture.
            Ok(!context.driver.is_capturing(&self.stream)? && context.driver.is_idle(&self.stream)?)
        });
        asked.map_err(|failure| self.error(failure))
    }

    fn refuse_capture(&self) -> Result<(), Failure> {
        let context = &self.queue.workspace.context;
        match context.driver.is_capturing(&self.stream)? {
            true => Err(Failure::found(CALL, FailureKind::Capturing)),
            false => Ok(()),
        }
    }

    /// Checks whether the stream may do anything more: its context exists, and no kernel is known to have faulted there.
    pub fn goes_on(&self) -> bool {
        self.queue.workspace.context.works()
    }

    /// Asks the driver whether the stream may do anything more.
    ///
    /// # Errors
    /// The stream's context is destroyed, or a kernel has faulted there.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.queue.workspace.check().map_err(|failure| self.error(failure))
    }

    /// Returns the error of a call that a graph cannot contain.
    pub fn captures(&self) -> DeviceError {
        self.error(Failure::found(CALL, FailureKind::Capturing))
    }

    pub(super) fn error(&self, failure: Failure) -> DeviceError {
        if failure.kind == FailureKind::Capturing {
            return DeviceError {
                call: CALL,
                object: format!("stream {:#x}", self.stream.raw()),
                reason: "the stream captures a graph: end the capture first".to_owned(),
            };
        }
        self.queue.workspace.context.error(failure, format!("stream {:#x}", self.stream.raw()))
    }
}
