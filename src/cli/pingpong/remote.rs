//! Puts and gets between two ranks, each with registered memory.

use cableway::{
    Communicator, Place, Rank, RawBuffer, RawMemory, Registration, RemoteKey, SharedVec, Signal, SignalUpdate, World,
};

use super::memory::Memory;
use super::shape::Shape;
use crate::cli::Failure;

const READY: i32 = 4;
const DONE: i32 = 5;

/// This rank's registered memory, and the keys of the peer's.
pub(crate) struct Remote<'a> {
    on: &'a Communicator,
    peer: Rank,
    /// Ends before the memory is freed.
    _memory: Registration<RawMemory>,
    arrivals: Arrivals,
    peers_memory: RemoteKey,
    peers_signal: RemoteKey,
    /// The layout of the peer's messages in its memory.
    peers_shape: Shape,
    /// The number of puts to the peer so far.
    sent: u64,
}

/// The word that the peer's puts count up.
struct Arrivals {
    signal: Registration<SharedVec<u64>>,
    /// The number of puts to this rank that were waited for.
    seen: u64,
}

impl Arrivals {
    /// Waits for the next put of rank `peer`.
    fn next(&mut self, peer: Rank) -> Result<(), Failure> {
        self.seen += 1;
        self.signal.wait_until(0, peer, |word| word >= self.seen)?;
        Ok(())
    }
}

impl<'a> Remote<'a> {
    /// Registers memory, and exchanges keys. Both ranks call it. The peer's messages have the layout
    /// `peers_shape`.
    ///
    /// # Safety
    /// The memory lives longer than the value, and is accessed only where the peer does not access it.
    pub(crate) unsafe fn new(world: &'a World, memory: &Memory, peers_shape: Shape) -> Result<Self, Failure> {
        let on = world.communicator();
        let (address, len) = memory.whole();
        // SAFETY: the caller's promise.
        let memory = world.register(unsafe { RawMemory::new(address.cast(), len as u64) })?;
        let signal = world.register(world.shared_vec::<u64>(1)?)?;
        let mut keys = [RemoteKey::default(); 4];
        on.allgather(&[*memory.key(), *signal.key()], &mut keys)?;
        let peer = 1 - on.rank();
        let [peers_memory, peers_signal] = [0, 1].map(|at| keys[2 * peer as usize + at]);
        let arrivals = Arrivals { signal, seen: 0 };
        Ok(Remote { on, peer, _memory: memory, arrivals, peers_memory, peers_signal, peers_shape, sent: 0 })
    }

    /// Puts a message of `size` bytes, and waits for the peer's.
    pub(crate) fn ping(&mut self, message: &RawBuffer<'_>, size: u64) -> Result<(), Failure> {
        let Remote { on, peer, arrivals, peers_memory, peers_signal, peers_shape, sent, .. } = self;
        *sent += 1;
        let signal = Signal { at: peers_signal.at(0), update: SignalUpdate::Set(*sent) };
        on.scope(|scope| {
            let put = scope.put_signal(message, peers_shape.target(peers_memory, size), signal)?;
            arrivals.next(*peer)?;
            put.wait()?;
            Ok(())
        })
    }

    /// Waits for a message of the peer.
    pub(crate) fn pong(&mut self) -> Result<(), Failure> {
        self.arrivals.next(self.peer)
    }

    /// Puts a message of `size` bytes.
    pub(crate) fn put(&mut self, message: &RawBuffer<'_>, size: u64) -> Result<(), Failure> {
        self.sent += 1;
        let signal = Signal { at: self.peers_signal.at(0), update: SignalUpdate::Set(self.sent) };
        Ok(self.on.put_signal(message, self.peers_shape.target(&self.peers_memory, size), signal)?)
    }

    /// Returns where the peer's memory begins.
    pub(crate) fn place(&self) -> Place<'_> {
        self.peers_memory.at(0)
    }

    /// Gets the peer's message of `size` bytes.
    pub(crate) fn get(&self, buffer: &mut RawBuffer<'_>, size: u64) -> Result<(), Failure> {
        Ok(self.on.get(buffer, self.peers_shape.target(&self.peers_memory, size))?)
    }

    /// Tells the peer that its gets may begin, and waits until they have ended.
    pub(crate) fn serve(&self) -> Result<(), Failure> {
        self.on.send(&[0_u8], self.peer, READY)?;
        self.on.recv(&mut [0_u8], self.peer, DONE)?;
        Ok(())
    }

    /// Waits until the peer's memory may be read, and calls `gets`.
    pub(crate) fn while_served(&self, gets: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        self.on.recv(&mut [0_u8], self.peer, READY)?;
        gets()?;
        Ok(self.on.send(&[0_u8], self.peer, DONE)?)
    }
}
