//! Direct puts and gets: the caller moves the bytes by a link's own operation, and the owner takes no part.
//!
//! Each operation asks whether it can, and whether that costs less. The first one that would go directly asks the owner
//! for the memory's exposure, and goes by the owner. After the bytes have moved, this process gives the signal if the word is
//! mapped here, or else asks the owner for it: processors change all words.

use std::ffi::c_void;
use std::sync::Arc;

use cableway_btl::{Flags, Region};
use cableway_common_cuda::{Devices, Location, MemoryClass, Order, Strided};

use super::caller::Caller;
use super::exposures::{Begin, Ticket};
use super::gates::Reach;
use super::local::{Local, Memory};
use super::operation::{Moving, Operation, Part};
use super::registry::Span;
use super::target;
use super::wire::Wish;
use crate::am::INLINE_LIMIT;
use crate::core::{Abilities, Completion, Done};
use crate::protocol::Slot;
use crate::protocol::direct::{self, Access, Move, Way, WayCosts};
use crate::shapes::Elements;
use crate::wire::Exposed;

/// A direct move that may start.
struct Plan<'p> {
    slot: &'p Slot,
    /// Whether the copies follow no default stream.
    settled: bool,
    /// The memory of this process.
    address: *mut u8,
    len: usize,
    location: Location,
    way: Exposed,
    blocks: Option<Blocks>,
}

/// Places of a device's memory, in the caller's memory and in the peer's.
type Blocks = [Strided; 2];

impl Operation {
    /// Starts to move the bytes directly. The move ends the part. Returns the part if nothing was started: then the bytes go
    /// by the owner.
    pub(super) fn start_directly(self: &Arc<Self>, caller: &Arc<Caller>, part: Part) -> Option<Part> {
        let (store, memory) = match &self.local {
            Local::Put(memory) => (true, memory),
            Local::Get(memory) => (false, memory),
            Local::Atomic(_) => return Some(part),
        };
        // Nothing is cheaper than host data that travels with its request, so the memory is not looked up.
        let little = memory.len <= INLINE_LIMIT as u64 && !self.remote_on_device;
        if little || memory.len == 0 || self.to == caller.poster.rank() {
            return Some(part);
        }
        let engine = caller.poster.engine();
        // The first operation connects, so that it can ask for the exposure, too.
        let Ok(slot) = engine.peer(self.to) else { return Some(part) };
        let location = memory.classify(engine.devices());
        let access = |links| Access {
            store,
            len: memory.len,
            local_on_device: location.on_device(),
            local_page_locked: location.class == MemoryClass::Pinned,
            remote_on_device: self.remote_on_device,
            in_blocks: self.elements.is_some() || memory.run().is_none(),
            copy_only: engine.core().copy_only(),
            inline_limit: INLINE_LIMIT as u64,
            links,
            costs: WayCosts::NOT_ASKED,
        };
        let Some((address, len, blocks)) = self.places(memory, &location, engine.devices()) else { return Some(part) };
        let pays = || direct::choose(&access(slot.channel.lock().links.abilities())) == Way::Direct;
        let Some(reach) = self.reach(caller, pays) else { return Some(part) };
        let way = if store { reach.ways.write } else { reach.ways.read };
        let left = match way {
            Some(way) => {
                let plan = Plan { slot, settled: memory.settled, address, len, location, way, blocks };
                // SAFETY: the operation keeps the memory until it is complete, and its use of the exposure until the move
                // has ended.
                unsafe { self.start_move(caller, part, plan, access) }
            }
            None => Some(part),
        };
        if left.is_some() {
            caller.end_use(self.to, Ticket::from(&self.ask.span.name));
        }
        left
    }

    /// Returns the range of this process's memory. If either memory is in blocks, returns those of both, too. Returns `None`
    /// if they are irregular.
    fn places(
        &self,
        memory: &Memory,
        location: &Location,
        devices: &Devices,
    ) -> Option<(*mut u8, usize, Option<Blocks>)> {
        if let (None, Some(address)) = (&self.elements, memory.run()) {
            return Some((address, usize::try_from(memory.len).ok()?, None));
        }
        if location.class != MemoryClass::Device {
            return None;
        }
        // SAFETY: the memory is valid until the operation is complete; the convertor ends here and moves nothing.
        let convertor = unsafe { memory.buffer().convertor_to_send(*location, devices) };
        let (address, len, ours) = convertor.strided()?;
        Some((address, len, Some([ours, target::strided(&self.ask.span, self.elements.as_deref())?])))
    }

    /// Begins to use the exposure of the memory. If there is none and it `pays`, asks the owner for it.
    fn reach(&self, caller: &Caller, pays: impl FnOnce() -> bool) -> Option<Arc<Reach>> {
        let len = self.elements.as_deref().map_or(self.ask.span.len, Elements::range);
        let span = &Span { len, ..self.ask.span };
        // The owner refuses a put with a wrong signal before it writes. Here only a word that the owner has exposed is
        // known to be right. Its alignment was checked.
        let word = match &self.ask.wish {
            Wish::Put(Some(signal)) => signal.word,
            // A get writes nothing, so its word may be refused later. Its own bytes are checked below.
            _ => *span,
        };
        // The use of both, or what is missing.
        let begun =
            caller.exposures_of(self.to, |exposures| match (exposures.covers(&word), exposures.covers(span)) {
                (true, true) => Ok(exposures.begin(span)),
                (true, false) => Err(span.name),
                (false, _) => Err(word.name),
            })?;
        let (begun, name) = match begun {
            Ok(begun) => (begun, span.name),
            Err(name) if pays() => (caller.exposures_of(self.to, |exposures| exposures.ask(&name))?, name),
            Err(_) => return None,
        };
        match begun {
            Begin::Use(reach) => Some(reach),
            Begin::Ask => {
                caller.ask_to_expose(self.to, &name);
                None
            }
            Begin::Owner => None,
        }
    }

    /// Starts the move if it pays. Otherwise returns the part.
    ///
    /// # Safety
    /// The memory stays valid, without conflicting accesses, and the peer's memory exposed, until the move has ended.
    unsafe fn start_move(
        &self,
        caller: &Caller,
        part: Part,
        plan: Plan<'_>,
        access: impl FnOnce(Abilities) -> Access,
    ) -> Option<Part> {
        let Plan { slot, settled, address, len, location, way, blocks } = plan;
        let engine = caller.poster.engine();
        let mut done = Done::default();
        let mut part = Some(part);
        engine.protocols.with(slot, &mut done, |cx, channel| {
            let mut access = access(channel.links.abilities());
            let named = |link: &&_| is_named(link, &way);
            let Some(link) = channel.links.active.iter().find(named) else { return };
            if blocks.is_some() && !link.has(Flags::DEVICE_STRIDED) {
                return;
            }
            let mut order = Order::None;
            let own_device = access.is_by_own_device();
            // The owner cannot reach page-locked memory, so that its costs say nothing.
            if (access.local_on_device || access.remote_on_device) && !own_device {
                access.costs = direct::costs(link, access.store, &location, &way.handle);
            }
            if direct::choose(&access) == Way::Owner {
                return;
            }
            if own_device && !channel.state.page_locked.next(access.store) {
                return;
            }
            if access.local_on_device && !settled {
                let by_nic = link.has(Flags::DEVICE_DIRECT);
                // A NIC follows no stream.
                if by_nic && !engine.devices().ask_default_stream(&location).unwrap_or(false) {
                    return;
                }
                order = if by_nic { Order::None } else { engine.devices().order(&location) };
            }
            let Some(part) = part.take() else { return };
            // SAFETY: the part is this operation's, which starts once. The hook takes the part.
            let request = unsafe { self.moving.begin(part, moved) };
            let local = Region { address, len, location, order };
            let (store, remote_on_device, offset) = (access.store, access.remote_on_device, self.ask.span.offset);
            let what = Move { store, local, remote: way, remote_on_device, offset, blocks, len: self.ask.span.len };
            // SAFETY: the caller's promise.
            unsafe { direct::start(cx, channel, what, request) };
        });
        done.run();
        part
    }
}

fn is_named(link: &crate::core::Link, way: &Exposed) -> bool {
    (link.tag, link.ordinal) == (way.btl, way.ordinal)
}

/// Handles the end of a move. It is the hook of its completion.
///
/// # Safety
/// `user` is a [`Moving`] that has begun with this hook. This is called once.
unsafe fn moved(_completion: *const Completion, user: *mut c_void) {
    // SAFETY: the caller's promise; the move has ended.
    let Some((part, result)) = (unsafe { Moving::end(user) }) else { return };
    let operation = part.operation();
    part.caller().end_use(operation.to, Ticket::from(&operation.ask.span.name));
    part.moved(result);
}
