//! Streams whose copies happen as late as permitted.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::Double;
use crate::copy::{Direction, RowCopy};
use crate::driver::{Copies, Event, Failure, FailureKind, Priority, Stream, Streams};

/// The number of queries that an event answers with "not done".
const PATIENCE: u32 = 1;

static DEFAULT: Stream = Stream::new(1);

/// Work of a stream, in its order.
#[derive(Default)]
pub(super) struct Queue(VecDeque<Work>);

enum Work {
    Copy(RowCopy),
    /// An event of this handle, and the number of its queries.
    Event(usize, u32),
}

impl Double {
    fn push(&self, stream: &Stream, work: Work) {
        if let Some((_, queue)) = self.queues.lock().iter_mut().find(|(handle, _)| *handle == stream.raw()) {
            queue.0.push_back(work);
        }
    }

    /// Executes the first items of a queue.
    fn run(&self, queue: &mut Queue, count: usize) {
        for work in queue.0.drain(..count) {
            let Work::Copy(piece) = work else { continue };
            for row in 0..piece.rows {
                let src = piece.src.wrapping_add(row * piece.src_pitch);
                let dst = piece.dst.wrapping_add(row * piece.dst_pitch);
                // SAFETY: whoever began the copy keeps both ranges allocated until an event says that it is done.
                unsafe { std::ptr::copy_nonoverlapping(self.reachable(src), self.reachable(dst), piece.width) };
            }
        }
    }

    /// Executes all remaining work of all streams. An allocation waits for this when it is freed.
    pub(super) fn finish_all(&self) {
        for (_, queue) in self.queues.lock().iter_mut() {
            let count = queue.0.len();
            self.run(queue, count);
        }
    }
}

impl Streams for Double {
    fn new_stream(&self, _priority: Priority) -> Result<Stream, Failure> {
        let handle = self.handle();
        self.queues.lock().push((handle, Queue::default()));
        Ok(Stream::new(handle))
    }

    fn destroy_stream(&self, stream: Stream) -> Result<(), Failure> {
        self.synchronise(&stream)?;
        self.queues.lock().retain(|(handle, _)| *handle != stream.raw());
        Ok(())
    }

    fn is_idle(&self, stream: &Stream) -> Result<bool, Failure> {
        let queues = self.queues.lock();
        Ok(queues.iter().all(|(handle, queue)| *handle != stream.raw() || queue.0.is_empty()))
    }

    fn synchronise(&self, stream: &Stream) -> Result<(), Failure> {
        if let Some((_, queue)) = self.queues.lock().iter_mut().find(|(handle, _)| *handle == stream.raw()) {
            let count = queue.0.len();
            self.run(queue, count);
        }
        Ok(())
    }

    fn new_event(&self) -> Result<Event, Failure> {
        Ok(Event::new(self.handle()))
    }

    fn destroy_event(&self, _event: Event) -> Result<(), Failure> {
        Ok(())
    }

    fn record(&self, event: &Event, stream: &Stream) -> Result<(), Failure> {
        self.push(stream, Work::Event(event.raw(), 0));
        Ok(())
    }

    fn is_done(&self, event: &Event) -> Result<bool, Failure> {
        for (_, queue) in self.queues.lock().iter_mut() {
            let ours = |work: &Work| matches!(work, Work::Event(handle, _) if *handle == event.raw());
            let Some(place) = queue.0.iter().rposition(ours) else { continue };
            if let Work::Event(_, asked) = &mut queue.0[place]
                && *asked < PATIENCE
            {
                *asked += 1;
                return Ok(false);
            }
            self.run(queue, place + 1);
        }
        Ok(true)
    }

    fn wait(&self, _stream: &Stream, event: &Event) -> Result<(), Failure> {
        // Waits at once, which keeps the order.
        while !self.is_done(event)? {}
        Ok(())
    }

    /// The default stream never has pending work.
    fn default_stream(&self) -> &Stream {
        &DEFAULT
    }

    fn default_stream_is_usable(&self) -> Result<bool, Failure> {
        Ok(true)
    }

    fn refuse_capture(&self, _event: Option<&Event>) -> Result<(), Failure> {
        Ok(())
    }
}

impl Copies for Double {
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize, stream: &Stream) -> Result<(), Failure> {
        self.push(stream, Work::Copy(RowCopy::run(dst, src, len)));
        Ok(())
    }

    unsafe fn copy_rows(&self, piece: &RowCopy, _direction: Direction, stream: &Stream) -> Result<(), Failure> {
        self.push(stream, Work::Copy(*piece));
        Ok(())
    }

    unsafe fn write(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(src, self.reachable(dst), len) };
        Ok(())
    }

    unsafe fn read(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(self.reachable(src), dst, len) };
        Ok(())
    }

    unsafe fn fill(&self, dst: *mut u8, byte: u8, len: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::write_bytes(self.reachable(dst), byte, len) };
        Ok(())
    }

    unsafe fn register_host(&self, _address: *mut u8, _len: usize) -> Result<(), Failure> {
        self.registered.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn unregister_host(&self, _address: *mut u8) -> Result<(), Failure> {
        let counted = |count: usize| count.checked_sub(1);
        let left = self.registered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted);
        left.map(|_| ()).map_err(|_| Failure::found("unregister_host", FailureKind::NotRegistered))
    }

    fn device_address(&self, host: *const u8) -> Result<u64, Failure> {
        Ok(host as u64)
    }
}
