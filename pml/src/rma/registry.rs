//! The table of registered memory: pure state, which knows nothing of how data moves.
//!
//! An access pins a registration while it is under way. A closed registration admits no more accesses, and is removed
//! once none is under way: after that nobody reaches the memory by its name.

use cableway_common_cuda::Location;
use zerocopy::little_endian::U32;

use super::key::Name;
use crate::refusal::Refusal;

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(super) address: usize,
    pub(super) len: u64,
    pub(super) location: Location,
}

impl Region {
    /// Returns the address of the first byte, and that behind the last one.
    pub(super) fn range(&self) -> (usize, usize) {
        (self.address, self.address.saturating_add(self.len as usize))
    }
}

/// Bytes of a registration, as a peer names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) name: Name,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Bytes that an access uses. Exactly one [`unpin`](Registry::unpin) ends it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a registration stays pinned until it is unpinned"]
pub(super) struct Pin {
    slot: u32,
    pub(super) address: usize,
    pub(super) len: u64,
    pub(super) location: Location,
}

/// See the module.
#[derive(Default)]
pub(super) struct Registry {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    generation: u32,
    entry: Option<Entry>,
}

struct Entry {
    region: Region,
    authenticator: [u8; 16],
    /// Accesses under way.
    pins: usize,
    closed: bool,
}

impl Registry {
    /// Adds memory. Returns `None` if the address range wraps around, or if all numbers are in use.
    pub(super) fn add(&mut self, region: Region, authenticator: [u8; 16]) -> Option<Name> {
        (region.address as u64).checked_add(region.len)?;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot { generation: 0, entry: None });
                slot
            }
        };
        let place = &mut self.slots[slot as usize];
        // No name has generation 0, so a key of zeros is never valid.
        place.generation = place.generation.checked_add(1).unwrap_or(1);
        place.entry = Some(Entry { region, authenticator, pins: 0, closed: false });
        Some(Name { slot: U32::new(slot), generation: U32::new(place.generation), authenticator })
    }

    /// Begins an access that a peer asks for.
    pub(super) fn pin(&mut self, span: &Span) -> Result<Pin, Refusal> {
        let (slot, entry, Region { address, len, location }) = self.within(span)?;
        entry.pins += 1;
        Ok(Pin { slot, address, len, location })
    }

    /// Finds the bytes of an access that ends before the caller gives the table to anyone else.
    pub(super) fn find(&mut self, span: &Span) -> Result<Region, Refusal> {
        self.within(span).map(|(_, _, region)| region)
    }

    /// Finds the registration and the bytes that a peer names.
    fn within(&mut self, span: &Span) -> Result<(u32, &mut Entry, Region), Refusal> {
        let Span { name, offset, len } = span;
        let (slot, entry) = self.admit(name)?;
        let Region { address, len: registered, location } = entry.region;
        if offset.checked_add(*len).is_none_or(|end| end > registered) {
            return Err(Refusal::OutOfRange);
        }
        // It does not wrap: the offset is within the region, whose end does not.
        Ok((slot, entry, Region { address: address + *offset as usize, len: *len, location }))
    }

    /// Begins an access to all of a registration.
    pub(super) fn pin_all(&mut self, name: &Name) -> Result<Pin, Refusal> {
        let (slot, entry) = self.admit(name)?;
        let Region { address, len, location } = entry.region;
        entry.pins += 1;
        Ok(Pin { slot, address, len, location })
    }

    /// Finds the registration that a peer names.
    fn admit(&mut self, name: &Name) -> Result<(u32, &mut Entry), Refusal> {
        let (slot, generation) = (name.slot.get(), name.generation.get());
        let place = self.slots.get_mut(slot as usize).ok_or(Refusal::UnknownKey)?;
        let entry = match &mut place.entry {
            Some(entry) if place.generation == generation => entry,
            _ if (1..=place.generation).contains(&generation) => return Err(Refusal::Deregistered),
            _ => return Err(Refusal::UnknownKey),
        };
        if u128::from_le_bytes(entry.authenticator) ^ u128::from_le_bytes(name.authenticator) != 0 {
            return Err(Refusal::UnknownKey);
        }
        if entry.closed {
            return Err(Refusal::Deregistered);
        }
        Ok((slot, entry))
    }

    /// Ends an access.
    pub(super) fn unpin(&mut self, pin: Pin) {
        let Some(entry) = self.slots.get_mut(pin.slot as usize).and_then(|place| place.entry.as_mut()) else {
            debug_assert!(false, "a pinned registration was removed");
            return;
        };
        entry.pins -= 1;
    }

    /// Admits no more accesses to a registration of this process. Returns false if it was closed before.
    pub(super) fn close(&mut self, name: &Name) -> bool {
        self.entry(name).is_some_and(|entry| !std::mem::replace(&mut entry.closed, true))
    }

    /// Removes a registration that was closed, unless an access is under way. Returns whether it is removed.
    pub(super) fn remove(&mut self, name: &Name) -> bool {
        match self.entry(name) {
            Some(entry) if entry.pins > 0 || !entry.closed => false,
            Some(_) => {
                let slot = name.slot.get();
                self.slots[slot as usize].entry = None;
                self.free.push(slot);
                true
            }
            None => true,
        }
    }

    fn entry(&mut self, name: &Name) -> Option<&mut Entry> {
        let place = self.slots.get_mut(name.slot.get() as usize)?;
        if place.generation == name.generation.get() { place.entry.as_mut() } else { None }
    }
}

#[cfg(test)]
mod tests;
