//! Operations that a call adds to a stream, or starts.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use cableway_common_cuda::{MemoryClass, WaitCondition, WordAccess, WordOperation};
use cableway_datatype::{Datatype, Layout, Predefined};
use cableway_pml::{Buffer, Communicator, KernelWords, Stream, StreamBatch, StreamMessage, Streams};

use super::access::{Memory, Move};
use super::kernel::words_of;
use super::order::{Gate, Lane, PostedPut, Put, Target};
use super::window::Opened;
use super::{Why, answer, text};
use crate::state;
use crate::streams;

/// The tag of all messages: they match in their order.
const TAG: i32 = 0;
/// Handles up to this one mean default streams.
const LAST_DEFAULT: usize = 2;

/// `enum cableway_mp_kind`
mod kind {
    use std::ffi::c_int;

    pub(super) const SEND: c_int = 0;
    pub(super) const RECEIVE: c_int = 1;
    pub(super) const PUT: c_int = 2;
    pub(super) const GET: c_int = 3;
    pub(super) const WAIT: c_int = 4;
    pub(super) const WRITE_WORD: c_int = 5;
    pub(super) const WAIT_WORD: c_int = 6;
    pub(super) const WRITE_BYTES: c_int = 7;
}

/// `struct iovec`
type Block = libc::iovec;

/// `struct cableway_mp_operation`
#[repr(C)]
struct Operation {
    kind: c_int,
    peer: c_int,
    address: *mut c_void,
    len: u64,
    blocks: *const Block,
    block_count: usize,
    window: *const Opened,
    displacement: u64,
    value: u32,
    condition: c_int,
    copied: bool,
    earlier: usize,
    message: *mut StreamMessage,
    source: *const c_void,
    words: *const KernelWords,
}
const _: () = assert!(size_of::<Operation>() == 104);

/// `struct cableway_mp_job`
#[repr(C)]
struct Job {
    communicator: *mut c_void,
    handle: *const Communicator,
    rank: c_int,
    size: c_int,
}

/// Adds operations to a stream in their order, or starts them on the calling thread if it is null.
///
/// # Safety
/// `stream` is null, or from `cableway_mp_stream_open` and not freed. The operations' memory is valid, and free of
/// conflicting accesses, until their messages are over; windows and messages are live. `why` has `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_post(
    job: *const Job,
    stream: *const Stream,
    operations: *mut Operation,
    count: usize,
    why: *mut c_char,
    room: usize,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise, here and below.
        let (job, stream) = unsafe { (&*job, stream.as_ref()) };
        // SAFETY: as above.
        let operations = unsafe { std::slice::from_raw_parts_mut(operations, count) };
        let engine = state::engine().and_then(|engine| engine.handle()).ok_or("the engine has ended")?;
        let streams = streams::of(&engine).map_err(text)?;
        // SAFETY: the pointer is from `Arc::into_raw`, and the communicator is live.
        let communicator = unsafe {
            Arc::increment_strong_count(job.handle);
            Arc::from_raw(job.handle)
        };
        let lane = stream.map_or(Lane::Host, |stream| Lane::Stream(stream.context(), stream.handle()));
        let mut batch = stream.map(Stream::batch).transpose().map_err(text)?;
        let mut made: Vec<Option<StreamMessage>> = Vec::with_capacity(count);
        let mut puts = Vec::new();
        for operation in &*operations {
            let to = match (&mut batch, operation.words.is_null()) {
                (Some(batch), _) => To::Stream(batch, lane),
                (None, true) => To::Host(&streams),
                // SAFETY: as above.
                (None, false) => To::Kernel(&streams, unsafe { words_of(operation.words) }),
            };
            // SAFETY: as above.
            made.push(unsafe { add(operation, &communicator, to, &made, &mut puts) }?);
        }
        if let Some(mut batch) = batch {
            let waits = operations.iter().any(|operation| operation.kind == kind::WAIT_WORD);
            // Nobody describes a default stream after the call, so that its number alone tells that it waits.
            if waits && stream.is_some_and(|stream| stream.handle() <= LAST_DEFAULT) {
                batch.mark();
            }
            batch.post().map_err(|error| explained(&error, operations))?;
        }
        puts.iter().for_each(PostedPut::note);
        for (operation, message) in operations.iter_mut().zip(made) {
            if let Some(message) = message {
                operation.message = Box::into_raw(Box::new(message));
            }
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { answer(Why { text: why, room }, call) }
}

/// Says why a stream did not get operations.
fn explained(error: &cableway_pml::Error, operations: &[Operation]) -> String {
    let Some(engine) = state::engine() else { return error.to_string() };
    let unknown = operations.iter().find(|operation| {
        matches!(operation.kind, kind::WRITE_WORD | kind::WAIT_WORD)
            && !engine.devices().reaches(operation.address.cast(), 4)
    });
    match unknown {
        Some(word) => format!(
            "no device reaches the word at {:p}: register its memory by mp_register, or allocate it with the driver: \
             {error}",
            word.address
        ),
        None => error.to_string(),
    }
}

/// Where operations go.
enum To<'t, 's> {
    Stream(&'t mut StreamBatch<'s>, Lane),
    Host(&'t Streams),
    /// The thread, once a kernel says so.
    Kernel(&'t Streams, Arc<KernelWords>),
}

impl To<'_, '_> {
    fn lane(&self) -> Lane {
        match self {
            To::Stream(_, lane) => *lane,
            To::Host(_) => Lane::Host,
            To::Kernel(..) => Lane::Kernel,
        }
    }
}

/// Adds one operation. Returns its message if it has one.
///
/// # Safety
/// As [`cableway_mp_post`].
unsafe fn add(
    operation: &Operation,
    on: &Arc<Communicator>,
    to: To<'_, '_>,
    made: &[Option<StreamMessage>],
    puts: &mut Vec<PostedPut>,
) -> Result<Option<StreamMessage>, String> {
    let (peer, lane) = (operation.peer, to.lane());
    let target = Target::new(on, peer);
    match operation.kind {
        kind::SEND | kind::RECEIVE => {
            // SAFETY: the caller's promise.
            let layout = unsafe { operation.layout() }?;
            let buffer = operation.buffer(layout.as_ref().map(|(base, layout)| (*base, layout)));
            let send = operation.kind == kind::SEND;
            let gate = if send { Gate::new(target, lane, puts) } else { None }.map(Box::new);
            // SAFETY: the caller's promise.
            let message = unsafe {
                match (to, send) {
                    (To::Stream(batch, _), true) => match gate {
                        Some(gate) => batch.isend_gated(on, (peer, TAG), buffer, gate),
                        None => batch.isend(on, peer, TAG, buffer),
                    },
                    (To::Stream(batch, _), false) => batch.irecv(on, peer, TAG, buffer),
                    (To::Host(streams), true) => match gate {
                        Some(gate) => streams.isend_gated(on, (peer, TAG), buffer, gate),
                        None => streams.isend(on, peer, TAG, buffer),
                    },
                    (To::Kernel(streams, words), true) => {
                        // Puts may start before the kernel says so.
                        let gate = Box::new(Gate::always(target, lane, puts));
                        streams.isend_by_kernel(&words, on, (peer, TAG), buffer, gate)
                    }
                    (To::Kernel(..), false) => return Err("a kernel starts no receive".to_owned()),
                    (To::Host(streams), false) => streams.irecv(on, peer, TAG, buffer),
                }
            };
            message.map(Some).map_err(text)
        }
        kind::PUT | kind::GET => {
            let put = (operation.kind == kind::PUT).then(|| Put::new(target, lane, puts));
            let posted = put.as_ref().map(Put::posted);
            // SAFETY: the caller's promise.
            let job = Box::new(unsafe { operation.access(on, put) }?);
            let message = match to {
                // SAFETY: the caller's promise.
                To::Stream(batch, _) => unsafe { batch.run(job) },
                // SAFETY: as above.
                To::Host(streams) => unsafe { streams.run(job) }.map_err(text)?,
                // SAFETY: as above.
                To::Kernel(streams, words) => unsafe { streams.run_by_kernel(&words, on, peer, job) }.map_err(text)?,
            };
            match (lane, posted) {
                (_, None) => {}
                // The stream gets it once the whole call was accepted.
                (Lane::Stream(..), Some(put)) => puts.push(put),
                (_, Some(put)) => put.note(),
            }
            Ok(Some(message))
        }
        other => {
            let To::Stream(batch, _) = to else { return Err("it needs a stream".to_owned()) };
            match other {
                kind::WAIT => batch.wait(&[operation.awaited(made)?]),
                // SAFETY: the caller's promise.
                kind::WRITE_WORD | kind::WAIT_WORD => unsafe { batch.operate(&[operation.word()?]) },
                // SAFETY: the caller's promise.
                kind::WRITE_BYTES => unsafe { operation.write(batch) }?,
                unknown => return Err(format!("there is no operation of kind {unknown}")),
            }
            Ok(None)
        }
    }
}

impl Operation {
    /// Returns the layout of a message in blocks, and the address from which it counts.
    ///
    /// # Safety
    /// The blocks are valid.
    unsafe fn layout(&self) -> Result<Option<(*const u8, Layout)>, String> {
        if self.blocks.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let blocks = unsafe { std::slice::from_raw_parts(self.blocks, self.block_count) };
        let base = blocks.first().map_or(std::ptr::null(), |block| block.iov_base.cast_const().cast::<u8>());
        let offset = |block: &Block| (block.iov_base as i64).wrapping_sub(base as i64);
        let offsets: Vec<i64> = blocks.iter().map(offset).collect();
        let lengths: Vec<i64> = blocks.iter().map(|block| block.iov_len as i64).collect();
        let datatype = Datatype::hindexed(&lengths, &offsets, &Predefined::Byte.datatype()).map_err(text)?;
        Ok(Some((base, datatype.commit())))
    }

    fn buffer<'l>(&self, layout: Option<(*const u8, &'l Layout)>) -> Buffer<'l> {
        match layout {
            Some((base, layout)) => Buffer::typed(base, 1, layout),
            None => Buffer::bytes(self.address.cast(), self.len),
        }
    }

    /// Describes a put or get.
    ///
    /// # Safety
    /// The window is live, and the bytes of a put that is copied are valid.
    unsafe fn access(&self, on: &Communicator, put: Option<Put>) -> Result<Move, String> {
        let members = on.group().len();
        let target = u32::try_from(self.peer).ok().filter(|&target| (target as usize) < members);
        let target = target.ok_or_else(|| format!("there is no rank {}: the communicator has {members}", self.peer))?;
        let displacement = i64::try_from(self.displacement)
            .map_err(|_| format!("displacement {} is larger than any window", self.displacement))?;
        // SAFETY: the caller's promise.
        let window = unsafe {
            Arc::increment_strong_count(self.window);
            Arc::from_raw(self.window)
        };
        let memory = if self.copied {
            let engine = state::engine().ok_or("the engine has ended")?;
            let bytes = usize::try_from(self.len).map_err(text)?;
            if engine.devices().classify(self.address.cast(), bytes).class == MemoryClass::Device {
                return Err("device memory cannot be copied within the call: leave MP_PUT_INLINE out".to_owned());
            }
            // SAFETY: the caller's promise; it is host memory.
            Memory::Copied(unsafe { std::slice::from_raw_parts(self.address.cast::<u8>(), bytes) }.into())
        } else {
            Memory::Program(self.address.expose_provenance())
        };
        let len = self.len;
        Ok(Move { window, target, displacement, memory, len, put, started: false, result: Arc::default() })
    }

    /// Returns the message that a wait is for.
    fn awaited<'m>(&'m self, made: &'m [Option<StreamMessage>]) -> Result<&'m StreamMessage, String> {
        let none = || "a wait for no message".to_owned();
        match self.earlier.checked_sub(1) {
            Some(at) => made.get(at).and_then(Option::as_ref).ok_or_else(none),
            // SAFETY: null, or a live message.
            None => unsafe { self.message.as_ref() }.ok_or_else(none),
        }
    }

    /// Adds a write of bytes.
    ///
    /// # Safety
    /// The source is valid host memory, and the destination as [`StreamBatch::operate`] asks.
    unsafe fn write(&self, batch: &mut StreamBatch<'_>) -> Result<(), String> {
        let len = usize::try_from(self.len).map_err(text)?;
        if len == 0 {
            return Ok(());
        }
        let engine = state::engine().and_then(|engine| engine.handle()).ok_or("the engine has ended")?;
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(self.source.cast::<u8>(), len) };
        // SAFETY: the caller's promise.
        unsafe { super::write::write(batch, &engine, self.address, bytes) };
        Ok(())
    }

    fn word(&self) -> Result<WordOperation, String> {
        let address = self.address.expose_provenance() as u64;
        if !address.is_multiple_of(4) {
            return Err(format!("the word at {address:#x} is misaligned: its address must be a multiple of 4"));
        }
        let access = match (self.kind, self.condition) {
            (kind::WRITE_WORD, _) => WordAccess::Write,
            (_, 0) => WordAccess::Wait(WaitCondition::GreaterOrEqual),
            (_, 1) => WordAccess::Wait(WaitCondition::Equal),
            (_, 2) => WordAccess::Wait(WaitCondition::And),
            (_, 3) => WordAccess::Wait(WaitCondition::Nor),
            (_, unknown) => return Err(format!("there is no condition {unknown}")),
        };
        Ok(WordOperation { address, value: u64::from(self.value), wide: false, access })
    }
}
