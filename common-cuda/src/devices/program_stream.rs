//! Streams of the program, and words that they exchange with the CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Devices;
use crate::copies::CopyQueue;
use crate::driver::{Failure, FailureKind, Stream};
use crate::error::DeviceError;
use crate::facts::Vendor;
use crate::memory::HostWords;
use crate::word_operation::WordOperation;

/// A stream that the program has made, in a context of the program.
pub struct ProgramStream {
    queue: Arc<CopyQueue>,
    stream: Stream,
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
            Ok((queue.clone(), device))
        });
        let (queue, device) = found.map_err(|failure| driver.error(failure, object()))?;
        driver.check_word_operations(device).map_err(|reason| DeviceError { call: CALL, object: object(), reason })?;
        Ok(ProgramStream { queue, stream })
    }
}

/// The driver registers whole pages.
const PAGE: usize = 4096;

/// The call in errors.
const CALL: &str = "stream_operations";

impl ProgramStream {
    /// Returns the handle that the program gave.
    pub fn handle(&self) -> usize {
        self.stream.raw()
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
            if context.driver.is_capturing(&self.stream)? {
                return Err(Failure::found(CALL, FailureKind::Capturing));
            }
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
            if context.driver.is_capturing(&self.stream)? {
                return Err(Failure::found(CALL, FailureKind::Capturing));
            }
            // SAFETY: the caller's promise; the stream is of this context.
            unsafe { context.driver.copy(dst, src, len, &self.stream) }
        });
        copied.map_err(|failure| self.error(failure))
    }

    /// Checks whether words were allocated for a stream of the same context.
    pub fn shares_context(&self, words: &StreamWords) -> bool {
        Arc::ptr_eq(&self.queue, &words.queue)
    }

    /// Checks whether the stream's context still exists. If not, the stream will do nothing more.
    pub fn exists(&self) -> bool {
        self.queue.workspace.context.alive()
    }

    /// Allocates words of zero that this stream and the CPU exchange.
    ///
    /// # Errors
    /// The driver does not register host memory.
    pub fn words(&self, count: usize) -> Result<StreamWords, DeviceError> {
        let context = &self.queue.workspace.context;
        let len = (count.max(1) * size_of::<AtomicU64>()).next_multiple_of(PAGE);
        let made = context.enter().and_then(|_scope| HostWords::new(context.driver, len));
        let words = made.map_err(|failure| self.error(failure))?;
        Ok(StreamWords { queue: self.queue.clone(), words, count })
    }

    fn error(&self, failure: Failure) -> DeviceError {
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

/// Words of 64 bits in host memory that a device accesses, too. Reads and writes by the CPU are atomic.
pub struct StreamWords {
    queue: Arc<CopyQueue>,
    words: HostWords,
    count: usize,
}

impl StreamWords {
    /// Reads a word. What the stream did before it wrote the word is visible after that.
    ///
    /// # Panics
    /// There is no such word.
    #[inline]
    pub fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    /// Writes a word, after all that this thread did before.
    ///
    /// # Panics
    /// There is no such word.
    #[inline]
    pub fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    /// Returns the address of a word as the device sees it.
    ///
    /// # Panics
    /// There is no such word.
    pub fn device_address(&self, index: usize) -> u64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        self.words.device() + (index * size_of::<AtomicU64>()) as u64
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: within the memory, which is aligned to a page, lives as long as `self` and is accessed atomically.
        unsafe { AtomicU64::from_ptr(self.words.address::<u64>().add(index)) }
    }
}

impl Drop for StreamWords {
    /// The stream has passed its operations on them, or its context is destroyed.
    fn drop(&mut self) {
        let context = &self.queue.workspace.context;
        if let Ok(_scope) = context.enter() {
            self.words.destroy(context.driver);
        }
    }
}
