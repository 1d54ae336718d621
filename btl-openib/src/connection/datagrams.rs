//! The unreliable datagram (UD) queue pair that unconnected processes reach each other by. Datagrams have one size, and
//! any of them may be lost.

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
    Access, AddressHandle, Channel, Completion, CompletionQueue, Data, Gather, Post, QueuePair, QueuePairOptions, Work,
    status,
};

/// Receive buffers. Further datagrams are lost, and their senders repeat them.
const RECEIVES: usize = 128;
/// The number of datagrams that may be in flight.
const SENDS: usize = 64;
/// The size of the network header (GRH) before a datagram.
const NETWORK_HEADER: usize = 40;
/// The size of a datagram buffer.
const SLOT: usize = 320;
/// Set in the ids of sends; the rest is a buffer's index.
const SEND: u64 = 1 << 32;
/// How often the queue pair may fail with no success in between.
const FAILURES: u32 = 8;

const _: () = assert!(NETWORK_HEADER + HELLO <= SLOT);

/// A queue pair for datagrams, with its buffers.
pub(super) struct Datagrams {
    // The queue pair drops before its memory.
    pair: QueuePair,
    completions: Arc<CompletionQueue>,
    channel: Arc<Channel>,
    slab: Slab,
    idle_sends: Vec<usize>,
    /// Received datagrams that were not read yet.
    come: Vec<[u8; HELLO]>,
    /// The address handles of sends under way, by buffer.
    handles: Vec<Option<Arc<AddressHandle>>>,
    key: u32,
    options: QueuePairOptions,
    /// The queue pair failed. No buffer is posted to it until it restarts.
    failed: bool,
    /// The number of failures since the last success.
    failures: u32,
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
        // Q_Keys with the highest bit set are reserved for the system.
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
        let (come, failed, failures) = (Vec::new(), false, 0);
        let mut datagrams =
            Datagrams { pair, completions, channel, slab, idle_sends, come, handles, key, options, failed, failures };
        for index in 0..RECEIVES {
            datagrams.offer(index);
        }
        Ok(datagrams)
    }

    /// Returns the queue pair's number and Q_Key, which peers need to send here.
    pub(super) fn address(&self) -> (u32, u32) {
        (self.pair.number(), self.key)
    }

    /// Makes [`descriptor`](Self::descriptor) readable at the next completion. Read once after arming, since something
    /// may have arrived before.
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

    /// Sends a datagram. It is dropped if too many are under way.
    ///
    /// # Errors
    /// The device refuses; treat the datagram as lost.
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
        let data = Data::Registered(Gather { address: memory, len: HELLO, key: self.slab.region().local_key() });
        let work = Work::Datagram { to: &handle, number: to.datagrams, key: to.datagram_key };
        let post = Post { id: SEND | slot as u64, signalled: true };
        // SAFETY: the slot is not touched and the handle is kept until the completion.
        unsafe { self.pair.post(work, data, post) }?;
        self.handles[slot] = Some(handle);
        Ok(())
    }

    /// Appends all received datagrams to `come`.
    ///
    /// # Errors
    /// The device failed, or the queue pair fails repeatedly.
    pub(super) fn read(&mut self, come: &mut Vec<[u8; HELLO]>) -> io::Result<()> {
        self.collect()?;
        come.append(&mut self.come);
        Ok(())
    }

    /// Restarts the queue pair after the device reported a failure, unless it has restarted since.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn mend(&mut self) -> io::Result<()> {
        if !self.pair.is_ready()? {
            self.failed = true;
            self.failures += 1;
        }
        self.collect()
    }

    fn collect(&mut self) -> io::Result<()> {
        // SAFETY: a structure of integers.
        let mut completions: [Completion; 16] = unsafe { std::mem::zeroed() };
        loop {
            let count = self.completions.poll(&mut completions)?;
            if count == 0 {
                return if self.failed { self.begin_anew() } else { Ok(()) };
            }
            for completion in &completions[..count] {
                if completion.status != status::IBV_WC_SUCCESS {
                    self.fail(completion);
                    continue;
                }
                self.failures = 0;
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

    /// Records a failed completion, which also breaks the queue pair. A datagram to an unreachable address counts as
    /// lost.
    fn fail(&mut self, completion: &Completion) {
        let by_itself = completion.wr_id & SEND == 0 || completion.status == status::IBV_WC_WR_FLUSH_ERR;
        self.failures += u32::from(by_itself && !self.failed);
        self.failed = true;
    }

    /// Restarts the queue pair under its number and Q_Key. Datagrams under way are lost.
    fn begin_anew(&mut self) -> io::Result<()> {
        if self.failures > FAILURES {
            return Err(io::Error::other("the queue pair for datagrams fails again and again"));
        }
        log::info!("{NAME}: the queue pair for datagrams failed and was restarted");
        self.pair.begin_anew(self.key, &self.options)?;
        // SAFETY: a structure of integers.
        let mut stale: [Completion; 16] = unsafe { std::mem::zeroed() };
        while self.completions.poll(&mut stale)? != 0 {}
        self.failed = false;
        self.handles.fill(None);
        self.idle_sends = (0..SENDS).collect();
        for index in 0..RECEIVES {
            self.offer(index);
        }
        Ok(())
    }

    /// Copies a datagram out if it is complete, and posts its buffer again.
    fn receive(&mut self, completion: &Completion) -> Option<[u8; HELLO]> {
        let index = completion.wr_id as usize;
        let mut bytes = [0; HELLO];
        let len = (completion.byte_len as usize).saturating_sub(NETWORK_HEADER);
        let whole = len == HELLO;
        if whole {
            // SAFETY: the slot lies in the slab, and the device has handed it back.
            unsafe { self.slot(index).add(NETWORK_HEADER).copy_to_nonoverlapping(bytes.as_mut_ptr(), HELLO) };
        }
        self.offer(index);
        whole.then_some(bytes)
    }

    fn offer(&mut self, index: usize) {
        if self.failed {
            return;
        }
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use cableway_base::Parameters;

    use super::*;
    use cableway_btl::process::Process;

    /// Opens a port that supports datagrams. If there is none, prints that and returns `None`.
    fn port() -> Option<(Port, Settings)> {
        if !crate::verbs::has_device() {
            return None;
        }
        let text = std::env::var("CABLEWAY_TEST_OPENIB").unwrap_or_default();
        let mut parameters = Parameters::default();
        for assignment in text.split_whitespace() {
            parameters.assign_internal(assignment).unwrap();
        }
        let settings = Settings::new(&parameters).unwrap();
        let port = Port::open_all(&settings, 1).unwrap().unwrap().remove(0);
        if port.context.is_iwarp() {
            println!("skipped: iWARP has no datagrams");
            return None;
        }
        Some((port, settings))
    }

    fn own_address(port: &Port, datagrams: &Datagrams) -> Address {
        let (datagrams, datagram_key) = datagrams.address();
        Address {
            mtu: port.facts.mtu,
            kind: port.gid.kind,
            lid: port.facts.lid,
            reads: 1,
            queues: 1,
            gid: port.gid.bytes,
            datagrams,
            datagram_key,
            max_message: 4096,
            process: Process::default(),
            listener: None,
            pkey: 0,
            network: 128,
        }
    }

    #[test]
    fn a_failed_queue_pair_restarts_under_its_number() {
        let Some((port, settings)) = port() else { return };
        let mut datagrams = Datagrams::open(&port).unwrap();
        let own = own_address(&port, &datagrams);
        let arrives = |datagrams: &mut Datagrams, byte: u8| {
            let (mut come, end) = (Vec::new(), Instant::now() + Duration::from_secs(60));
            while !come.contains(&[byte; HELLO]) {
                assert!(Instant::now() < end, "datagram {byte} does not arrive");
                let _ = datagrams.send(&port, &settings, &own, &[byte; HELLO]);
                datagrams.read(&mut come).unwrap();
            }
        };
        arrives(&mut datagrams, 0);
        // Fail it more often than would be allowed without success in between.
        for byte in 1..3 * FAILURES as u8 {
            datagrams.pair.fail().unwrap();
            if byte % 2 == 0 {
                datagrams.mend().unwrap();
            }
            arrives(&mut datagrams, byte);
        }
        assert_eq!(datagrams.address(), (own.datagrams, own.datagram_key));
    }

    #[test]
    fn repeated_failures_are_an_error() {
        let Some((port, _)) = port() else { return };
        let mut datagrams = Datagrams::open(&port).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        let mut tried = 0;
        while datagrams.pair.fail().and_then(|()| datagrams.mend()).is_ok() {
            tried += 1;
            assert!(Instant::now() < end && tried <= FAILURES, "it was restarted {tried} times");
        }
        assert_eq!(tried, FAILURES);
    }
}
