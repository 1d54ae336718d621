//! The queue pair over which processes that are not connected yet reach each other: datagrams of one size, any of which may
//! be lost.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use cableway_btl::Error;
use cableway_common_cuda::Devices;

use super::wire::HELLO;
use crate::NAME;
use crate::card::Address;
use crate::memory::Slab;
use crate::port::Port;
use crate::settings::Settings;
use crate::verbs::{
    Access, AddressHandle, Channel, Completion, CompletionQueue, Gather, Post, QueuePair, QueuePairOptions, Work,
    status,
};

/// Datagrams that may wait to be read; more are lost, and said again by their senders.
const RECEIVES: usize = 128;
/// Datagrams that may be on their way.
const SENDS: usize = 64;
/// What the network puts before a datagram.
const NETWORK_HEADER: usize = 40;
/// Of a buffer for a datagram.
const SLOT: usize = 320;
/// Set in the ids of sends; the rest is a buffer's index.
const SEND: u64 = 1 << 32;

const _: () = assert!(NETWORK_HEADER + HELLO <= SLOT);

/// A queue pair for datagrams, with its buffers.
pub(super) struct Datagrams {
    // Its users first: the queue pair is gone before its memory.
    pair: QueuePair,
    completions: Arc<CompletionQueue>,
    channel: Arc<Channel>,
    slab: Slab,
    idle_sends: Vec<usize>,
    /// Datagrams that came and were not read yet.
    come: Vec<[u8; HELLO]>,
    /// What sends under way need, by buffer.
    handles: Vec<Option<Arc<AddressHandle>>>,
    key: u32,
}

impl Datagrams {
    /// # Errors
    /// The device or the system refuses.
    pub(super) fn open(port: &Port) -> Result<Self, Error> {
        let failed = |what: &'static str| move |error| Error::system(NAME, what, error);
        let channel = Channel::new(&port.context).map_err(failed("no completion channel"))?;
        let completions = CompletionQueue::new(&port.context, RECEIVES + SENDS, Some(&channel))
            .map_err(failed("no completion queue for datagrams"))?;
        let random = u32::from_ne_bytes(crate::random().map_err(failed("no random bytes"))?);
        // Keys with the highest bit are the system's.
        let key = (random >> 1).max(1);
        let options = QueuePairOptions {
            port: port.facts.number,
            pkey_index: port.partition.index,
            depth: SENDS as u32,
            inline: 0,
            receives: RECEIVES as u32,
        };
        let pair = QueuePair::datagrams(&port.protection, &completions, key, &options)
            .map_err(failed("no queue pair for datagrams"))?;
        let slab = Slab::new(&port.protection, &Devices::none(), (RECEIVES + SENDS) * SLOT, Access::LocalWrite)?;
        let handles = (0..SENDS).map(|_| None).collect();
        let idle_sends = (0..SENDS).collect();
        let mut datagrams = Datagrams { pair, completions, channel, slab, idle_sends, come: Vec::new(), handles, key };
        for index in 0..RECEIVES {
            datagrams.offer(index);
        }
        Ok(datagrams)
    }

    /// What a peer needs to send here: the queue pair's number and key.
    pub(super) fn address(&self) -> (u32, u32) {
        (self.pair.number(), self.key)
    }

    /// Has [`descriptor`](Self::descriptor) become readable when something comes; read after, as that may have come
    /// before.
    pub(super) fn arm(&self) -> io::Result<()> {
        self.completions.arm()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.descriptor()
    }

    /// Makes the descriptor unreadable again.
    pub(super) fn drain(&self) {
        self.channel.drain();
    }

    /// Sends, unless too many are on their way: that is as good as lost.
    ///
    /// # Errors
    /// The device refuses, which is as good as lost, too.
    pub(super) fn send(
        &mut self,
        port: &Port,
        settings: &Settings,
        to: &Address,
        bytes: &[u8; HELLO],
    ) -> io::Result<()> {
        if self.idle_sends.is_empty() {
            self.collect()?;
        }
        let Some(slot) = self.idle_sends.pop() else { return Ok(()) };
        let result = self.post(slot, port, settings, to, bytes);
        if result.is_err() {
            self.idle_sends.push(slot);
        }
        result
    }

    fn post(
        &mut self,
        slot: usize,
        port: &Port,
        settings: &Settings,
        to: &Address,
        bytes: &[u8; HELLO],
    ) -> io::Result<()> {
        let handle = AddressHandle::new(&port.protection, &port.path_to(to, settings))?;
        let memory = self.slot(RECEIVES + slot);
        // SAFETY: the slot lies in the slab, is idle, and has room for it.
        unsafe { memory.copy_from_nonoverlapping(bytes.as_ptr(), HELLO) };
        let data = Gather { address: memory, len: HELLO, key: self.slab.region().local_key() };
        let work = Work::Datagram { to: &handle, number: to.datagrams, key: to.datagram_key };
        let post = Post { id: SEND | slot as u64, signalled: true, inline: false };
        // SAFETY: the slot is not touched and the handle is kept until the completion.
        unsafe { self.pair.post(work, data, post) }?;
        self.handles[slot] = Some(handle);
        Ok(())
    }

    /// Appends what has come, until there is no more.
    pub(super) fn read(&mut self, come: &mut Vec<[u8; HELLO]>) -> io::Result<()> {
        self.collect()?;
        come.append(&mut self.come);
        Ok(())
    }

    fn collect(&mut self) -> io::Result<()> {
        // SAFETY: a structure of integers.
        let mut completions: [Completion; 16] = unsafe { std::mem::zeroed() };
        loop {
            let count = self.completions.poll(&mut completions)?;
            if count == 0 {
                return Ok(());
            }
            for completion in &completions[..count] {
                if completion.wr_id & SEND != 0 {
                    let slot = (completion.wr_id & !SEND) as usize;
                    self.handles[slot] = None;
                    self.idle_sends.push(slot);
                } else {
                    let datagram = self.receive(completion);
                    self.come.extend(datagram);
                }
            }
        }
    }

    /// A datagram, if it is a whole one; its buffer is offered again.
    fn receive(&mut self, completion: &Completion) -> Option<[u8; HELLO]> {
        let index = completion.wr_id as usize;
        let mut bytes = [0; HELLO];
        let len = (completion.byte_len as usize).saturating_sub(NETWORK_HEADER);
        let whole = completion.status == status::IBV_WC_SUCCESS && len == HELLO;
        if whole {
            // SAFETY: the slot lies in the slab, and the device has handed it back.
            unsafe { self.slot(index).add(NETWORK_HEADER).copy_to_nonoverlapping(bytes.as_mut_ptr(), HELLO) };
        }
        self.offer(index);
        whole.then_some(bytes)
    }

    fn offer(&mut self, index: usize) {
        let (address, key) = (self.slot(index), self.slab.region().local_key());
        // SAFETY: the slot lies in the slab, which outlives the queue pair, and is in nobody's hands.
        if let Err(error) = unsafe { self.pair.post_receive(index as u64, address, SLOT as u32, key) } {
            log::warn!("{NAME}: a buffer for datagrams cannot be posted any more: {error}");
        }
    }

    fn slot(&self, index: usize) -> *mut u8 {
        // SAFETY: indices are below the number of slots of the slab.
        unsafe { self.slab.address().add(index * SLOT) }.as_ptr()
    }
}
