//! Direct copies between device memories of two processes. One of them maps the other's memory and starts a device
//! copy. Its own side may be page-locked host memory, too.
//!
//! The owner exports its memory (`handle`) only after the default stream's work on it is done; the engine ensures that.
//! The copy waits for the default stream of the copying process. Between processes on one device the lower rank copies,
//! in both directions: contexts that take turns on a device cost much more than the copy.
//!
//! Memory that cannot be mapped, or for which mapping does not pay yet, is [`Error::Unavailable`]: another protocol
//! carries the message. Memory that is passed by file descriptor is requested over the socket of the two processes
//! (`connection`), and mapped when the answer arrives.

mod batches;
pub(crate) mod handle;
mod recent;

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use cableway_base::{Parameters, Rank};
use cableway_btl::{Access, DeviceMapping, Error, Region, RemoteHandle, Token, Transfer, Upcalls};
use cableway_common_cuda::{
    Answer, BlockCopy, CopyShape, DescriptorRequest, DeviceError, Devices, Direction, Exports, Imports, Location,
    Mapped, MemoryClass, Packing, Reach, Spread, Strided, Turns,
};
use parking_lot::Mutex;

use self::batches::{Batches, Copy, PendingCopy};
use crate::NAME;
use handle::Handle;
pub(crate) use recent::Recent;

/// The number of devices of a node whose identity is remembered. That of others is queried each time.
const DEVICES: usize = 32;

/// The ranges of a local region and of a peer's that are copied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyRanges<'s> {
    /// All of the local region, and as many bytes of the peer's from this offset on.
    Run(u64),
    /// The first bytes of blocks in both.
    Blocks { ours: &'s Strided, theirs: &'s Strided, len: u64 },
    /// As many bytes as the local region has: packed bytes of its blocks from a position on, and one run of the peer's
    /// region from this offset on.
    Packed { spread: &'s Spread, position: u64, offset: u64 },
}

/// The reason why a copy was not begun.
pub(crate) struct NotBegun {
    pub(crate) reason: String,
    /// The request to the peer that makes the next copy possible.
    pub(crate) wanted: Option<DescriptorRequest>,
}

impl<S: Into<String>> From<S> for NotBegun {
    fn from(reason: S) -> Self {
        NotBegun { reason: reason.into(), wanted: None }
    }
}

/// The exported device memory of this process, the mapped memory of peers, and the copies under way.
pub(crate) struct DeviceCopies {
    devices: Devices,
    exports: Exports,
    imports: Imports,
    /// Identities of the devices of used buffers.
    uuids: [OnceLock<[u8; 16]>; DEVICES],
    batches: Mutex<Batches>,
    /// What copies within a device have shown.
    pub(crate) turns: Turns,
    /// The number of copies that have not been reported.
    count: AtomicUsize,
    /// True while messages are read; waiting copies start afterwards.
    gathering: AtomicBool,
}

impl DeviceCopies {
    pub(crate) fn new(devices: &Devices, parameters: &Parameters) -> Self {
        DeviceCopies {
            devices: devices.clone(),
            exports: Exports::new(devices, parameters.device_ipc_mappings).with_pools(parameters.device_ipc_pool_size),
            imports: Imports::new(devices, parameters),
            uuids: [const { OnceLock::new() }; DEVICES],
            batches: Mutex::default(),
            turns: Turns::new(parameters.device_turn_latency),
            count: AtomicUsize::new(0),
            gathering: AtomicBool::new(false),
        }
    }

    /// Returns the handle that `peer` needs to copy from or to the region, or `None` if it cannot.
    pub(crate) fn export(
        &self,
        region: &Region,
        access: Access,
        peer: Rank,
        recent: &mut Recent,
    ) -> Option<RemoteHandle> {
        let exported = self.exports.export(&region.location, region.address, region.len, peer)?;
        if self.imports.refuses(peer, exported.kind) {
            // Other methods would fail as well.
            return None;
        }
        let handle = Handle::new(&exported, region.address, region.len, access, self.exports.gone(peer));
        recent.exported(&region.location, access, &handle);
        handle.to_remote()
    }

    /// Calls `say(peer, id)` for freed allocations that were exported to peers.
    pub(crate) fn tell_gone(&self, say: impl FnMut(Rank, u64) -> bool) {
        self.exports.tell_gone(say);
    }

    /// Closes the mapping of an allocation that the peer has freed.
    pub(crate) fn forget(&self, peer: Rank, buffer_id: u64) {
        self.imports.forget(peer, buffer_id);
    }

    /// Answers a peer's request for the descriptor of local memory.
    pub(crate) fn answer(&self, peer: Rank, wanted: &DescriptorRequest) -> Answer {
        self.exports.answer(wanted, peer)
    }

    /// Handles a peer's answer.
    pub(crate) fn supply(&self, peer: Rank, wanted: &DescriptorRequest, answer: Answer) {
        self.imports.supply(peer, wanted, answer);
    }

    /// Returns whether the peer's exported memory is on the same device as the buffer at `local`.
    pub(crate) fn on_one_device(&self, local: &Location, handle: &Handle) -> bool {
        let Some(device) = local.device else { return false };
        let place = self.uuids.get(device.0 as usize);
        if let Some(uuid) = place.and_then(OnceLock::get) {
            return uuid == handle.device();
        }
        let Ok(uuid) = self.devices.uuid(device) else { return false };
        if let Some(place) = place {
            let _ = place.set(uuid);
        }
        uuid == *handle.device()
    }

    /// Begins to copy between `local` and the exported memory of `peer`; from it if the access is `RemoteRead`.
    ///
    /// # Safety
    /// `local` stays valid, without conflicting accesses, until `token` is completed. Its blocks lie in it, or, for
    /// packed data, in its allocation.
    ///
    /// # Errors
    /// The reason why the copy is impossible.
    pub(crate) unsafe fn start(
        &self,
        (peer, recent): (Rank, &mut Recent),
        local: &Region,
        (handle, access): (&Handle, Access),
        what: CopyRanges<'_>,
        token: Token,
    ) -> Result<Transfer, NotBegun> {
        let (at, direction) = self.place(local, (handle, access), &what)?;
        let (first, len) = match what {
            CopyRanges::Run(offset) => (offset, local.len),
            CopyRanges::Blocks { .. } if !self.devices.kernels(&local.location) => {
                return Err("no kernel copies blocks there at present".into());
            }
            CopyRanges::Blocks { ours, theirs, len } => within(local.len, ours, theirs, len)?,
            CopyRanges::Packed { spread, .. } if !self.devices.packs_between(&local.location, spread) => {
                return Err("no kernel packs there at present".into());
            }
            CopyRanges::Packed { offset, .. } => (offset, local.len),
        };
        let offset = handle.place(access, first, len)?;
        let mapped = self.reach((peer, recent), &at, (handle, access), (first, len, local.len as u64))?;
        let remote = match what {
            CopyRanges::Run(_) | CopyRanges::Packed { .. } => mapped.address(offset),
            CopyRanges::Blocks { .. } => mapped.address(offset).wrapping_sub(first as usize),
        };
        let (to, from) = match access {
            Access::RemoteRead => (local.address, remote),
            Access::RemoteWrite => (remote, local.address),
        };
        let (len, how) = match what {
            CopyRanges::Run(_) => (local.len, CopyShape::Run),
            CopyRanges::Packed { spread, position, .. } => {
                let (user, packed, unpack) = (local.address, remote, access == Access::RemoteRead);
                let (spread, len, by_engines) = (spread.clone(), local.len as u64, false);
                let packing = Packing { user, spread, position, packed, len, unpack, by_engines };
                (local.len, CopyShape::Packed(Box::new(packing)))
            }
            CopyRanges::Blocks { ours, theirs, len } => {
                let (dst_blocks, src_blocks) = match access {
                    Access::RemoteRead => (*ours, *theirs),
                    Access::RemoteWrite => (*theirs, *ours),
                };
                let copy = BlockCopy { dst: to, dst_blocks, src: from, src_blocks, len };
                (len as usize, CopyShape::Blocks(Box::new(copy)))
            }
        };
        let one_device = self.on_one_device(&at, handle);
        let of = PendingCopy { peer, token, one_device, _mapped: mapped };
        let copy = Copy { to, from, len, how, at, direction, order: local.order, of };
        let mut batches = self.batches.lock();
        // Only the owner of the lock changes it.
        self.count.store(self.count.load(Relaxed) + 1, Release);
        batches.add(copy);
        if !self.gathering.load(Relaxed) {
            batches.set_out(&self.devices);
        }
        Ok(Transfer::Started)
    }

    /// Returns the device and context that copy, and in which direction.
    ///
    /// # Errors
    /// The reason why none does.
    fn place(
        &self,
        local: &Region,
        (handle, access): (&Handle, Access),
        what: &CopyRanges<'_>,
    ) -> Result<(Location, Direction), NotBegun> {
        if local.location.on_device() {
            return Ok((local.location, Direction::DeviceToDevice));
        }
        let page_locked = local.location.class == MemoryClass::Pinned && matches!(what, CopyRanges::Run(_));
        let at = if page_locked { self.devices.page_locked_in(local.address, local.len) } else { None };
        let at = at.ok_or("only one of the two buffers is on a device")?;
        if self.on_one_device(&at, handle) {
            return Err("contexts take turns on one device".into());
        }
        let direction = match access {
            Access::RemoteRead => Direction::DeviceToHost,
            Access::RemoteWrite => Direction::HostToDevice,
        };
        Ok((at, direction))
    }

    /// Maps all of a peer's exported memory into the context of `into`.
    ///
    /// # Errors
    /// The reason why that is impossible, at least now.
    pub(crate) fn map(
        &self,
        by: (Rank, &mut Recent),
        (handle, access): (&Handle, Access),
        into: &Location,
    ) -> Result<DeviceMapping, NotBegun> {
        let len = usize::try_from(handle.len()).map_err(|_| "the memory is too long")?;
        if self.on_one_device(into, handle) {
            return Err("contexts take turns on one device".into());
        }
        let at = handle.place(access, 0, len)?;
        let mapped = self.reach(by, into, (handle, access), (0, len, len as u64))?;
        Ok(DeviceMapping::new(mapped.address(at), len, Box::new(mapped)))
    }

    /// Maps the exported memory if it is not mapped yet, for `used` bytes of a copy between `first` and `first + len`.
    fn reach(
        &self,
        (peer, recent): (Rank, &mut Recent),
        into: &Location,
        (handle, access): (&Handle, Access),
        (first, len, used): (u64, usize, u64),
    ) -> Result<Mapped, NotBegun> {
        if let Some(id) = handle.gone() {
            self.imports.forget(peer, id);
        }
        if let Some(mapped) = recent.imported(handle, access, into).and_then(|was| self.imports.again(was)) {
            return Ok(mapped);
        }
        let (exported, _) = handle.resolve(access, first, len)?;
        match self.imports.reach(peer, &exported, into, used).map_err(|error| error.to_string())? {
            Reach::Mapped(mapped) => {
                recent.reached(handle, access, into, &mapped);
                Ok(mapped)
            }
            Reach::NotYet => Err("the peer's memory is mapped only when it is used again".into()),
            Reach::NeedsDescriptor(wanted) => {
                let reason = "the peer has to pass a descriptor of its memory first".to_owned();
                Err(NotBegun { reason, wanted: Some(wanted) })
            }
            Reach::Refused => Err("the peer's memory cannot be mapped".into()),
        }
    }

    /// Gathers copies until [`end_gathering`](Self::end_gathering) or [`poll`](Self::poll).
    #[inline]
    pub(crate) fn gather(&self) {
        self.gathering.store(true, Relaxed);
    }

    /// Ends gathering without a [`poll`](Self::poll): later copies are submitted at once, and gathered ones if `submit`.
    #[inline]
    pub(crate) fn end_gathering(&self, submit: bool) {
        self.gathering.store(false, Relaxed);
        if submit && self.count.load(Relaxed) != 0 {
            self.submit_gathered();
        }
    }

    #[cold]
    fn submit_gathered(&self) {
        self.batches.lock().set_out(&self.devices);
    }

    /// Starts gathered copies and reports completed ones; returns how many.
    #[inline]
    pub(crate) fn poll(&self, upcalls: &dyn Upcalls) -> usize {
        self.gathering.store(false, Relaxed);
        if self.count.load(Relaxed) == 0 { 0 } else { self.poll_batches(upcalls) }
    }

    #[cold]
    fn poll_batches(&self, upcalls: &dyn Upcalls) -> usize {
        let ended = {
            let mut batches = self.batches.lock();
            batches.set_out(&self.devices);
            let ended = batches.ended(&self.turns);
            if !ended.is_empty() {
                // Start copies that waited for these.
                batches.set_out(&self.devices);
            }
            self.count
                .store(self.count.load(Relaxed) - ended.iter().map(|(copies, _)| copies.len()).sum::<usize>(), Release);
            ended
        };
        let mut count = 0;
        for (copies, result) in ended {
            let failed =
                |error: DeviceError| Error::Unavailable { btl: NAME, operation: "copy", reason: refused(&error) };
            let result = result.map_err(failed);
            for of in copies {
                count += 1;
                let token = of.token;
                // Release pool memory before its owner learns that the message is complete.
                drop(of);
                upcalls.completed(token, result.clone());
            }
        }
        count
    }

    /// Returns whether the memory of a peer turned out to be unmappable.
    pub(crate) fn given_up(&self, peer: Rank) -> bool {
        self.imports.given_up(peer)
    }

    /// Closes the mappings of a peer that has ended. Returns false while copies from or to its memory are under way. Do
    /// not report the peer's end before, since the copies use local buffers.
    pub(crate) fn let_go(&self, peer: Rank) -> bool {
        if self.count.load(Relaxed) != 0 && self.batches.lock().has(peer) {
            return false;
        }
        self.imports.forget_peer(peer);
        self.exports.forget_peer(peer);
        true
    }
}

/// Returns the range of the peer's blocks, if both sides have `len` bytes in blocks and the own ones lie within the
/// region.
fn within(region: usize, ours: &Strided, theirs: &Strided, len: u64) -> Result<(u64, usize), &'static str> {
    let inside = ours.range_of(len).is_some_and(|(low, span)| low + span as u64 <= region as u64);
    if !inside {
        return Err("the blocks have less than the message, or do not lie in the memory");
    }
    theirs.range_of(len).ok_or("the peer's blocks have less than the message, or do not lie in the registered memory")
}

/// Logs once why direct copies between devices of two processes do not work.
fn refused(error: &DeviceError) -> String {
    // This is expected while other kernels fill the device.
    if error.wants_kernel() {
        return error.to_string();
    }
    cableway_base::warn_once("sm/device-copy", || {
        format!("{NAME}: device memory is copied through the host, because a copy between processes failed: {error}")
    });
    error.to_string()
}
