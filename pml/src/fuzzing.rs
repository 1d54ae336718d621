//! Entry points for fuzzers: all code that reads bytes of a peer. None may panic.

use std::sync::Arc;

use cableway_base::{Parameters, Rank};
use cableway_btl::{
    Access, Btl, Capabilities, Cost, Endpoint, Error, Flags, Fragment, FragmentKind, FragmentOwner, Job, Local, Modex,
    ModexError, Operation, Received, Region, Registration, Remote, RemoteHandle, Sent, SharedBytes, Token, Transfer,
    Upcalls,
};
use cableway_common_cuda::{Devices, Location};
use parking_lot::Mutex;

use crate::protocol::recode;
use crate::wire::{Card, NodeCard, Puts, Several, parse_batch};
use crate::{ANY, ActiveMessages, Arrival, Buffer, Config, Engine, Request, SendMode};

/// Parses one or several headers, and writes them again.
pub fn header(bytes: &[u8]) {
    several(bytes);
    let head = &bytes[..bytes.len().min(cableway_btl::MAX_HEADER)];
    if let Ok(written) = recode(head, bytes.len()) {
        assert!(head.starts_with(written.as_bytes()));
    }
}

fn several(bytes: &[u8]) {
    match parse_batch(bytes) {
        Ok(Several::Puts(mut puts)) => {
            let (via, mut written) = (puts.via(), Puts::EMPTY);
            let check = |message: Option<&[u8]>| assert!(message.is_none_or(|message| parse_batch(message).is_ok()));
            while let Some(Ok(put)) = puts.next_put() {
                if !written.add(&put, via) {
                    check(written.take());
                    assert!(written.add(&put, via));
                }
            }
            check(written.take());
        }
        Ok(Several::PutFins(fins)) => assert!(fins.iter().count() <= bytes.len()),
        Ok(Several::Fins(fins)) => assert!(fins.iter().count() <= bytes.len()),
        Err(_) => {}
    }
}

/// Parses what a peer asks of registered memory, or answers, and writes it again.
pub fn one_sided(bytes: &[u8]) {
    crate::rma::recode(bytes);
}

/// Parses the messages of prepared operations on streams, and writes them again.
pub fn prepared(bytes: &[u8]) {
    crate::stream::recode(bytes);
}

/// Parses what a peer asks of a window, answers or notes, and writes it again.
pub fn window(bytes: &[u8]) {
    crate::osc::recode(bytes);
}

/// Parses an active message, and writes it again.
pub fn active_message(bytes: &[u8]) {
    crate::am::recode(bytes);
}

/// Parses a peer's card.
pub fn card(bytes: &[u8]) {
    if let Some(card) = NodeCard::parse(bytes) {
        assert_eq!(NodeCard::parse(&card.to_bytes()), Some(card));
    }
    if let Ok(card) = Card::parse(bytes) {
        assert_eq!(Card::parse(&card.to_bytes()), Ok(card));
    }
}

/// Delivers messages from a peer to an engine that has a send, two receives and active messages under way. The first
/// byte of each message is its length.
pub fn messages(mut bytes: &[u8]) {
    let wire = Arc::new(Wire::default());
    let config = Config {
        modex: Arc::new(FixedModex { job: Job::new("fuzz".into(), [0; 32], 0, 2, 2) }),
        parameters: Arc::new(Parameters::default()),
        devices: Devices::none(),
        btls: vec![wire.clone()],
    };
    let Ok(engine) = Engine::new(config) else { return };
    let Ok(world) = engine.add_communicator(0, vec![0, 1], 0) else { return };
    let Ok(active) = ActiveMessages::new(&engine, 1, vec![0, 1], 0) else { return };
    let receive = |arrival: Arrival<'_>| {
        let mut memory = vec![0u8; 64];
        let buffer = Buffer::bytes(memory.as_mut_ptr(), 64);
        // SAFETY: the completion owns the memory.
        unsafe { arrival.receive(buffer, move |_| drop(memory)) };
    };
    assert!(active.register(0, receive).is_ok());
    let (data, mut small, mut large) = (vec![1; 20_000], [0u8; 16], vec![0u8; 20_000]);
    let requests = [const { Request::new() }; 3];
    // SAFETY: buffers and requests live until the engine is gone, which is before this function ends.
    let started = unsafe {
        let receive = |into: &mut [u8], tag, request| {
            engine.irecv(&world, ANY, tag, Buffer::bytes(into.as_mut_ptr(), into.len() as u64), request)
        };
        let data = Buffer::bytes(data.as_ptr(), data.len() as u64);
        receive(&mut small, 1, &requests[0])
            .and_then(|()| receive(&mut large, ANY, &requests[1]))
            .and_then(|()| engine.isend(&world, 1, 1, data, &SendMode::Synchronous, &requests[2]).map(drop))
    };
    assert!(started.is_ok());
    while let Some((&len, rest)) = bytes.split_first() {
        let (message, later) = rest.split_at(usize::from(len).min(rest.len()));
        bytes = later;
        wire.incoming.lock().push(message.to_vec());
        engine.progress();
    }
    active.close();
    drop(active);
    drop(world);
    drop(engine);
}

/// A modex without a launcher: every peer has the same card.
struct FixedModex {
    job: Job,
}

impl Modex for FixedModex {
    fn job(&self) -> &Job {
        &self.job
    }
    fn put(&self, _key: &str, _value: &[u8]) -> Result<(), ModexError> {
        Ok(())
    }
    fn fence(&self) -> Result<(), ModexError> {
        Ok(())
    }
    fn get(&self, _peer: Rank, key: &str) -> Result<Option<Vec<u8>>, ModexError> {
        Ok(Some(if key == Card::KEY { Card { window: 1 << 16 }.to_bytes() } else { Vec::new() }))
    }
}

/// A transport that accepts every call and sends nothing.
#[derive(Default)]
struct Wire {
    incoming: Mutex<Vec<Vec<u8>>>,
}

impl Btl for Wire {
    fn name(&self) -> &'static str {
        "wire"
    }
    fn card(&self) -> Vec<u8> {
        Vec::new()
    }
    fn connect(&self, peer: Rank, _card: &[u8]) -> Result<Vec<Box<dyn Endpoint>>, Error> {
        let mut capabilities = Capabilities::send_only(4096, 4096);
        capabilities.flags |= Flags::GET | Flags::PUT;
        capabilities.min_rdma_size = 4096;
        Ok(vec![Box::new(Sink { peer, capabilities })])
    }
    fn is_connected(&self, _peer: Rank) -> bool {
        true
    }
    fn progress(&self, upcalls: &dyn Upcalls) -> usize {
        let messages = std::mem::take(&mut *self.incoming.lock());
        for message in &messages {
            upcalls.receive(1, Received::new(SharedBytes::from_private(message), None));
        }
        messages.len()
    }
    fn finalize(&self) -> bool {
        true
    }
}

struct Sink {
    peer: Rank,
    capabilities: Capabilities,
}

/// Owns fragments in leaked boxes.
struct BoxOwner;

impl FragmentOwner for BoxOwner {
    fn give_back(&self, memory: std::ptr::NonNull<u8>, key: u64) {
        let memory = std::ptr::slice_from_raw_parts_mut(memory.as_ptr(), key as usize);
        // SAFETY: the fragment was made of a leaked box of `key` bytes.
        drop(unsafe { Box::from_raw(memory) });
    }
}

impl Endpoint for Sink {
    fn peer(&self) -> Rank {
        self.peer
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn cost(&self, _operation: Operation, _location: &Location) -> Cost {
        Cost { fixed: self.capabilities.latency, bytes_per_second: self.capabilities.bandwidth }
    }
    fn send_inline(&mut self, _header: &[u8], _payload: &[u8]) -> Result<Sent, Error> {
        Ok(Sent::Done)
    }
    fn alloc(&mut self, len: usize, _kind: FragmentKind) -> Result<Option<Fragment>, Error> {
        let memory = Box::leak(vec![0u8; len].into_boxed_slice());
        // SAFETY: the box is leaked, and the fragment owns its memory exclusively until it is given back.
        Ok(Some(unsafe { Fragment::new(std::ptr::NonNull::from(memory).cast(), len, len as u64, Arc::new(BoxOwner)) }))
    }
    fn send(&mut self, fragment: Fragment, _len: usize) -> Result<(), Error> {
        drop(fragment);
        Ok(())
    }
    unsafe fn register(&mut self, _region: Region, _access: Access) -> Result<Option<Registration>, Error> {
        Ok(RemoteHandle::new(&[0; 8]).map(|handle| Registration::new(handle, None)))
    }
    unsafe fn get(&mut self, to: &Local<'_>, _from: &Remote<'_>, _token: Token) -> Result<Transfer, Error> {
        if let Local::Run(local) = to {
            // SAFETY: the caller lends the region for writing.
            unsafe { local.address.write_bytes(7, local.len) };
        }
        Ok(Transfer::Done)
    }
    unsafe fn put(&mut self, _from: &Local<'_>, _to: &Remote<'_>, _token: Token) -> Result<Transfer, Error> {
        Ok(Transfer::Done)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn malformed_messages_do_not_panic(messages in prop::collection::vec(
            (1u8..16, prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => 0u8..3, 1 => any::<u8>()], 0..80)), 0..12,
        )) {
            let mut bytes = vec![];
            for (kind, mut body) in messages {
                body.insert(0, kind);
                bytes.push(body.len() as u8);
                bytes.extend(body);
            }
            super::messages(&bytes);
            super::header(&bytes);
            super::card(&bytes);
            super::one_sided(&bytes);
        }
    }
}
