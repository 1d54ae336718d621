//! Puts that a stream makes by itself: a copy into memory of the target that the stream's device has mapped, and then a
//! write of the signal's word.
//!
//! The memory is mapped by [`Stream::map_for_puts`], at a time when no stream waits. Behind each put the stream writes its
//! number, as for the calls that the thread serves, but the thread is not woken. The number tells when the stream has passed
//! the put: until then the owner's end of the registration waits.

use std::sync::{Arc, Weak};

use cableway_common_cuda::{ExportKind, MemoryClass, Reach, StreamStep, WordOperation};

use super::batch::StreamBatch;
use super::handle::Stream;
use super::imported::Imported;
use super::operation::{Message, StreamJob};
use super::prepared::quiet::{PATIENCE, while_quiet};
use super::shared::Shared;
use super::state::StreamState;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::rma::{DeviceMemory, Exposable, OneSided, Passing, Place, RemoteKey, Signal, SignalUpdate, StreamPut};

/// What makes a put on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutPath {
    /// The stream alone.
    Stream,
    /// The thread of streams, when the stream gets there.
    Thread {
        /// Why the stream alone cannot.
        reason: &'static str,
    },
}

const COPY_ONLY: &str = "device_protocols=copy is set";
const OWN: &str = "the memory belongs to this process";
const NOT_DEVICE: &str = "the target's memory is not in device memory";
const NOT_EXPORTED: &str = "no other process can map the target's memory by a handle";
const NOT_NOW: &str = "the target had work on its default stream, or ended the registration";
const BUSY: &str = "a stream had work, so nothing could be mapped: map before streams have work";
const NOT_MAPPED: &str = "this process cannot map the target's memory";
const NOT_SOURCE: &str = "the buffer is not one run of bytes on a device of the stream's vendor";
const ADDS: &str = "the CPU of the target gives signals that add";
const UNKNOWN: &str =
    "the memory is not mapped for the stream, a fence orders the put, or the owner takes the memory back";

impl Stream {
    /// Maps registered memory of a peer, so that this stream and others of its context put into it alone. Returns what makes
    /// puts to it from now on. Memory of the data and of the signal's word is mapped by one call each.
    ///
    /// Waits for the owner, which answers in a call that makes progress. A driver maps memory only after it has waited for
    /// the context's streams. So if a described stream may wait for a message now, or has other work for two more seconds,
    /// nothing is mapped.
    ///
    /// # Errors
    /// The key is not valid or not valid any more, or the owner is gone.
    pub fn map_for_puts(&self, by: &Arc<OneSided>, key: &RemoteKey) -> Result<PutPath, Error> {
        self.shared.check()?;
        let mapped = self.map(by, key)?;
        if let Err(reason) = mapped {
            log::info!("puts of a stream to rank {} are made by a thread: {reason}", key.rank());
        }
        Ok(mapped.map_or_else(|reason| PutPath::Thread { reason }, |()| PutPath::Stream))
    }

    fn map(&self, by: &OneSided, key: &RemoteKey) -> Result<Result<(), &'static str>, Error> {
        let Stream { shared, state, .. } = self;
        if !by.check_key(key)? {
            return Ok(Err(OWN));
        }
        if shared.engine.core().copy_only() {
            return Ok(Err(COPY_ONLY));
        }
        if key.class() != Some(MemoryClass::Device) {
            return Ok(Err(NOT_DEVICE));
        }
        let exposure = match by.expose_to_streams(key)? {
            Exposable::Exposed(exposure) => exposure,
            Exposable::Never => return Ok(Err(NOT_EXPORTED)),
            Exposable::NotNow => return Ok(Err(NOT_NOW)),
        };
        if !matches!(exposure.exported.kind, ExportKind::Legacy | ExportKind::Hip) {
            return Ok(Err(NOT_EXPORTED));
        }
        let at = state.program.location();
        if exposure.is_mapped(at.context) {
            return Ok(Ok(()));
        }
        let imports = &shared.exchange.imports;
        let quiet = while_quiet(&shared.engine, &shared.streams(), PATIENCE, || {
            shared.unneeded.close_all(imports);
            imports.reach(key.rank(), &exposure.exported, &at, u64::MAX)
        });
        Ok(match quiet {
            Ok(Ok(Reach::Mapped(mapped))) => {
                let address = mapped.address(exposure.first).expose_provenance() as u64;
                let id = (key.rank(), exposure.exported.buffer_id);
                let keeper = Box::new(Imported::new(shared, id, mapped));
                exposure.set_mapped(DeviceMemory { context: at.context, address, _keeper: keeper });
                Ok(())
            }
            Ok(Ok(_) | Err(_)) => Err(NOT_MAPPED),
            Err(_busy) => Err(BUSY),
        })
    }

    /// Returns what would make a put that is added now.
    ///
    /// # Errors
    /// As [`OneSided::put`].
    pub fn put_path(
        &self,
        by: &OneSided,
        from: Buffer<'_>,
        to: Place<'_>,
        signal: Option<Signal<'_>>,
    ) -> Result<PutPath, Error> {
        by.check_put(from, to, signal)?;
        let planned = plan(&self.shared, &self.state, from, to, signal);
        Ok(match planned.and_then(|planned| by.targets(&planned.put, None).ok_or(UNKNOWN)) {
            Ok(_) => PutPath::Stream,
            Err(reason) => PutPath::Thread { reason },
        })
    }
}

impl StreamBatch<'_> {
    /// Adds a put that the stream makes alone: the signal is given, and the stream's later work begins, when the data is at
    /// the target. If the stream alone cannot make it, nothing is added, and [`put`](Self::put) can be called.
    ///
    /// # Safety
    /// The buffer stays valid, and unwritten other than by earlier and later work of the stream, until the stream has
    /// passed the put.
    ///
    /// # Errors
    /// As [`OneSided::put`]. The other calls of the batch are not affected.
    pub unsafe fn put_alone(
        &mut self,
        by: &OneSided,
        from: Buffer<'_>,
        to: Place<'_>,
        signal: Option<Signal<'_>>,
    ) -> Result<PutPath, Error> {
        by.check_put(from, to, signal)?;
        let Planned { put, by_kernel } = match plan(self.shared, self.state, from, to, signal) {
            Ok(planned) => planned,
            Err(reason) => return Ok(PutPath::Thread { reason }),
        };
        let user = user(self.shared, self.state);
        let number = self.next();
        let Some(targets) = by.targets(&put, Some((&user, number))) else {
            return Ok(PutPath::Thread { reason: UNKNOWN });
        };
        if let (Some((src, _)), Ok(len @ 1..)) = (from.contiguous(), usize::try_from(put.len)) {
            let dst = std::ptr::with_exposed_provenance_mut(targets.data as usize);
            let by_kernel = if by_kernel { self.state.copy_slot() } else { None };
            self.steps.push(StreamStep::Copy { dst, src, len, by_kernel });
        }
        if let (Some(word), Some((_, value))) = (targets.word, put.signal) {
            self.steps.push(StreamStep::Word(WordOperation::write(word, value)));
        }
        self.pass(number);
        Ok(PutPath::Stream)
    }
}

/// A put that the stream could make.
struct Planned<'k> {
    put: StreamPut<'k>,
    /// Kernels in the stream's context may read the buffer.
    by_kernel: bool,
}

/// Describes a put if the stream could make it, given that the memory is mapped.
fn plan<'k>(
    shared: &Shared,
    state: &StreamState,
    from: Buffer<'_>,
    to: Place<'k>,
    signal: Option<Signal<'k>>,
) -> Result<Planned<'k>, &'static str> {
    let signal = match signal {
        None => None,
        Some(Signal { at, update: SignalUpdate::Set(value) }) => Some((at, value)),
        Some(Signal { update: SignalUpdate::Add(_), .. }) => return Err(ADDS),
    };
    let (devices, at) = (shared.engine.devices(), state.program.location());
    let Some((_, len)) = from.contiguous() else { return Err(NOT_SOURCE) };
    let mut by_kernel = false;
    if len > 0 {
        let location = from.classify(devices);
        let vendor = |device: Option<_>| device.and_then(|device| devices.vendor(device));
        let of_vendor = location.device == at.device || vendor(location.device) == vendor(at.device);
        if location.class != MemoryClass::Device || !of_vendor {
            return Err(NOT_SOURCE);
        }
        by_kernel = location.context == at.context;
    }
    Ok(Planned { put: StreamPut { to, len, signal, context: at.context }, by_kernel })
}

/// Returns the stream as memory of peers knows it.
fn user(shared: &Arc<Shared>, state: &Arc<StreamState>) -> Arc<dyn Passing> {
    let new =
        || -> Arc<dyn Passing> { Arc::new(User { shared: Arc::downgrade(shared), state: Arc::downgrade(state) }) };
    state.user.get_or_init(new).clone()
}

/// See [`user`].
struct User {
    shared: Weak<Shared>,
    /// A state is dropped only after its stream has passed everything.
    state: Weak<StreamState>,
}

impl Passing for User {
    fn has_passed(&self, number: u64) -> bool {
        self.state.upgrade().is_none_or(|state| state.has_passed(number))
    }

    fn look_until(&self, look: Box<dyn FnMut() -> bool + Send>) {
        // Without the thread the calls that wait look.
        if let Some(shared) = self.shared.upgrade() {
            shared.look_after(Message::job(Box::new(Look(look))));
        }
    }
}

/// Has the thread look.
struct Look(Box<dyn FnMut() -> bool + Send>);

impl StreamJob for Look {
    fn poll(&mut self) -> Option<Result<(), Error>> {
        (self.0)().then_some(Ok(()))
    }
}
