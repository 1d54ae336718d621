//! Tests copies of device memory to the same process, on the simulated driver, or on the real one with
//! `CABLEWAY_TEST_REAL_DRIVER=1`.
#![cfg(feature = "cuda")]

#[path = "../../common-cuda/tests/common/app.rs"]
mod app;

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use app::App;
use cableway_base::Parameters;
use cableway_btl::{
    Access, Btl, Endpoint, Error, Job, Rank, Received, Region, Registration, Remote, Token, Transfer, Upcalls,
};
use cableway_btl_self::SelfLoop;
use cableway_common_cuda::{Devices, Location, Order};

const LEN: usize = 1 << 20;
/// `CU_STREAM_WAIT_VALUE_EQ`.
const EQUAL: u32 = 1;

/// Counts the transfers that completed, by token.
#[derive(Default)]
struct Completed([Cell<u32>; 2]);

impl Upcalls for Completed {
    fn receive(&self, _peer: Rank, _message: Received<'_>) {}
    fn completed(&self, token: Token, result: Result<(), Error>) {
        result.unwrap();
        let count = &self.0[token.0 as usize];
        count.set(count.get() + 1);
    }
    fn peer_failed(&self, peer: Rank, error: Error) {
        panic!("{peer}: {error}");
    }
    fn peer_left(&self, peer: Rank) {
        panic!("{peer} left");
    }
}

struct Loopback {
    app: App,
    devices: Devices,
    btl: Arc<SelfLoop>,
    endpoint: Box<dyn Endpoint>,
    completed: Completed,
}

impl Loopback {
    fn new() -> Self {
        // The order after kernels, which only this value keeps.
        let devices = test_nodes::devices_with(&["costs=default", "default_stream_order=legacy"]);
        let btl = SelfLoop::new(&Job::new("t".into(), [0; 32], 0, 1, 1), &Parameters::default(), &devices);
        let endpoint = btl.connect(0, &btl.card()).unwrap().pop().unwrap();
        let app = App::load(sim_cuda::tested_folder().as_deref()).expect("there is a driver");
        Loopback { app, devices, btl, endpoint, completed: Completed::default() }
    }

    /// Allocates memory of the current context and fills it. Waits until the fill is complete.
    fn filled(&self, value: u8) -> Region {
        let address = self.app.malloc(LEN);
        self.app.cuMemsetD8(address, value, LEN).unwrap();
        self.app.cuCtxSynchronize().unwrap();
        self.region(address as *mut u8)
    }

    fn region(&self, address: *mut u8) -> Region {
        let location = self.devices.classify(address, LEN);
        Region { address, len: LEN, location, order: Order::AfterDefaultStream }
    }

    fn register(&mut self, region: Region) -> Registration {
        // SAFETY: the tests free nothing.
        unsafe { self.endpoint.register(region, Access::RemoteRead) }.unwrap().unwrap()
    }

    fn get(&mut self, local: Region, from: &Registration, token: Token) {
        // SAFETY: the tests free nothing, and touch neither side until the copy has completed.
        let started = unsafe { self.endpoint.get(&local.into(), &Remote::at(from.handle(), 0), token) };
        assert_eq!(started.unwrap(), Transfer::Started);
    }

    fn completed(&self, token: Token) -> u32 {
        self.completed.0[token.0 as usize].get()
    }

    fn until_completed(&self, token: Token, times: u32) {
        while self.completed(token) < times {
            self.btl.progress(&self.completed);
        }
    }

    /// Blocks the destination's default stream, queues a fill behind that, and requests a copy into the destination.
    fn copy_into_busy_context(&mut self, source_context: app::Handle, destination_context: app::Handle) {
        const COPY: Token = Token(0);
        const OTHER: Token = Token(1);
        self.app.cuCtxSetCurrent(source_context).unwrap();
        let from = self.filled(7);
        self.app.cuCtxSetCurrent(destination_context).unwrap();
        let to = self.filled(0);
        assert_ne!(from.location.context, to.location.context);

        let mut word: *mut c_void = std::ptr::null_mut();
        self.app.cuMemHostAlloc(&raw mut word, 4096, 0).unwrap();
        // SAFETY: the word was just allocated, and is never freed.
        let go_on = unsafe { AtomicU32::from_ptr(word.cast()) };
        go_on.store(0, Ordering::Release);
        self.app.cuStreamWaitValue32(app::LEGACY_STREAM, word as u64, 1, EQUAL).unwrap();
        self.app.cuMemsetD8Async(to.address as u64, 9, LEN, app::LEGACY_STREAM).unwrap();

        let registration = self.register(from);
        self.get(to, &registration, COPY);
        // Meanwhile, copies that wait for nothing complete repeatedly.
        let mut host = vec![0_u8; LEN];
        let bystander = Region { address: host.as_mut_ptr(), len: LEN, location: Location::HOST, order: Order::None };
        for times in 1..=20 {
            self.get(bystander, &registration, OTHER);
            self.until_completed(OTHER, times);
        }
        let early = self.completed(COPY);
        go_on.store(1, Ordering::Release);
        self.until_completed(COPY, 1);
        self.app.cuCtxSynchronize().unwrap();
        assert_eq!(early, 0, "the copy completed before the destination's default stream went on");
        assert!(self.app.download(to.address as u64, LEN) == [7; LEN], "the fill came after the copy");
        self.completed.0.iter().for_each(|count| count.set(0));
    }
}

#[test]
fn a_copy_across_contexts_waits_for_the_destinations_default_stream() {
    let mut loopback = Loopback::new();
    let primary = loopback.app.use_device(0);
    let created = loopback.app.create_context(0);
    loopback.copy_into_busy_context(created, primary);
    loopback.copy_into_busy_context(primary, created);
    if loopback.app.device_count() > 1 {
        let second = loopback.app.use_device(1);
        loopback.copy_into_busy_context(primary, second);
    }
}
