//! Sends messages through the shared FIFO or the peer's fast box, inline or in fragments.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};

use cableway_btl::{Error, FragmentOwner, Sent};

use super::SmEndpoint;
use crate::inner::{Inner, Request};
use crate::path::{FifoPath, Path};
use crate::peer::{DeviceStatus, Status};
use crate::pool::{DEVICE_SMALL, EAGER, Reference};
use crate::ring::fast_box::Writer;
use crate::ring::{Corrupt, fifo};
use crate::segment::BoxMemory;

/// Takes unsent fragments back, and counts the reserved places in the ring.
pub(super) struct Owner {
    pub(super) inner: Arc<Inner>,
    /// Allocated fragments that are not sent. Each has a reserved place in the ring.
    pub(super) reserved: AtomicU32,
}

impl FragmentOwner for Owner {
    fn give_back(&self, _memory: NonNull<u8>, key: u64) {
        self.inner.give_back(Reference::from_bits(key as u32));
        self.reserved.fetch_sub(1, Release);
    }
}

impl SmEndpoint {
    /// Returns whether messages can be sent now. Begins to connect if they cannot.
    pub(super) fn connected(&mut self) -> Result<bool, Error> {
        match self.peer.status() {
            Status::Departed | Status::Failed => return Err(self.peer.error()),
            Status::Idle | Status::Connecting => {
                if !std::mem::replace(&mut self.asked, true) {
                    self.inner.request(Request::Connect(self.peer.clone()));
                }
            }
            Status::Open => {
                if let (Path::None, Some(link)) = (&self.path, self.peer.link.get()) {
                    self.path = Path::Fifo(FifoPath::new(link.clone()), 0);
                    self.refresh();
                }
                return Ok(!matches!(self.path, Path::None));
            }
        }
        Ok(false)
    }

    /// Returns whether one more message can be sent besides the reserved places.
    pub(super) fn has_room(&mut self) -> Result<bool, Error> {
        let reserved = self.owner.reserved.load(Relaxed);
        let room = match &mut self.path {
            Path::None => Ok(false),
            Path::Fifo(path, _) => Ok(path.has_room(reserved as usize + 1)),
            Path::Box(writer) => writer.has_room(u64::from(reserved) + 1),
        };
        room.map_err(|corrupt| self.broken(corrupt))
    }

    /// Sends `len` bytes of a fragment from `acquire`, which went through the caches or past them.
    pub(super) fn push(&mut self, reference: Reference, len: usize, cached: bool) -> Result<(), Error> {
        let (Some(link), Some(pool)) = (self.peer.link.get(), self.inner.pool(reference.class())) else {
            return Err(self.unavailable("send", "the fragment belongs to another endpoint"));
        };
        let own = &mut self.fragments[usize::from(reference.class())];
        let about = pool.prepare(reference.id(), len, link.index, own);
        let pushed = match &mut self.path {
            Path::None => Err(Corrupt("a fragment was sent before the connection stood")),
            Path::Fifo(path, messages) => {
                *messages += 1;
                pool.write_header(reference.id(), about);
                path.push(fifo::Kind::Fragment, reference.bits())
            }
            Path::Box(writer) => writer.push_fragment(reference.bits(), about.to_bits()).and_then(|pushed| {
                if pushed { Ok(()) } else { Err(Corrupt("a fast box is full in spite of a reserved slot")) }
            }),
        };
        pool.tidy(own);
        // The next message is probably like this one.
        if cached && reference.class() < DEVICE_SMALL && len <= self.capabilities.eager_limit {
            pool.prefetch(own, len);
        }
        pushed.map_err(|corrupt| self.broken(corrupt))?;
        self.consider_box();
        Ok(())
    }

    /// Switches to a fast box if the peer qualifies. The record about the switch is the last one in the FIFO.
    fn consider_box(&mut self) {
        let Path::Fifo(path, messages) = &mut self.path else { return };
        let reserved = self.owner.reserved.load(Relaxed) as usize;
        let earned = *messages >= self.inner.settings.box_threshold;
        // Allocated fragments keep their reserved places in the box.
        if !earned || !path.has_room(reserved + 1) || reserved > self.inner.layout.box_slots / 2 {
            return;
        }
        let Some(number) = self.inner.give_box() else {
            *messages = 0;
            return;
        };
        let layout = &self.inner.layout;
        if path.push(fifo::Kind::FastBox, number).is_ok() {
            let memory = BoxMemory::new(&self.inner.memory, layout.fast_box(number as usize), layout.box_slots);
            self.path = Path::Box(Writer::new(memory));
        }
    }

    /// `send_inline` without a fast box, or for longer messages: an eager fragment carries the bytes.
    pub(super) fn send_in_fragment(&mut self, header: &[u8], payload: &[u8]) -> Result<Sent, Error> {
        let limit = self.capabilities.inline_limit;
        if header.len() + payload.len() > limit {
            return Err(
                self.unavailable("send_inline", format!("the message is longer than the {limit} bytes allowed"))
            );
        }
        if !self.connected()? || !self.has_room()? {
            return Ok(Sent::Busy);
        }
        let Some(pool) = self.inner.pool(EAGER) else { return Ok(Sent::Busy) };
        let Some(id) = pool.acquire(&mut self.fragments[usize::from(EAGER)]) else { return Ok(Sent::Busy) };
        let memory = pool.payload(id);
        // SAFETY: the fragment is ours alone until pushed, and has room for `short_limit` bytes.
        unsafe {
            memory.copy_from_nonoverlapping(NonNull::from(header).cast(), header.len());
            memory.add(header.len()).copy_from_nonoverlapping(NonNull::from(payload).cast(), payload.len());
        }
        self.push(Reference::new(EAGER, id), header.len() + payload.len(), true)?;
        Ok(Sent::Done)
    }

    /// Returns whether device fragments can be sent now.
    pub(super) fn device_ready(&mut self) -> Result<bool, Error> {
        match self.peer.device.get() {
            DeviceStatus::Ready => Ok(true),
            DeviceStatus::Asked => Ok(false),
            DeviceStatus::Unasked => {
                if self.inner.device_segment().is_none() {
                    self.peer.device.answered(false);
                } else {
                    self.peer.device.ask();
                    self.inner.request(Request::OfferDevice(self.peer.clone()));
                }
                Ok(false)
            }
            DeviceStatus::Refused => {
                self.refresh();
                Err(self.unavailable("alloc", "the two processes cannot share memory for devices"))
            }
        }
    }
}
