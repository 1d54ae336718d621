//! Streams, events, and captures of streams into graphs.

use super::{ContextHandle, Event, Failure, Stream};
use crate::location::DeviceIndex;
use crate::word_operation::WordOperation;

/// The priority of a stream's kernels on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    Normal,
    Highest,
}

/// A value that a stream writes to an aligned word.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Value {
    /// The word's address, as the device sees it.
    pub(crate) address: u64,
    /// The value; its lower half for a word of 32 bits.
    pub(crate) bits: u64,
    /// True for a word of 64 bits, false for 32.
    pub(crate) wide: bool,
}

/// Streams and events of the current context.
pub(crate) trait Streams {
    /// Creates a stream that never waits for the default stream by itself. The context is current.
    fn new_stream(&self, priority: Priority) -> Result<Stream, Failure>;

    /// The context is current, and the stream is empty.
    fn destroy_stream(&self, stream: Stream) -> Result<(), Failure>;

    /// Checks whether all work in the stream is done. The context is current.
    fn is_idle(&self, stream: &Stream) -> Result<bool, Failure>;

    /// Waits until all work in the stream is done. The context is current.
    fn synchronise(&self, stream: &Stream) -> Result<(), Failure>;

    /// Creates an event without timing. The context is current.
    fn new_event(&self) -> Result<Event, Failure>;

    fn destroy_event(&self, event: Event) -> Result<(), Failure>;

    /// Records the event after the present work of the stream. The context is current.
    fn record(&self, event: &Event, stream: &Stream) -> Result<(), Failure>;

    /// Checks whether the event is done.
    fn is_done(&self, event: &Event) -> Result<bool, Failure>;

    /// Makes the stream wait for the event. The context is current.
    fn wait(&self, stream: &Stream, event: &Event) -> Result<(), Failure>;

    /// Makes the stream write values. Each becomes visible after the values before it, and after all earlier work of
    /// the stream. The context is current.
    ///
    /// # Safety
    /// Every word is valid. No one else accesses it until it is written.
    unsafe fn write_values(&self, _stream: &Stream, _values: &[Value]) -> Result<(), Failure> {
        Err(Failure::missing("write_values"))
    }

    /// Makes the stream operate on words, one after another. The context is current.
    ///
    /// # Safety
    /// Every word is valid until the stream has passed the operations, and its other users access it atomically.
    unsafe fn operate(&self, _stream: &Stream, _operations: &[WordOperation]) -> Result<(), Failure> {
        Err(Failure::missing("operate"))
    }

    /// Checks whether streams of a device can operate on words of 64 bits, as far as the driver tells before it is
    /// tried. Fails with the reason and the remedy.
    fn check_word_operations(&self, _device: DeviceIndex) -> Result<(), String> {
        Err("the driver has no stream memory operations".to_owned())
    }

    /// Returns the context of a stream of the program.
    fn context_of(&self, _stream: &Stream) -> Result<ContextHandle, Failure> {
        Err(Failure::missing("context_of"))
    }

    /// Checks whether the stream captures its work into a graph. The context is current.
    fn is_capturing(&self, _stream: &Stream) -> Result<bool, Failure> {
        Ok(false)
    }

    /// Checks whether a graph can contain operations on words.
    fn captures_words(&self) -> bool {
        false
    }

    /// Returns the legacy default stream of the current context, which waits for all of its blocking streams.
    fn default_stream(&self) -> &Stream;

    /// Checks whether the default stream of the current context can be used. While any thread captures a stream that
    /// synchronises with it, its use would invalidate that capture.
    fn default_stream_is_usable(&self) -> Result<bool, Failure>;

    /// Checks whether the default stream is idle; `None` if a capture forbids the query. The context is current.
    fn default_stream_is_idle(&self) -> Result<Option<bool>, Failure> {
        if self.default_stream_is_usable()? { self.is_idle(self.default_stream()).map(Some) } else { Ok(None) }
    }

    /// Records the event after the present work of the default stream. Returns false if a capture forbids it. The
    /// context is current.
    #[inline]
    fn record_default_stream(&self, event: &Event) -> Result<bool, Failure> {
        let usable = self.default_stream_is_usable()?;
        if usable {
            self.record(event, self.default_stream())?;
        }
        Ok(usable)
    }

    /// Makes the stream wait, by the event, for the present work of the default stream. Returns false if a capture
    /// forbids it. The context is current.
    fn wait_for_default_stream(&self, stream: &Stream, event: &Event) -> Result<bool, Failure> {
        let recorded = self.record_default_stream(event)?;
        if recorded {
            self.wait(stream, event)?;
        }
        Ok(recorded)
    }

    /// Checks whether [`refuse_capture`](Self::refuse_capture) needs an event of the current context.
    fn capture_test_needs_event(&self) -> bool {
        false
    }

    /// Fails with [`FailureKind::Capturing`](super::FailureKind::Capturing) if the calling thread captures a stream.
    fn refuse_capture(&self, event: Option<&Event>) -> Result<(), Failure>;
}
