//! A link of one rank to another.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use cableway_btl::{
    Access, Capabilities, Cost, Endpoint, Error, Flags, Fragment, FragmentKind, Local, Mover, Offer, Operation, Packed,
    Rank, Region, Registration, Remote, RemoteHandle, Sent, Token, Transfer,
};
use cableway_common_cuda::{Location, MemoryClass, Order, Strided};

use super::state::{Bytes, OfferState, Severed};
use super::transfer::Copying;
use super::{Link, MOST_OFFERS, Net};

pub(super) fn gone(peer: Rank) -> Error {
    Error::PeerGone { btl: "net", peer, reason: "it was killed".into() }
}

pub(super) struct NetEndpoint {
    pub(super) net: Arc<Net>,
    pub(super) rank: Rank,
    pub(super) peer: Rank,
    pub(super) btl: usize,
    pub(super) at: usize,
    pub(super) link: Link,
}

impl NetEndpoint {
    fn busy(&self) -> Result<bool, Error> {
        let mut stalled = self.net.stalled.0.lock();
        while stalled.0 == Some(self.peer) {
            stalled.1 += 1;
            self.net.stalled.1.wait(&mut stalled);
            stalled.1 -= 1;
        }
        drop(stalled);
        let mut state = self.net.state.lock();
        if state.broken == Some(self.btl) || state.unreachable.contains(&self.peer) {
            return Err(Error::Unreachable { btl: "net", peer: self.peer, reason: "it is broken".into() });
        }
        if state.dead.contains_key(&self.peer) || state.knows_severed(self.btl, self.rank) {
            return Err(gone(self.peer));
        }
        if state.left.contains_key(&self.peer) {
            return Err(Error::PeerLeft { btl: "net", peer: self.peer });
        }
        Ok(self.link.busy != 0 && state.random(1000) < self.link.busy as usize)
    }

    fn push(&self, mut bytes: Vec<u8>) {
        let key = (self.rank, self.peer, self.btl, self.at);
        let mut state = self.net.state.lock();
        *state.carried.entry(self.btl).or_default() += 1;
        state.tick(self.btl);
        match &mut state.corrupt {
            Some((0, bit)) => {
                if let Some(byte) = bytes.get_mut(*bit / 8) {
                    *byte ^= 1 << (*bit % 8);
                }
                state.corrupt = None;
            }
            Some((nth, _)) => *nth -= 1,
            None => {}
        }
        let bytes: Bytes = bytes.into();
        if self.link.capabilities.flags.contains(Flags::FAILOVER) {
            state.history.entry((key.0, key.1, key.2)).or_default().0.push(bytes.clone());
            if state.is_severed(self.btl) {
                let lost = |severed: &&mut Severed| severed.btl == self.btl && severed.senders_notice;
                if let Some(severed) = state.severed.iter_mut().find(lost)
                    && !severed.told.contains(&self.rank)
                {
                    severed.told.push(self.rank);
                }
                return;
            }
        }
        state.queues.entry(key).or_default().push_back(bytes);
    }

    fn transfer(&self, to: Region, from: Region, copy: Copying, token: Token) -> Result<Transfer, Error> {
        assert!(to.len == from.len || matches!(copy, Copying::Strided { .. }));
        if self.busy()? {
            return Ok(Transfer::Busy);
        }
        let mut state = self.net.state.lock();
        state.tick(self.btl);
        if state.is_severed(self.btl)
            && let Some(severed) = state.severed.iter_mut().find(|severed| severed.btl == self.btl)
        {
            severed.failing.push((self.rank, token));
            return Ok(Transfer::Started);
        }
        drop(state);
        if self.link.asynchronous {
            self.net.state.lock().operations.push((self.rank, self.btl, token, copy, to, from));
            return Ok(Transfer::Started);
        }
        self.net.carry_out(&copy, &to, &from)?;
        Ok(Transfer::Done)
    }

    /// Starts a `get` or a `put`.
    fn move_data(&self, local: &Local<'_>, remote: &Remote<'_>, token: Token, get: bool) -> Result<Transfer, Error> {
        let (here, there, copy) = match (local, remote.blocks) {
            (Local::Packed(packed), _) => return self.packed(packed, (remote.handle, remote.offset), token, get),
            (&Local::Run(local), None) => {
                let limits = &self.link.capabilities;
                assert!(local.len <= if get { limits.get_limit } else { limits.put_limit });
                if !self.is_reached(&local) {
                    let reason = "it cannot be registered".into();
                    return Err(Error::Unavailable { btl: "net", operation: "transfer", reason });
                }
                (local, self.remote(remote.handle, remote.offset, local.len)?, Copying::Plain)
            }
            (&(Local::Run(region) | Local::Blocks { region, .. }), blocks) => {
                let len = local.len();
                let here = match local {
                    Local::Blocks { blocks, .. } => *blocks,
                    _ => Strided::run(len),
                };
                let blocks = blocks.unwrap_or_else(|| Strided::run(len));
                let theirs = self.remote(remote.handle, 0, blocks.span().unwrap().1 as usize)?;
                let (to, from) = if get { (here, blocks) } else { (blocks, here) };
                (region, theirs, Copying::Strided { to, from, len })
            }
        };
        let (to, from) = if get { (here, there) } else { (there, here) };
        self.transfer(to, from, copy, token)
    }

    fn packed(
        &self,
        local: &Packed<'_>,
        (handle, offset): (&RemoteHandle, u64),
        token: Token,
        unpack: bool,
    ) -> Result<Transfer, Error> {
        assert!(self.link.capabilities.flags.contains(Flags::DEVICE_PACKED));
        assert!(local.len <= self.link.capabilities.device_rdma_limit);
        assert_eq!(local.order, Order::None, "kernels must not wait for a stream");
        let remote = self.remote(handle, offset, local.len)?;
        if !self.net.devices.classify(remote.address, remote.len).on_device() {
            let reason = "the remote memory is not on a device".into();
            return Err(Error::Unavailable { btl: "net", operation: "packed", reason });
        }
        let user = Region { address: local.user, len: local.len, location: local.location, order: local.order };
        let copy = {
            let mut state = self.net.state.lock();
            state.packed += 1;
            let revoked = self.link.revokes != 0 && state.packed.is_multiple_of(self.link.revokes + 1);
            let (spread, position) = (local.spread.clone(), local.position);
            if revoked { Copying::Revoked } else { Copying::Packed { spread, position, unpack } }
        };
        let (to, from) = if unpack { (user, remote) } else { (remote, user) };
        self.transfer(to, from, copy, token)
    }

    /// Returns whether the NIC can access the region. Then the default stream must be idle.
    fn is_reached(&self, region: &Region) -> bool {
        if !self.link.capabilities.flags.contains(Flags::DEVICE_DIRECT) || !region.location.on_device() {
            return true;
        }
        let reached = region.location.class == MemoryClass::Device;
        assert!(region.len <= self.link.capabilities.device_max_rdma_size);
        assert!(
            !reached || self.net.devices.ask_default_stream(&region.location).unwrap(),
            "the default stream is not idle"
        );
        reached
    }

    fn remote(&self, handle: &RemoteHandle, offset: u64, len: usize) -> Result<Region, Error> {
        let refused = Error::Unavailable { btl: "net", operation: "get", reason: "the test refuses it".into() };
        if self.link.refuses {
            return Err(refused);
        }
        let key = u64::from_le_bytes(handle.as_bytes().try_into().map_err(|_| refused.clone())?);
        // Like a real transport, do not trust the handle.
        let region = *self.net.state.lock().registered.get(&key).ok_or_else(|| refused.clone())?;
        if offset as usize + len > region.len {
            return Err(refused);
        }
        assert!(self.is_reached(&region));
        Ok(Region {
            address: region.address.wrapping_add(offset as usize),
            len,
            location: Location::HOST,
            order: Order::None,
        })
    }
}
struct Unregister(Arc<Net>, u64);

impl Drop for Unregister {
    fn drop(&mut self) {
        self.0.state.lock().registered.remove(&self.1);
    }
}

impl Endpoint for NetEndpoint {
    fn peer(&self) -> Rank {
        self.peer
    }
    fn capabilities(&self) -> &Capabilities {
        &self.link.capabilities
    }
    fn cost(&self, operation: Operation, _location: &Location) -> Cost {
        let dear = operation == Operation::Put && !self.link.push;
        let fixed = self.link.capabilities.latency + Duration::from_micros(if dear { 150 } else { 0 });
        Cost { fixed, bytes_per_second: self.link.capabilities.bandwidth }
    }

    fn connect(&mut self) -> Result<(), Error> {
        self.net.state.lock().reached.push((self.rank, self.peer));
        self.busy().map(drop)
    }

    fn transfer_cost(&self, mover: Mover, _local: &Location, _remote: &RemoteHandle) -> Cost {
        let dear = (mover.operation() == Operation::Get) == self.link.push;
        Cost { fixed: Duration::from_micros(if dear { 150 } else { 10 }), bytes_per_second: 1e9 }
    }

    fn send_inline(&mut self, header: &[u8], payload: &[u8]) -> Result<Sent, Error> {
        assert!(header.len() + payload.len() <= self.link.capabilities.inline_limit);
        if self.busy()? {
            return Ok(Sent::Busy);
        }
        self.push([header, payload].concat());
        Ok(Sent::Done)
    }

    fn alloc(&mut self, len: usize, kind: FragmentKind) -> Result<Option<Fragment>, Error> {
        let limit = match kind {
            FragmentKind::Host | FragmentKind::Streamed => self.link.capabilities.max_send_size,
            FragmentKind::Device => self.link.capabilities.device_max_send_size,
        };
        assert!(len <= limit);
        if self.busy()? {
            return Ok(None);
        }
        let mut memory = vec![0xee; len.max(1)];
        let address = NonNull::new(memory.as_mut_ptr()).unwrap();
        let mut fragments = self.net.fragments.0.lock();
        let key = address.as_ptr() as u64;
        fragments.insert(key, memory);
        // SAFETY: the vector stays where it is until the key comes back.
        Ok(Some(unsafe { Fragment::new(address, len, key, self.net.fragments.clone()) }))
    }

    fn send(&mut self, fragment: Fragment, len: usize) -> Result<(), Error> {
        let mut memory = self.net.fragments.0.lock().remove(&fragment.into_key()).unwrap();
        let dead = self.net.state.lock().dead.contains_key(&self.peer);
        if dead {
            return Err(gone(self.peer));
        }
        memory.truncate(len);
        self.push(memory);
        Ok(())
    }

    unsafe fn send_in_place(&mut self, header: &[u8], payload: Region, token: Token) -> Result<Transfer, Error> {
        assert!(self.link.capabilities.flags.contains(Flags::SEND_IN_PLACE));
        let Capabilities { max_send_size, device_max_send_size, .. } = self.link.capabilities;
        assert!(header.len() + payload.len <= max_send_size.max(device_max_send_size));
        if self.busy()? {
            return Ok(Transfer::Busy);
        }
        // SAFETY: the caller's promise.
        let data = unsafe { std::slice::from_raw_parts(payload.address, payload.len) };
        self.push([header, data].concat());
        if !self.link.asynchronous {
            return Ok(Transfer::Done);
        }
        let nothing = Region { len: 0, ..payload };
        self.net.state.lock().operations.push((self.rank, self.btl, token, Copying::Plain, nothing, nothing));
        Ok(Transfer::Started)
    }

    unsafe fn register(&mut self, region: Region, access: Access) -> Result<Option<Registration>, Error> {
        let flag = match (access, region.location.on_device()) {
            (Access::RemoteRead, false) => Flags::GET,
            (Access::RemoteRead, true) => Flags::DEVICE_GET,
            (Access::RemoteWrite, false) => Flags::PUT,
            (Access::RemoteWrite, true) => Flags::DEVICE_PUT,
        };
        assert!(self.link.capabilities.flags.contains(flag));
        let direct = self.link.capabilities.flags.contains(Flags::DEVICE_DIRECT);
        if direct && region.location.class == MemoryClass::Managed {
            return Ok(None);
        }
        let mut state = self.net.state.lock();
        state.next_handle += 1;
        let key = state.next_handle;
        state.registered.insert(key, region);
        let keeper = Unregister(self.net.clone(), key);
        let handle = RemoteHandle::new(&key.to_le_bytes()).unwrap();
        Ok(Some(Registration::new(handle, Some(Box::new(keeper)))))
    }

    unsafe fn get(&mut self, to: &Local<'_>, from: &Remote<'_>, token: Token) -> Result<Transfer, Error> {
        self.move_data(to, from, token, true)
    }

    unsafe fn put(&mut self, from: &Local<'_>, to: &Remote<'_>, token: Token) -> Result<Transfer, Error> {
        self.move_data(from, to, token, false)
    }

    fn offer(&mut self) -> Option<Offer> {
        if !self.link.capabilities.flags.contains(Flags::OFFER) || self.busy().unwrap_or(true) {
            return None;
        }
        let mut state = self.net.state.lock();
        if state.offers.values().filter(|offer| offer.0 == self.rank).count() >= MOST_OFFERS {
            return None;
        }
        state.next_offer += 1;
        let offer = state.next_offer;
        state.offers.insert(offer, (self.rank, OfferState::Open));
        Some(Offer(offer))
    }

    fn claim(&mut self, offer: Offer) -> bool {
        let mut state = self.net.state.lock();
        let Some((by, stands)) = state.offers.get_mut(&offer.0) else { return false };
        let open = *by == self.peer && *stands == OfferState::Open && !self.link.unclaimed;
        if open {
            *stands = OfferState::Claimed;
        }
        open
    }

    fn withdraw(&mut self, offer: Offer) -> Result<bool, Error> {
        let (by, stands) = self.net.state.lock().offers.remove(&offer.0).expect("each offer is withdrawn once");
        assert_eq!(by, self.rank);
        Ok(stands != OfferState::Claimed)
    }
}
