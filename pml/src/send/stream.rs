//! Fragments: data on its way through internal buffers, or straight from where it is if the link can.

use cableway_btl::{Flags, Fragment, FragmentKind, Region, Transfer};
use cableway_common_cuda::{Completion, DeviceError, Devices, Direction, Order};

use super::start::token;
use super::transfer::{Phase, SendTransfer};
use crate::batches::Plain;
use crate::completion::Done;
use crate::copies::{Copying, Then};
use crate::engine::Engine;
use crate::error::Error;
use crate::links::{Link, Links, Operation, Peer};
use crate::wire::{FRAGMENT_LEN, Header, HeaderBuffer, Id};

/// How an attempt to send one fragment ended.
enum Step {
    /// It is on its way, or being copied.
    Sent,
    /// No link takes any.
    Busy,
    /// Enough of this message is in flight: its completions go on with it.
    Deep,
    /// The message has nothing more to send.
    Empty,
}

impl Engine {
    /// Sends fragments, the oldest message first, until the links are full; returns how many.
    pub(crate) fn pump_streams(&self, peer: &Peer, links: &mut Links, done: &mut Done) -> usize {
        let mut sent = 0;
        while let Some(&id) = links.queues.streams.front() {
            match self.send_fragment(peer, links, id) {
                Ok(Step::Sent) => sent += 1,
                Ok(Step::Busy) => break,
                Ok(Step::Deep | Step::Empty) => {
                    links.queues.streams.pop_front();
                    if let Some(transfer) = links.sends.get_mut(id) {
                        transfer.queued = false;
                    }
                    links.settle_send(id, done);
                }
                Err((btl, error)) => {
                    links.broken = Some((btl, error));
                    break;
                }
            }
        }
        sent
    }

    /// Has the pump look at a message again.
    pub(crate) fn queue_stream(links: &mut Links, id: Id) {
        if let Some(transfer) = links.sends.get_mut(id)
            && !transfer.queued
            && !transfer.ranges.is_empty()
        {
            transfer.queued = true;
            links.queues.streams.push_back(id);
        }
    }

    fn send_fragment(&self, peer: &Peer, links: &mut Links, id: Id) -> Result<Step, (usize, cableway_btl::Error)> {
        let Links { active, sends, operations, .. } = links;
        let Some(transfer) = sends.get_mut(id) else { return Ok(Step::Empty) };
        let (Some(&(from, to)), Some(receiver)) = (transfer.ranges.front(), transfer.receiver) else {
            return Ok(Step::Empty);
        };
        let on_device = transfer.convertor.location().on_device();
        let depth = if on_device || transfer.to_device {
            self.parameters.device_chunks
        } else {
            self.parameters.pml_pipeline_depth
        };
        if transfer.busy >= depth.max(1) {
            return Ok(Step::Deep);
        }
        let header = HeaderBuffer::new(&Header::Fragment { receiver, offset: from });
        for at in by_load(active) {
            let link = &mut active[at];
            let btl = link.btl;
            let caps = link.capabilities();
            let in_place = !on_device && caps.flags.contains(Flags::SEND_IN_PLACE);
            // Where a device copies on either side, each fragment has the cost of a copy: larger ones suit it.
            let kind = if on_device || transfer.to_device { link.device_kind() } else { FragmentKind::Host };
            let room = match kind {
                FragmentKind::Device => {
                    caps.device_max_send_size.saturating_sub(FRAGMENT_LEN).min(self.device_piece(transfer.len))
                }
                _ => caps.max_send_size.saturating_sub(FRAGMENT_LEN),
            };
            let len = (to - from).min(room.max(1) as u64);
            if in_place && let Some(region) = transfer.region(from, len, Order::None) {
                let operation = operations.insert(Operation::SendFragment(id, len));
                // SAFETY: the buffer stays valid and unwritten until the request completes, which waits for the
                // operation.
                let sent = unsafe { link.endpoint.send_in_place(header.as_bytes(), region, token(peer, operation)) };
                if !matches!(sent, Ok(Transfer::Started)) {
                    operations.remove(operation);
                }
                match sent.map_err(|error| (btl, error))? {
                    Transfer::Busy => continue,
                    Transfer::Done => transfer.settled += len,
                    Transfer::Started => transfer.busy += 1,
                }
            } else {
                let whole = FRAGMENT_LEN + len as usize;
                let Some(mut fragment) = link.endpoint.alloc(whole, kind).map_err(|error| (btl, error))? else {
                    continue;
                };
                let then =
                    |fragment| Then::SendFragment { peer: peer.rank, link: link.serial, id, fragment, len: whole };
                match pack(transfer, &mut fragment, header.as_bytes(), (from, len), &self.devices) {
                    Ok(Packed::Done) => {
                        link.endpoint.send(fragment, whole).map_err(|error| (btl, error))?;
                        transfer.settled += len;
                    }
                    Ok(Packed::Copying(completion)) => {
                        transfer.busy += 1;
                        self.start_copy(Copying { completion, then: then(fragment), bytes: len });
                    }
                    Ok(Packed::By { to, region }) => {
                        transfer.busy += 1;
                        let Region { address: from, len, location: at, order } = region;
                        let (direction, page_locked) = (Direction::DeviceToHost, kind == FragmentKind::Device);
                        let copy = Plain { to, from, len, direction, at, order, page_locked, then: then(fragment) };
                        // SAFETY: the fragment has room and is ours alone; the buffer stays as it is while the transfer
                        // is busy.
                        unsafe { self.gather_copy(copy) };
                    }
                    Err(error) => {
                        drop(fragment);
                        transfer.fail(Error::of_copy(error, &transfer.convertor));
                        return Ok(Step::Empty);
                    }
                }
            }
            link.load += len as f64 / caps_bandwidth(link);
            link.carried = true;
            match transfer.ranges.front_mut() {
                Some(front) if from + len < to => front.0 = from + len,
                _ => drop(transfer.ranges.pop_front()),
            }
            return Ok(Step::Sent);
        }
        Ok(Step::Busy)
    }

    /// How much of a message of `len` bytes a device copies at a time. From two pieces on, one side's copies go on beside
    /// the other's; but each piece costs as much as some hundred thousand bytes take.
    fn device_piece(&self, len: u64) -> usize {
        let largest = self.parameters.device_chunk_size;
        usize::try_from(len.div_ceil(2)).unwrap_or(largest).clamp(largest.div_ceil(2), largest)
    }

    /// A fragment's copy off the device is done.
    pub(crate) fn fragment_copied(
        &self,
        peer: &Peer,
        links: &mut Links,
        (id, serial): (Id, u32),
        (mut fragment, len): (Fragment, usize),
        result: Result<(), DeviceError>,
        done: &mut Done,
    ) {
        let Some(transfer) = links.sends.get_mut(id) else { return };
        transfer.busy -= 1;
        match result {
            Err(source) => {
                let address = transfer.convertor.contiguous().map_or(0, |address| address as usize);
                transfer.fail(Error::Device { address, len: transfer.len, source });
            }
            // What failed is not sent on; what the receiver has not got it is told of at the end.
            Ok(()) if transfer.failure.is_some() => {}
            Ok(()) => {
                if let Some(link) = links.active.iter_mut().find(|link| link.serial == serial) {
                    transfer.settled += (len - FRAGMENT_LEN) as u64;
                    if let Err(error) = link.endpoint.send(fragment, len) {
                        links.broken = Some((link.btl, error));
                    }
                } else if !transfer.gone {
                    transfer.settled += (len - FRAGMENT_LEN) as u64;
                    links.queues.late.push_back(fragment.copied(len));
                }
            }
        }
        links.settle_send(id, done);
        Self::queue_stream(links, id);
        self.pump_streams(peer, links, done);
    }

    /// A `send_in_place` is done.
    pub(crate) fn left_in_place(
        &self,
        peer: &Peer,
        links: &mut Links,
        (id, fragment): (Id, Option<u64>),
        result: Result<(), cableway_btl::Error>,
        done: &mut Done,
    ) {
        let Some(transfer) = links.sends.get_mut(id) else { return };
        transfer.busy -= 1;
        match result {
            Ok(()) => transfer.settled += fragment.unwrap_or(0),
            Err(error) => transfer.fail(error.into()),
        }
        debug_assert!(fragment.is_some() == (transfer.phase == Phase::Moving));
        links.settle_send(id, done);
        Self::queue_stream(links, id);
        self.pump_streams(peer, links, done);
    }
}

/// How a fragment's data comes into it.
enum Packed {
    /// It is there.
    Done,
    /// A device copies it.
    Copying(Completion),
    /// By a copy that can set out with others.
    By { to: *mut u8, region: Region },
}

/// Makes the header and `len` bytes from `from` on the fragment's message, or begins to.
fn pack(
    transfer: &mut SendTransfer,
    fragment: &mut Fragment,
    header: &[u8],
    (from, len): (u64, u64),
    devices: &Devices,
) -> Result<Packed, cableway_datatype::Error> {
    let (start, end) = (from as usize, (from + len) as usize);
    if let Some(bytes) = transfer.host_bytes() {
        fragment.fill(header, &bytes[start..end]);
        return Ok(Packed::Done);
    }
    fragment.write(0, header);
    transfer.convertor.set_position(from);
    // SAFETY: the fragment has room for the header and `len` bytes, is ours alone, and is kept with the completion.
    unsafe {
        let to = fragment.as_mut_ptr().add(header.len());
        if !transfer.convertor.location().on_device() {
            return transfer.convertor.pack(to, len as usize).map(|_| Packed::Done);
        }
        let order = transfer.next_order(devices);
        match transfer.region(from, len, order) {
            Some(region) => Ok(Packed::By { to, region }),
            None => {
                let started = transfer.convertor.start_pack(to, len as usize, order);
                started.map(|(_, completion)| Packed::Copying(completion))
            }
        }
    }
}

fn caps_bandwidth(link: &Link) -> f64 {
    link.capabilities().bandwidth.max(1.0)
}

/// The links, the one with the least work first: each gets its share of a striped message by its bandwidth.
fn by_load(links: &[Link]) -> smallvec::SmallVec<[usize; 4]> {
    let mut order: smallvec::SmallVec<[usize; 4]> = (0..links.len()).collect();
    order.sort_by(|&a, &b| links[a].load.total_cmp(&links[b].load));
    order
}
