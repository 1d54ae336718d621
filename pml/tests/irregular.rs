//! Device memory in irregular blocks, over links whose kernels pack. Runs on the simulated driver (or the one in
//! `CABLEWAY_CUDA_LIBDIR`), whose memory faults when a CPU accesses it.
#![cfg(feature = "cuda")]

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use cableway_btl::Flags;
use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices};
use cableway_datatype::{Datatype, Layout, Predefined};
use cableway_pml::{Buffer, Error, Request, SendMode};

use common::memory::{Memory, with_faults};
use common::{Link, Ranks, pattern};
use test_nodes::{devices, devices_with};

/// Runs one test at a time: whether a kernel can start depends on the device's other work.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns blocks of 1 to 83 bytes with gaps at irregular distances, 7940 in each of two elements.
fn irregular() -> Layout {
    let lens: Vec<i64> = (0..200).map(|i| i * 37 % 83 + 1).collect();
    let places: Vec<i64> = (0..200).map(|i| i * 90 + i % 6).collect();
    let indexed = Datatype::indexed(&lens, &places, &Predefined::Byte.datatype()).unwrap();
    Datatype::resized(&indexed, 0, 200 * 90 + 64).unwrap().commit()
}

/// Returns the content of a buffer that was filled with 0xaa, after a message.
fn placed(layout: &Layout, count: u64, packed: &[u8], span: usize) -> Vec<u8> {
    let mut bytes = vec![0xaa; span];
    let places = layout.blocks(count).flat_map(|block| block.offset..block.offset + block.len as i64);
    for (place, byte) in places.zip(packed) {
        bytes[place as usize] = *byte;
    }
    bytes
}

/// Returns the packed bytes of a buffer's content.
fn gathered(layout: &Layout, count: u64, content: &[u8]) -> Vec<u8> {
    let range = |at: i64, len: u64| at as usize..at as usize + len as usize;
    layout.blocks(count).flat_map(|block| content[range(block.offset, block.len)].to_vec()).collect()
}

const ALL: Flags = Flags::GET
    .union(Flags::PUT)
    .union(Flags::DEVICE_GET)
    .union(Flags::DEVICE_PUT)
    .union(Flags::DEVICE_TO_DEVICE)
    .union(Flags::DEVICE_STRIDED)
    .union(Flags::DEVICE_PACKED);

/// Returns a link over which kernels copy, like shared memory.
fn between(change: impl FnOnce(&mut Link)) -> Link {
    Link::new("net", ALL).with(|link| {
        link.capabilities.device_min_rdma_size = 1;
        link.asynchronous = true;
        change(link);
    })
}

/// Allows a loaded machine a long time to start kernels.
const PATIENTLY: &[&str] = &["device_kernel_patience=20s", "costs=default"];

/// Waits until the kernels are loaded, which begins with the first question for them.
fn kernels_are_there(devices: &Devices) {
    let some = DeviceBuffer::new(devices, DeviceIndex(0), BufferKind::Device, 1).unwrap();
    let start = std::time::Instant::now();
    while !devices.kernels(&some.location()) {
        assert!(start.elapsed().as_secs() < 60, "no kernels");
        std::thread::yield_now();
    }
}

fn default_stream_is_idle(devices: &Devices) {
    let some = DeviceBuffer::new(devices, DeviceIndex(0), BufferKind::Device, 1).unwrap();
    devices.default_stream(&some.location()).unwrap().wait().unwrap();
}

/// Sizes around those of pieces, eager messages and whole messages.
const COUNTS: [u64; 5] = [1, 2, 11, 12, 40];

#[test]
fn irregular_blocks_are_moved_by_one_kernel() {
    let _alone = alone();
    let devices = devices_with(PATIENTLY);
    let (layout, run) = (irregular(), Predefined::Byte.datatype().commit());
    let device = Some(BufferKind::Device);
    for push in [false, true] {
        for (from_blocks, to_blocks) in [(true, false), (false, true)] {
            for count in COUNTS {
                let ranks = Ranks::on(&devices, 2, &[between(|link| link.push = push)], &[], false);
                let len = layout.size() * count;
                let span = layout.extent() as usize * count as usize;
                let side = |blocks: bool| if blocks { (&layout, count) } else { (&run, len) };
                let (from, to) = (side(from_blocks), side(to_blocks));
                let content = pattern(span, 3);
                let packed = gathered(from.0, from.1, &content);
                let mut source = Memory::new(&devices, device, &content);
                let mut pieces = 0;
                kernels_are_there(&devices);
                for shorter in [0, 1] {
                    // A shorter receive ends within a block. Memory beyond it keeps its content.
                    let posted = if to_blocks { count - shorter.min(count - 1) } else { len - 40 * shorter };
                    let wanted = to.0.size() * posted;
                    pieces += wanted.div_ceil(100_000);
                    let mut target = Memory::new(&devices, device, &vec![0xaa; span]);
                    let errors = ranks.transfer(
                        Buffer::typed(source.address(), from.1, from.0),
                        Buffer::typed(target.address(), posted, to.0),
                        &SendMode::Standard,
                    );
                    let what = format!("{len} bytes, {from_blocks} to {to_blocks}, of {wanted}: {errors:?}");
                    assert_eq!(errors.0.is_none() && errors.1.is_ok(), wanted == len, "{what}");
                    let expected = placed(to.0, posted, &packed[..wanted as usize], span);
                    assert!(target.read(span) == expected, "{what}");
                    assert!(source.read(span) == content, "{what}");
                }
                // All were announced and none was staged. Blocks that the sender could only store in one run were
                // fetched or came in pieces.
                let counts = |name| (ranks.counter(0, name), ranks.counter(1, name));
                let direct = counts("device_direct");
                let what = format!("{len} bytes, {from_blocks} to {to_blocks}, {direct:?}");
                match (from_blocks, push) {
                    (true, _) => assert!(direct == (pieces, 0) && counts("protocol_put") == (2, 0), "{what}"),
                    (false, false) => assert!(direct == (0, pieces) && counts("protocol_get") == (0, 2), "{what}"),
                    (false, true) => {}
                }
            }
        }
    }
}

/// Sends between two layouts of several runs, in pieces of 8192 bytes. Uses sizes around multiples of that, and three
/// messages at a time in both directions, which exceed the scratch memory.
#[test]
fn irregular_blocks_reach_other_blocks_in_pieces() {
    let _alone = alone();
    let devices = devices_with(PATIENTLY);
    let byte = Predefined::Byte.datatype();
    let commit = |datatype: Result<Datatype, _>| datatype.unwrap().commit();
    // Returns a layout of `len` bytes in blocks of 5, and a shorter last one.
    let indexed = |bytes: i64, gap: i64| {
        let lens: Vec<i64> = (0..(bytes + 4) / 5).map(|i| (bytes - 5 * i).min(5)).collect();
        let places: Vec<i64> = (0..lens.len() as i64).map(|i| i * (5 + gap) + i * i % gap).collect();
        commit(Datatype::indexed(&lens, &places, &byte))
    };
    let vector = |bytes: i64| commit(Datatype::vector(bytes, 1, 3, &byte));
    let device = Some(BufferKind::Device);
    kernels_are_there(&devices);
    for len in [4081_i64, 8191, 8192, 8193, 5 * 8192, 5 * 8192 + 1, 90_000] {
        let layouts = [indexed(len, 3), indexed(len, 8), vector(len)];
        for (from, to) in [(0, 0), (0, 1), (0, 2), (2, 1)].map(|(from, to)| (&layouts[from], &layouts[to])) {
            let parameters = [("device_scratch_size", "64K"), ("device_push_limit", "0")];
            let ranks = Ranks::on(&devices, 2, &[between(|_| ())], &parameters, false);
            let (from_span, to_span) = (from.true_extent() as usize, to.true_extent() as usize);
            let mut buffers: Vec<_> = (0..6)
                .map(|i| {
                    let content = pattern(from_span, i);
                    let expected = placed(to, 1, &gathered(from, 1, &content), to_span);
                    let source = Memory::new(&devices, device, &content);
                    (source, Memory::new(&devices, device, &vec![0xaa; to_span]), expected)
                })
                .collect();
            // Scratch memory is allocated while the default stream is idle. The first message of a buffer is ordered
            // after it.
            for memory in buffers.iter_mut().flat_map(|(source, target, _)| [source, target]) {
                let at = devices.classify(memory.address(), 1);
                devices.default_stream(&at).unwrap().wait().unwrap();
            }
            let requests: Vec<_> = (0..12).map(|_| Request::new()).collect();
            for (i, (source, target, _)) in buffers.iter_mut().enumerate() {
                let (rank, peer) = (i % 2, 1 - i % 2);
                // SAFETY: buffers and requests live until all are complete.
                let _ = unsafe {
                    let posted = Buffer::typed(target.address(), 1, to);
                    ranks.engines[peer].irecv(&ranks.world[peer], rank as i32, 1, posted, &requests[2 * i]).unwrap();
                    let data = Buffer::typed(source.address(), 1, from);
                    let (on, request) = (&ranks.world[rank], &requests[2 * i + 1]);
                    ranks.engines[rank].isend(on, peer as i32, 1, data, &SendMode::Standard, request).unwrap()
                };
            }
            ranks.finish(&requests.iter().collect::<Vec<_>>());
            let what = format!("{len} bytes");
            for (request, (_, target, expected)) in requests.chunks(2).zip(&buffers) {
                assert!(request[0].error().is_none() && request[1].error().is_none(), "{what}");
                assert!(target.read(to_span) == *expected, "{what}");
            }
            let both = |name| ranks.counter(0, name) + ranks.counter(1, name);
            assert!(
                both("device_direct") >= 2 * (len as u64).div_ceil(8192),
                "{what}: {:?} {:?}",
                ranks.engines[0].counters(),
                ranks.engines[1].counters()
            );
            if len <= 2 * 8192 {
                // All fit the scratch memory, and each piece is stored once.
                let pieces = 6 * (len as u64).div_ceil(8192);
                assert_eq!((both("protocol_put"), both("protocol_fragments")), (pieces, 0), "{what}");
            }
            ranks.settle();
            assert_eq!(ranks.net.registered() + ranks.net.fragments(), 0);
        }
    }
}

/// Checks shorter receives, busy links, and kernels that sometimes cannot start.
#[test]
fn pieces_arrive_despite_busy_links_and_revoked_kernels() {
    let _alone = alone();
    let devices = devices();
    let layout = irregular();
    let device = Some(BufferKind::Device);
    kernels_are_there(&devices);
    for (revokes, busy, asynchronous) in [(0, 0, true), (3, 300, true), (7, 0, false), (1, 0, true)] {
        let link = between(|link| (link.revokes, link.busy, link.asynchronous) = (revokes, busy, asynchronous));
        for scratch in ["0", "32767", "64K", "256K"] {
            let ranks = Ranks::on(&devices, 2, &[link], &[("device_scratch_size", scratch)], false);
            let span = layout.extent() as usize * 20;
            let content = pattern(span, 9);
            let packed = gathered(&layout, 20, &content);
            let mut source = Memory::new(&devices, device, &content);
            for posted in [20, 19, 1] {
                let mut target = Memory::new(&devices, device, &vec![0xaa; span]);
                default_stream_is_idle(&devices);
                let errors = ranks.transfer(
                    Buffer::typed(source.address(), 20, &layout),
                    Buffer::typed(target.address(), posted, &layout),
                    &SendMode::Standard,
                );
                assert!(errors.0.is_none() && errors.1.is_ok() == (posted == 20), "{errors:?}");
                let wanted = (layout.size() * posted) as usize;
                assert!(target.read(span) == placed(&layout, posted, &packed[..wanted], span), "{scratch}, {posted}");
            }
            // Scratch memory of less than eight pages is not used.
            let puts = ranks.counter(0, "protocol_put");
            assert_eq!(puts == 0, ["0", "32767"].contains(&scratch), "{puts} of {scratch}");
            assert_eq!(ranks.net.registered() + ranks.net.fragments(), 0);
        }
    }
}

/// Checks that data goes through the host if a kernel cannot start, and that each byte is moved once.
#[test]
fn irregular_blocks_arrive_despite_revoked_kernels() {
    let _alone = alone();
    let devices = devices();
    let (layout, run) = (irregular(), Predefined::Byte.datatype().commit());
    let device = Some(BufferKind::Device);
    kernels_are_there(&devices);
    for revokes in [1, 2, 5] {
        for (asynchronous, busy) in [(true, 0), (false, 0), (true, 400)] {
            let link = between(|link| {
                (link.revokes, link.asynchronous, link.busy) = (revokes, asynchronous, busy);
                link.capabilities.device_rdma_limit = 10_000;
            });
            let parameters = [("device_push_limit", "0"), ("pml_pipeline_depth", "3")];
            let ranks = Ranks::on(&devices, 2, &[link], &parameters, false);
            for (from_blocks, to_blocks) in [(true, false), (false, true), (true, true)] {
                let (count, len) = (12, layout.size() * 12);
                let span = layout.extent() as usize * 12;
                let side = |blocks: bool| if blocks { (&layout, count) } else { (&run, len) };
                let (from, to) = (side(from_blocks), side(to_blocks));
                let content = pattern(span, 3);
                let mut source = Memory::new(&devices, device, &content);
                let mut target = Memory::new(&devices, device, &vec![0xaa; span]);
                let errors = ranks.transfer(
                    Buffer::typed(source.address(), from.1, from.0),
                    Buffer::typed(target.address(), to.1, to.0),
                    &SendMode::Standard,
                );
                assert!(matches!(errors, (None, Ok(_))), "{errors:?}");
                let expected = placed(to.0, to.1, &gathered(from.0, from.1, &content), span);
                assert!(target.read(span) == expected, "{revokes}, {from_blocks} to {to_blocks}");
            }
            let both = |name| ranks.counter(0, name) + ranks.counter(1, name);
            assert!(both("protocol_get") > 0 && both("protocol_put") > 0 && both("protocol_fragments") > 0);
            assert_eq!(ranks.net.registered() + ranks.net.fragments(), 0);
        }
    }
}

/// Describes launches that fail from this one on. All of them are counted, because no graph can be made.
fn failing_from(nth: usize) -> String {
    format!("cuGraphCreate:801,cuLaunchKernel:1:{nth}+")
}

/// Checks that both requests end wherever the device fails between pieces, and that no wrong data is reported as valid.
#[test]
fn a_device_failure_between_pieces_ends_the_request_on_both_sides() {
    let _alone = alone();
    /// Before this number of launches, pieces are certainly under way. (The number of event queries varies.)
    const LATE: usize = 60;
    const TEST: &str = "a_device_failure_between_pieces_ends_the_request_on_both_sides";
    // Launches fail, or launches and the copies that replace them, or the queries for the end of either.
    let faults: Vec<String> = [6, 9, 12, 17, LATE]
        .iter()
        .flat_map(|&nth| {
            let launch = failing_from(nth);
            [launch.clone(), format!("{launch},cuMemcpyAsync:719:{}+", nth - 3), format!("cuEventQuery:719:{nth}+")]
        })
        .collect();
    with_faults(TEST, &faults.iter().map(String::as_str).collect::<Vec<_>>(), || {
        let devices = devices();
        let layout = irregular();
        let span = layout.extent() as usize * 20;
        let content = pattern(span, 9);
        let expected = placed(&layout, 20, &gathered(&layout, 20, &content), span);
        let mut pieces = 0;
        kernels_are_there(&devices);
        for scratch in ["64K", "128K", "1M"] {
            let ranks = Ranks::on(&devices, 2, &[between(|_| ())], &[("device_scratch_size", scratch)], false);
            for _ in 0..3 {
                let filled = |bytes: &[u8]| {
                    let mut buffer = DeviceBuffer::new(&devices, DeviceIndex(0), BufferKind::Device, span).ok()?;
                    buffer.copy_from_host(0, bytes).ok()?;
                    devices.default_stream(&buffer.location()).ok()?.wait().ok()?;
                    Some(Memory::Device(buffer))
                };
                let (Some(mut source), Some(mut target)) = (filled(&content), filled(&vec![0xaa; span])) else {
                    continue;
                };
                let (send, receive) = ranks.transfer(
                    Buffer::typed(source.address(), 20, &layout),
                    Buffer::typed(target.address(), 20, &layout),
                    &SendMode::Standard,
                );
                let named = |error: &Error| matches!(error, Error::Device { .. } | Error::PeerAborted { .. });
                assert!(send.iter().chain(receive.as_ref().err()).all(named), "{send:?} {receive:?}");
                // The send succeeds once all data was packed. The receiver's device may still fail.
                assert!(send.is_none() || receive.is_err(), "{send:?} {receive:?}");
                if receive.is_ok() {
                    let mut found = vec![0; span];
                    let Memory::Device(target) = &target else { continue };
                    assert!(target.copy_to_host(0, &mut found).is_err() || found == expected);
                }
            }
            pieces += ranks.counter(0, "protocol_put");
            for len in [8, 4000, 400_000] {
                ranks.carry(len, 2);
            }
        }
        let late = std::env::var("SIM_CUDA_FAIL").is_ok_and(|fault| fault == failing_from(LATE));
        assert!(pieces != 0 || !late, "the fault occurred too early");
    });
}
