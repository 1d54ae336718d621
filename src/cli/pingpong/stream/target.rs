//! Where puts with signals land, on both ranks.

use std::cell::Cell;

use cableway::{
    BufferKind, Communicator, DeviceBuffer, DeviceIndex, Error, Lent, PutPath, RawMemory, Registration, RemoteKey,
    Signal, SignalUpdate, StreamCall, StreamRef, StreamScope, StreamWord, World,
};

use crate::cli::Failure;
use crate::cli::pingpong::memory::Memory;

/// This rank's registered memory, and the keys of the peer's. A word of it counts the puts that came.
pub(super) struct Target {
    // Both end before their memory.
    _memory: Registration<RawMemory>,
    count: Registration<RawMemory>,
    _word: DeviceBuffer,
    peer: u32,
    peers_memory: RemoteKey,
    peers_count: RemoteKey,
    /// The number of puts so far.
    given: Cell<u64>,
    /// The number of waits so far.
    awaited: Cell<u64>,
}

impl Target {
    /// Registers memory, and exchanges keys. Both ranks call it.
    ///
    /// # Safety
    /// The memory lives longer than the value, and is accessed only where the peer does not access it.
    pub(super) unsafe fn new(world: &World, device: DeviceIndex, memory: &Memory) -> Result<Self, Failure> {
        let (address, len) = memory.whole();
        // The peer's stream writes a word in device memory, and this rank's waits for it.
        let word = word(world, device, BufferKind::Device)?;
        // SAFETY: the caller's promise.
        let memory = world.register(unsafe { RawMemory::new(address.cast(), len as u64) })?;
        // SAFETY: the word lives longer than its registration. Only signals and streams access it.
        let count = world.register(unsafe { RawMemory::new(word.as_device_ptr().cast(), 8) })?;
        let mut keys = [RemoteKey::default(); 4];
        world.communicator().allgather(&[*memory.key(), *count.key()], &mut keys)?;
        let peer = 1 - world.rank();
        let [peers_memory, peers_count] = [0, 1].map(|at| keys[2 * peer as usize + at]);
        Ok(Target {
            _memory: memory,
            count,
            _word: word,
            peer,
            peers_memory,
            peers_count,
            given: Cell::new(0),
            awaited: Cell::new(0),
        })
    }

    /// Maps the peer's memory before the stream has work. Both ranks call it. Returns whether the stream alone puts device
    /// memory there.
    pub(super) fn map(&self, on: &Communicator, stream: &StreamRef) -> Result<bool, Error> {
        on.barrier()?;
        let paths = [stream.map_for_puts(&self.peers_memory)?, stream.map_for_puts(&self.peers_count)?];
        // The peer maps, too, and needs this rank's progress for it.
        on.barrier()?;
        Ok(paths.iter().all(|path| *path == PutPath::Stream))
    }

    /// Adds a put into the peer's memory, whose signal counts it.
    pub(super) fn put<'scope>(
        &self,
        scope: &'scope StreamScope<'scope, '_>,
        message: &Lent<'scope>,
    ) -> Result<(), Error> {
        self.given.set(self.given.get() + 1);
        let signal = Signal { at: self.peers_count.at(0), update: SignalUpdate::Set(self.given.get()) };
        scope.put(message, self.peers_memory.at(0), Some(signal))
    }

    /// Adds a wait for the peer's next put.
    pub(super) fn wait<'scope>(&'scope self, scope: &'scope StreamScope<'scope, '_>) -> Result<(), Error> {
        self.awaited.set(self.awaited.get() + 1);
        scope.wait_signal(&self.count, 0, self.awaited.get(), self.peer)
    }
}

/// A word of pinned memory that only this rank's stream writes.
pub(super) struct Word(DeviceBuffer);

impl Word {
    pub(super) fn new(world: &World, device: DeviceIndex) -> Result<Self, Failure> {
        word(world, device, BufferKind::Pinned).map(Word)
    }

    /// Adds writes to the word by one call.
    pub(super) fn write<'scope>(&'scope self, scope: &'scope StreamScope<'scope, '_>, count: u64) -> Result<(), Error> {
        let word = StreamWord::Bits64(self.0.as_device_ptr() as u64);
        // SAFETY: an aligned word of registered memory, which lives longer than the scope. Nobody else accesses it.
        let writes: Result<Vec<_>, _> =
            (0..count).map(|value| unsafe { StreamCall::write_value(word, value) }).collect();
        scope.enqueue(&writes?)
    }
}

fn word(world: &World, device: DeviceIndex, kind: BufferKind) -> Result<DeviceBuffer, Failure> {
    let word = DeviceBuffer::new(world.devices(), device, kind, 8);
    let mut word = word.map_err(|error| Failure::failed(1, error))?;
    word.copy_from_host(0, &[0; 8]).map_err(|error| Failure::failed(1, error))?;
    Ok(word)
}
