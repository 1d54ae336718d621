//! Several engines in one process and thread, connected by a scripted network.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

pub mod active;
pub mod layouts;
#[cfg(any(feature = "cuda", feature = "rocm"))]
pub mod memory;
pub mod net;
pub mod sides;
#[cfg(any(feature = "cuda", feature = "rocm"))]
pub mod windows;

use std::sync::Arc;
use std::time::Duration;

use cableway_base::Parameters;
use cableway_common_cuda::Devices;
use cableway_pml::{ANY, Buffer, Communicator, Config, Engine, Error, Outcome, Request, SendMode, Status};

pub use net::{Link, Net};

/// Ranks with one engine each, and a communicator of all ranks.
pub struct Ranks {
    pub net: Arc<Net>,
    pub engines: Vec<Arc<Engine>>,
    pub world: Vec<Arc<Communicator>>,
}

/// The context of `Ranks::world`.
pub const WORLD: u32 = 0;

impl Ranks {
    pub fn new(size: u32, links: &[Link]) -> Self {
        Self::with(size, links, &[], false)
    }

    pub fn with(size: u32, links: &[Link], parameters: &[(&str, &str)], serialized: bool) -> Self {
        Self::on(&Devices::none(), size, links, parameters, serialized)
    }

    pub fn on(devices: &Devices, size: u32, links: &[Link], parameters: &[(&str, &str)], serialized: bool) -> Self {
        let net = Net::new(size, links, devices);
        let mut set = Parameters::default();
        for (name, value) in parameters {
            set.set_internal(name, value).unwrap();
        }
        let set = Arc::new(set);
        let engines: Vec<Arc<Engine>> = (0..size)
            .map(|rank| {
                let config = Config {
                    modex: net.modex(rank),
                    parameters: set.clone(),
                    devices: devices.clone(),
                    btls: net.btls(rank),
                };
                if serialized {
                    // SAFETY: these tests make one call at a time.
                    unsafe { Engine::new_serialized(config) }.unwrap()
                } else {
                    Engine::new(config).unwrap()
                }
            })
            .collect();
        let group: Vec<u32> = (0..size).collect();
        let world = engines
            .iter()
            .enumerate()
            .map(|(rank, engine)| engine.add_communicator(WORLD, group.clone(), rank as u32).unwrap())
            .collect();
        Ranks { net, engines, world }
    }

    /// Lets all ranks make progress until no event occurs any more.
    pub fn settle(&self) {
        let mut quiet = 0;
        while quiet < 200 {
            let events: usize = self.engines.iter().map(|engine| engine.progress()).sum();
            quiet = if events == 0 { quiet + 1 } else { 0 };
        }
    }

    /// Lets all ranks make progress until the requests are complete.
    pub fn finish(&self, requests: &[&Request]) {
        for _ in 0..2_000_000 {
            if requests.iter().all(|request| request.is_complete()) {
                return;
            }
            for engine in &self.engines {
                engine.progress();
            }
        }
        let states: Vec<bool> = requests.iter().map(|request| request.is_complete()).collect();
        panic!("requests hang: {states:?}; {:?}", self.engines[0].counters());
    }

    pub fn isend(&self, from: usize, to: i32, tag: i32, data: &[u8], mode: &SendMode) -> Sending {
        let request = Box::new(Request::new());
        // SAFETY: tests keep `data` and the box until the request is complete.
        let outcome = unsafe { self.engines[from].isend(&self.world[from], to, tag, bytes(data), mode, &*request) };
        match outcome.unwrap() {
            Outcome::Complete => Sending(None),
            Outcome::Started => Sending(Some(request)),
        }
    }

    pub fn irecv(&self, at: usize, from: i32, tag: i32, into: &mut [u8]) -> Box<Request> {
        let request = Box::new(Request::new());
        // SAFETY: tests keep `into` and the box until the request is complete.
        unsafe { self.engines[at].irecv(&self.world[at], from, tag, space(into), &*request) }.unwrap();
        request
    }

    /// Sends from rank 0 to rank 1, and waits until no event occurs any more. Returns the error of the send, and the
    /// result of the receive.
    pub fn transfer(
        &self,
        from: Buffer<'_>,
        to: Buffer<'_>,
        mode: &SendMode,
    ) -> (Option<Error>, Result<Status, Error>) {
        let (send, receive) = (Request::new(), Request::new());
        // SAFETY: buffers and requests live until complete.
        let outcome = unsafe {
            self.engines[1].irecv(&self.world[1], 0, 1, to, &receive).unwrap();
            self.engines[0].isend(&self.world[0], 1, 1, from, mode, &send).unwrap()
        };
        self.finish(&[&receive]);
        if outcome == Outcome::Started {
            self.finish(&[&send]);
        }
        self.settle();
        (send.error().cloned(), receive.result())
    }

    /// Receives a message, and waits for it.
    pub fn recv(&self, at: usize, from: i32, tag: i32, into: &mut [u8]) -> Result<Status, Error> {
        let request = self.irecv(at, from, tag, into);
        self.finish(&[&request]);
        request.result()
    }

    /// Sends `len` patterned bytes from rank 0 to 1, and checks the received bytes.
    pub fn carry(&self, len: usize, tag: i32) {
        let data = pattern(len, tag as u8);
        let mut into = vec![0; len];
        let receive = self.irecv(1, 0, tag, &mut into);
        let send = self.isend(0, 1, tag, &data, &SendMode::Standard);
        self.finish(&[&receive]);
        send.finish(self);
        assert_eq!(receive.result().unwrap(), Status { source: 0, tag, len: len as u64, cancelled: false });
        assert!(into == data, "{len} bytes arrive as they were sent");
    }

    /// Sends from rank 0 to rank 1, and lets rank 1 alone make progress, which completes its receive.
    pub fn carry_without_sender(&self, data: &[u8]) {
        let mut received = vec![0; data.len()];
        let send = self.isend(0, 1, 1, data, &SendMode::Standard);
        let receive = self.irecv(1, 0, 1, &mut received);
        for _ in 0..1000 {
            self.engines[1].progress();
        }
        assert!(receive.is_complete() && receive.error().is_none(), "{} bytes wait for the sender", data.len());
        assert!(received == data);
        assert!(!send.is_complete());
        send.finish(self);
    }

    /// Sends `len` bytes from rank 0 to rank 1. Rank 0 polls in each third of so many turns, and dies. The receive ends.
    pub fn die_while_sending(&self, len: usize, turns: usize) {
        let (data, mut received) = (pattern(len, 1), vec![0; len]);
        let send = self.isend(0, 1, 1, &data, &SendMode::Standard);
        let receive = self.irecv(1, 0, 1, &mut received);
        for turn in 0..turns {
            self.engines[1].progress();
            if turn % 3 == 0 {
                self.engines[0].progress();
            }
        }
        self.net.kill(0);
        for _ in 0..1000 {
            self.engines[1].progress();
        }
        assert!(
            receive.is_complete() && matches!(receive.error(), None | Some(Error::PeerFailed { peer: 0, .. })),
            "after {turns} turns: {:?}",
            receive.error()
        );
        drop(send);
    }

    pub fn counter(&self, rank: usize, name: &str) -> u64 {
        self.engines[rank].counters().rows().into_iter().find(|row| row.0 == name).unwrap().2
    }

    pub fn finalize(&self) {
        self.settle();
        for engine in &self.engines {
            assert!(engine.finalize(Duration::from_secs(5)));
        }
    }
}

/// A send that may be complete already.
pub struct Sending(pub Option<Box<Request>>);

impl Sending {
    pub fn is_complete(&self) -> bool {
        self.0.as_ref().is_none_or(|request| request.is_complete())
    }

    pub fn finish(&self, ranks: &Ranks) {
        if let Some(request) = &self.0 {
            ranks.finish(&[request]);
            request.result().unwrap();
        }
    }
}

pub fn bytes(data: &[u8]) -> Buffer<'static> {
    Buffer::bytes(data.as_ptr(), data.len() as u64)
}

/// Describes a receive buffer.
pub fn space(into: &mut [u8]) -> Buffer<'static> {
    Buffer::bytes(into.as_mut_ptr(), into.len() as u64)
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

pub const ANY_: i32 = ANY;
