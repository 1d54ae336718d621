//! Ranks with one-sided operations.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use cableway_common_cuda::Devices;
use cableway_pml::{AtomicOperation, Buffer, Error, OneSided, Place, Registered, Request, Signal, Target, Width};

use super::{Link, Ranks, bytes, space};

/// The context of one-sided operations.
pub const CONTEXT: u32 = 7;

/// Ranks with one-sided operations. Closes these before the engines are dropped.
pub struct Sides {
    pub sides: Vec<OneSided>,
    pub ranks: Ranks,
}

/// Registered memory of a rank. The other ranks make progress while the registration ends.
pub struct Window<'s> {
    sides: &'s Sides,
    rank: usize,
    registered: Option<Registered>,
}

impl Sides {
    pub fn new(size: u32, links: &[Link]) -> Self {
        Self::on(&Devices::none(), size, links, &[])
    }

    pub fn on(devices: &Devices, size: u32, links: &[Link], parameters: &[(&str, &str)]) -> Self {
        let ranks = Ranks::on(devices, size, links, parameters, false);
        let side = |rank: u32| OneSided::new(&ranks.engines[rank as usize], CONTEXT, size, rank).unwrap();
        Sides { sides: (0..size).map(side).collect(), ranks }
    }

    /// Registers memory of a rank. Tests keep it longer than the registration.
    pub fn register(&self, rank: usize, memory: &mut [u8]) -> Window<'_> {
        self.register_at(rank, memory.as_mut_ptr(), memory.len())
    }

    pub fn register_at(&self, rank: usize, address: *mut u8, len: usize) -> Window<'_> {
        // SAFETY: see above; the tests read the memory between operations only.
        let registered = unsafe { self.sides[rank].register(address, len as u64) }.unwrap();
        Window { sides: self, rank, registered: Some(registered) }
    }

    pub fn start_put(&self, from: usize, data: &[u8], to: Place<'_>, signal: Option<Signal<'_>>) -> Box<Request> {
        let request = Box::new(Request::new());
        // SAFETY: tests keep the data and the box until the request is complete.
        let _ = unsafe { self.sides[from].put(bytes(data), to, signal, &*request) }.unwrap();
        request
    }

    pub fn start_get(&self, by: usize, into: &mut [u8], from: Place<'_>, signal: Option<Signal<'_>>) -> Box<Request> {
        let request = Box::new(Request::new());
        // SAFETY: tests keep the memory and the box until the request is complete.
        let _ = unsafe { self.sides[by].get(space(into), from, signal, &*request) }.unwrap();
        request
    }

    pub fn put(&self, from: usize, data: &[u8], to: Place<'_>, signal: Option<Signal<'_>>) -> Result<(), Error> {
        self.put_from(from, bytes(data), to, signal)
    }

    pub fn put_from<'k>(
        &self,
        from: usize,
        data: Buffer<'_>,
        to: impl Into<Target<'k>>,
        signal: Option<Signal<'_>>,
    ) -> Result<(), Error> {
        let request = Request::new();
        // SAFETY: the request is waited for.
        let _ = unsafe { self.sides[from].put(data, to, signal, &request) }?;
        self.ranks.finish(&[&request]);
        request.result().map(drop)
    }

    pub fn get(&self, by: usize, into: &mut [u8], from: Place<'_>) -> Result<(), Error> {
        self.get_into(by, space(into), from, None)
    }

    pub fn get_into<'k>(
        &self,
        by: usize,
        into: Buffer<'_>,
        from: impl Into<Target<'k>>,
        signal: Option<Signal<'_>>,
    ) -> Result<(), Error> {
        let request = Request::new();
        // SAFETY: the request is waited for.
        let _ = unsafe { self.sides[by].get(into, from, signal, &request) }?;
        self.ranks.finish(&[&request]);
        request.result().map(drop)
    }

    pub fn atomic(&self, by: usize, operation: AtomicOperation, width: Width, at: Place<'_>) -> Result<u64, Error> {
        let (request, mut old) = (Request::new(), [0_u8; 8]);
        // SAFETY: the request is waited for.
        let _ = unsafe { self.sides[by].atomic(operation, width, at, old.as_mut_ptr(), &request) }?;
        self.ranks.finish(&[&request]);
        request.result().map(|_| u64::from_le_bytes(old))
    }

    /// Returns how many operations a rank made directly.
    pub fn direct(&self, rank: usize) -> u64 {
        self.ranks.counter(rank, "one_sided_direct")
    }
}

impl Drop for Sides {
    fn drop(&mut self) {
        // Each waits for the others.
        std::thread::scope(|scope| self.sides.iter().for_each(|side| drop(scope.spawn(|| side.close()))));
    }
}

impl Deref for Window<'_> {
    type Target = Registered;

    fn deref(&self) -> &Registered {
        self.registered.as_ref().unwrap()
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        let over = AtomicBool::new(false);
        let others = || self.sides.ranks.engines.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    others().for_each(|(_, engine)| {
                        engine.progress();
                    });
                }
            });
            if let Some(registered) = &self.registered {
                registered.end();
            }
            over.store(true, Ordering::Release);
        });
    }
}

/// Returns zeros whose first byte is aligned to 8.
pub fn memory(len: usize) -> Vec<u64> {
    vec![0; len.div_ceil(8)]
}
