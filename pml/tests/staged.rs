//! Device messages through host memory: the number of driver calls, and the effect of a call that fails. Runs on the
//! simulated driver (or the one in `CABLEWAY_CUDA_LIBDIR`). Only the simulated driver counts its calls.
#![cfg(feature = "cuda")]

mod common;

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cableway_btl::Flags;
use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices};
use cableway_pml::{Buffer, Error, FastPath, Outcome, Request, SendMode};
use test_nodes::{devices, devices_with, isolated};

use common::{Link, Ranks, pattern};

/// Runs one test at a time: calls are counted for the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how often a driver function was called, or `None` on a real driver.
fn calls(name: &CStr) -> Option<i64> {
    type Count = unsafe extern "C" fn(*const c_char) -> i64;
    let path = sim_cuda::tested_folder()?.join(sim_cuda::Vendor::tested().library());
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the driver is loaded already, so no initialisers run. Its function has this signature.
    unsafe {
        let driver = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!driver.is_null(), "the driver is loaded");
        let count = match sim_cuda::Vendor::tested() {
            sim_cuda::Vendor::Nvidia => libc::dlsym(driver, c"simCudaCallCount".as_ptr()),
            sim_cuda::Vendor::Amd => libc::dlsym(driver, c"simHipCallCount".as_ptr()),
        };
        if count.is_null() {
            return None;
        }
        let count = std::mem::transmute::<*mut libc::c_void, Count>(count);
        Some(count(name.as_ptr()))
    }
}

/// The calls that start copies, record and query their end, and wait for the default stream.
const COSTLY: [&CStr; 5] =
    [c"cuMemcpyAsync", c"cuMemcpyBatchAsync", c"cuEventRecord", c"cuStreamWaitEvent", c"cuStreamQuery"];

fn costly() -> Option<Vec<i64>> {
    COSTLY.map(calls).into_iter().collect()
}

fn link() -> Link {
    Link::new("net", Flags::DEVICE_FRAGMENTS).with(|link| {
        link.retains = true;
        link.capabilities.device_max_send_size = 4 << 20;
    })
}

/// Returns a device buffer with this content.
fn buffer(devices: &Devices, content: &[u8]) -> DeviceBuffer {
    let mut buffer = DeviceBuffer::new(devices, DeviceIndex(0), BufferKind::Device, content.len()).unwrap();
    buffer.copy_from_host(0, content).unwrap();
    buffer
}

/// Sends the pieces of one buffer to those of another, all at once. Returns the result of each receive.
fn window(ranks: &Ranks, from: &[*mut u8], to: &[*mut u8], len: usize) -> Vec<Result<(), Error>> {
    let requests = |pieces: &[*mut u8]| pieces.iter().map(|_| Request::new()).collect::<Vec<_>>();
    let (sends, receives) = (requests(from), requests(to));
    let piece = |address: &*mut u8| Buffer::bytes(*address, len as u64);
    // SAFETY: the callers' buffers and these requests live until all is done.
    unsafe {
        for (tag, (to, request)) in to.iter().zip(&receives).enumerate() {
            ranks.engines[1].irecv(&ranks.world[1], 0, tag as i32, piece(to), request).unwrap();
        }
        for (tag, (from, request)) in from.iter().zip(&sends).enumerate() {
            let (engine, world) = (&ranks.engines[0], &ranks.world[0]);
            let _ = engine.isend(world, 1, tag as i32, piece(from), &SendMode::Standard, request).unwrap();
        }
    }
    ranks.finish(&receives.iter().collect::<Vec<_>>());
    ranks.finish(&sends.iter().filter(|request| request.is_active()).collect::<Vec<_>>());
    ranks.settle();
    receives.iter().map(|request| request.result().map(drop)).collect()
}

fn pieces(buffer: &DeviceBuffer, count: usize, len: usize) -> Vec<*mut u8> {
    (0..count).map(|piece| buffer.as_device_ptr().wrapping_add(piece * len)).collect()
}

#[test]
fn a_send_queries_the_location_of_its_buffer_once() {
    const LEN: usize = 100;
    let _alone = alone();
    let devices = devices();
    let ranks = Ranks::on(&devices, 2, &[link()], &[("device_protocols", "copy")], false);
    let content = pattern(LEN, 3);
    let (source, target) = (buffer(&devices, &content), buffer(&devices, &[0; LEN]));
    let (send, receive) = (Request::new(), Request::new());
    let (engine, world) = (&ranks.engines[0], &ranks.world[0]);
    let asked = || calls(c"cuPointerGetAttributes");
    for _ in 0..2 {
        let (at, before) = (source.location(), asked());
        // SAFETY: buffers and requests live until all is done.
        unsafe {
            let from = Buffer::bytes(source.as_device_ptr(), LEN as u64);
            let FastPath::NotTaken(location) = engine.send_now(world, 1, 1, from).unwrap() else {
                panic!("a device message needs a request")
            };
            assert_eq!(location, Some(at));
            let started = engine.isend_after(world, 1, 1, (from, location), &SendMode::Standard, &raw const send);
            assert_eq!(started.unwrap(), Outcome::Started);
            assert_eq!(asked(), before.map(|before| before + 1));
            let to = Buffer::bytes(target.as_device_ptr(), LEN as u64);
            ranks.engines[1].irecv(&ranks.world[1], 0, 1, to, &raw const receive).unwrap();
        }
        ranks.finish(&[&send, &receive]);
        assert!(send.result().is_ok() && receive.result().is_ok());
    }
    let mut got = vec![0; content.len()];
    target.copy_to_host(0, &mut got).unwrap();
    assert!(got == content);
}

#[test]
fn messages_of_a_window_share_their_calls() {
    const COUNT: usize = 64;
    let _alone = alone();
    let devices = devices();
    for len in [8, 3000, 65_536] {
        let ranks = Ranks::on(&devices, 2, &[link()], &[("device_protocols", "copy")], false);
        let content = pattern(COUNT * len, 3);
        let (source, target) = (buffer(&devices, &content), buffer(&devices, &vec![0; COUNT * len]));
        let (from, to) = (pieces(&source, COUNT, len), pieces(&target, COUNT, len));
        // The first messages create streams, events and pools.
        window(&ranks, &from, &to, len);
        let before = costly();
        assert!(window(&ranks, &from, &to, len).iter().all(Result::is_ok));
        if let Some((before, after)) = before.zip(costly()) {
            let made: Vec<i64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
            let copies = 2 * COUNT as i64;
            println!("{len} bytes: {COSTLY:?} {made:?}");
            // Without batches, each fragment on either side would take a copy, an event and a wait.
            assert!(made[0] + made[1] <= copies / 4, "{len} bytes: {made:?} calls to copy");
            assert!(made[2] <= copies / 2, "{len} bytes: {made:?} calls to record events");
            assert!(made[3] <= copies / 4, "{len} bytes: {made:?} calls to wait for the default stream");
        }
        let mut got = vec![0; content.len()];
        target.copy_to_host(0, &mut got).unwrap();
        assert!(got == content, "{len} bytes");
        assert_eq!(ranks.counter(0, "device_copies"), 2 * COUNT as u64);
        assert_eq!(ranks.net.fragments(), 0);
    }
}

/// Checks small messages from host memory, whose payloads must be copied before the device can read them.
#[test]
fn messages_from_host_memory_share_their_calls() {
    const COUNT: usize = 64;
    const LEN: usize = 1000;
    let _alone = alone();
    let devices = devices();
    let ranks = Ranks::on(&devices, 2, &[link().with(|link| link.retains = false)], &[], false);
    let mut content = pattern(COUNT * LEN, 3);
    let target = buffer(&devices, &vec![0; COUNT * LEN]);
    let from: Vec<*mut u8> = content.chunks_mut(LEN).map(<[u8]>::as_mut_ptr).collect();
    let before = costly();
    assert!(window(&ranks, &from, &pieces(&target, COUNT, LEN), LEN).iter().all(Result::is_ok));
    if let Some((before, after)) = before.zip(costly()) {
        let made: Vec<i64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert!(made[0] + made[1] <= COUNT as i64 / 8, "{made:?} calls to copy");
    }
    let mut got = vec![0; content.len()];
    target.copy_to_host(0, &mut got).unwrap();
    assert!(got == content);
}

/// Checks that no call asks about the default stream if a copy will wait for it anyway: the question takes longer.
#[test]
fn the_default_stream_is_not_queried_before_eager_messages() {
    const LEN: usize = 1000;
    let _alone = alone();
    let devices = devices_with(&["costs=default", "default_stream_order=legacy"]);
    let ranks = Ranks::on(&devices, 2, &[link().with(|link| link.retains = false)], &[], false);
    let content = pattern(LEN, 3);
    let mut host = vec![0; LEN];
    let (source, target) = (buffer(&devices, &content), buffer(&devices, &[0; LEN]));
    let piece = |address: *mut u8| Buffer::bytes(address, LEN as u64);
    let asked = || calls(c"cuStreamQuery").unwrap_or(0);
    // Send from the device to the host and back into the device.
    let mut there_and_back = |turns: usize| {
        let requests: [Request; 4] = std::array::from_fn(|_| Request::new());
        let [sent, arrived, back, returned] = &requests;
        // SAFETY: buffers and requests live until all is done.
        unsafe {
            let [near, far] = [(&ranks.engines[0], &ranks.world[0]), (&ranks.engines[1], &ranks.world[1])];
            far.0.irecv(far.1, 0, 1, piece(host.as_mut_ptr()), arrived).unwrap();
            let _ = near.0.isend(near.1, 1, 1, piece(source.as_device_ptr()), &SendMode::Standard, sent).unwrap();
            ranks.finish(&[sent, arrived]);
            // The work that the copy waited for is over, but the driver may find that out later.
            source.copy_to_host(0, &mut [0]).unwrap();
            near.0.irecv(near.1, 1, 2, piece(target.as_device_ptr()), returned).unwrap();
            for _ in 0..turns {
                near.0.progress();
            }
            if far.0.isend(far.1, 0, 2, piece(host.as_mut_ptr()), &SendMode::Standard, back).unwrap()
                == Outcome::Complete
            {
                ranks.finish(&[returned]);
            } else {
                ranks.finish(&[back, returned]);
            }
        }
    };
    there_and_back(0);
    // The first receive could not know that its message would be eager. Handle its query first.
    let mut before = -1;
    while before != asked() {
        before = asked();
        for _ in 0..100 {
            ranks.engines[0].progress();
            std::thread::yield_now();
        }
    }
    there_and_back(5);
    assert_eq!(asked(), before, "the copies waited for the stream");
    there_and_back(1000);
    if calls(c"cuStreamQuery").is_some() {
        assert_eq!(asked(), before + 1, "an idle engine asks");
    }
    let mut got = vec![0; LEN];
    target.copy_to_host(0, &mut got).unwrap();
    assert!(got == content);
}

/// Checks that the pieces of large messages start at once, without waiting for a batch.
#[test]
fn large_pieces_start_without_a_batch() {
    let _alone = alone();
    let devices = devices();
    let len = 8 << 20;
    let parameters = [("device_protocols", "copy"), ("device_chunk_size", "1M")];
    let ranks = Ranks::on(&devices, 2, &[link()], &parameters, false);
    let content = pattern(len, 3);
    let (source, target) = (buffer(&devices, &content), buffer(&devices, &vec![0; len]));
    let before = calls(c"cuMemcpyBatchAsync");
    assert!(window(&ranks, &pieces(&source, 1, len), &pieces(&target, 1, len), len)[0].is_ok());
    assert_eq!(calls(c"cuMemcpyBatchAsync"), before);
    let mut got = vec![0; len];
    target.copy_to_host(0, &mut got).unwrap();
    assert!(got == content);
}

/// Returns whether the driver supports injected faults.
fn fails_on_request(test: &str) -> bool {
    let simulated = sim_cuda::tested_folder().is_some();
    if !simulated {
        eprintln!("skipped {test}: a real driver does not fail on request");
    }
    simulated
}

/// Checks a batch with one bad copy: the driver refuses the batch, so its copies are retried one by one, and only the
/// bad copy fails.
#[test]
fn a_failed_copy_does_not_fail_its_batch() {
    const TEST: &str = "a_failed_copy_does_not_fail_its_batch";
    const COUNT: usize = 8;
    const LEN: usize = 3000;
    if !fails_on_request(TEST) {
        return;
    }
    // Two messages start alone, the others as a batch.
    isolated(TEST, &[("SIM_CUDA_FAIL", "cuMemcpyBatchAsync:1:1,cuMemcpyAsync:1:5,cuMemcpyAsync:1:8")], || {
        let devices = devices();
        let ranks = Ranks::on(&devices, 2, &[link()], &[("device_protocols", "copy")], false);
        let content = pattern(COUNT * LEN, 3);
        let (source, target) = (buffer(&devices, &content), buffer(&devices, &vec![0; COUNT * LEN]));
        let (from, to) = (pieces(&source, COUNT, LEN), pieces(&target, COUNT, LEN));
        let results = window(&ranks, &from, &to, LEN);
        let failed: Vec<usize> = (0..COUNT).filter(|&message| results[message].is_err()).collect();
        assert!(failed.len() == 1 && failed[0] >= 2, "{results:?}");
        let mut got = vec![0; content.len()];
        target.copy_to_host(0, &mut got).unwrap();
        let same = |message: usize| got[message * LEN..][..LEN] == content[message * LEN..][..LEN];
        assert!((0..COUNT).all(|message| message == failed[0] || same(message)));
        assert_eq!(ranks.net.fragments(), 0);
    });
}

#[test]
fn without_batches_copies_start_one_by_one() {
    const TEST: &str = "without_batches_copies_start_one_by_one";
    const COUNT: usize = 40;
    const LEN: usize = 30_000;
    if !fails_on_request(TEST) {
        return;
    }
    isolated(TEST, &[("SIM_CUDA_FAIL", "cuMemcpyBatchAsync:801")], || {
        let devices = devices();
        let ranks = Ranks::on(&devices, 2, &[link()], &[("device_protocols", "copy")], false);
        let content = pattern(COUNT * LEN, 3);
        let (source, target) = (buffer(&devices, &content), buffer(&devices, &vec![0; COUNT * LEN]));
        let results = window(&ranks, &pieces(&source, COUNT, LEN), &pieces(&target, COUNT, LEN), LEN);
        assert!(results.iter().all(Result::is_ok));
        let mut got = vec![0; content.len()];
        target.copy_to_host(0, &mut got).unwrap();
        assert!(got == content);
    });
}
