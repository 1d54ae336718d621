//! Device memory in blocks that are not regular, over links whose kernels pack. Runs on the simulated driver (or the one in
//! `CABLEWAY_CUDA_LIBDIR`), whose memory faults when a CPU touches it.
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

/// One test at a time: whether kernels find room depends on what else the device does.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Blocks of 1 to 83 bytes that no kernel computes, 7940 in each of two elements, and gaps between them.
fn irregular() -> Layout {
    let lens: Vec<i64> = (0..200).map(|i| i * 37 % 83 + 1).collect();
    let places: Vec<i64> = (0..200).map(|i| i * 90 + i % 6).collect();
    let indexed = Datatype::indexed(&lens, &places, &Predefined::Byte.datatype()).unwrap();
    Datatype::resized(&indexed, 0, 200 * 90 + 64).unwrap().commit()
}

/// What a message leaves in a buffer that was filled with 0xaa.
fn placed(layout: &Layout, count: u64, packed: &[u8], span: usize) -> Vec<u8> {
    let mut bytes = vec![0xaa; span];
    let places = layout.blocks(count).flat_map(|block| block.offset..block.offset + block.len as i64);
    for (place, byte) in places.zip(packed) {
        bytes[place as usize] = *byte;
    }
    bytes
}

/// The packed bytes of a buffer's content.
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

/// Links by which kernels copy, as over shared memory.
fn between(change: impl FnOnce(&mut Link)) -> Link {
    Link::new("net", ALL).with(|link| {
        link.capabilities.device_min_rdma_size = 1;
        link.asynchronous = true;
        change(link);
    })
}

/// However long a machine that has other work takes to begin.
const PATIENTLY: &[&str] = &["device_kernel_patience=20s", "device_costs=default"];

/// Kernels are loaded when they are first asked for, and take a while.
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

/// One element more or less than what pieces, eager messages and whole messages hold.
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
                    // A receive of less, by a block of one element in part: what is beyond stays as it was.
                    let room = if to_blocks { count - shorter.min(count - 1) } else { len - 40 * shorter };
                    let wanted = to.0.size() * room;
                    pieces += wanted.div_ceil(100_000);
                    let mut target = Memory::new(&devices, device, &vec![0xaa; span]);
                    let errors = ranks.transfer(
                        Buffer::typed(source.address(), from.1, from.0),
                        Buffer::typed(target.address(), room, to.0),
                        &SendMode::Standard,
                    );
                    let what = format!("{len} bytes, {from_blocks} to {to_blocks}, of {wanted}: {errors:?}");
                    assert_eq!(errors.0.is_none() && errors.1.is_ok(), wanted == len, "{what}");
                    let expected = placed(to.0, room, &packed[..wanted as usize], span);
                    assert!(target.read(span) == expected, "{what}");
                    assert!(source.read(span) == content, "{what}");
                }
                // All were announced, and none staged; what the sender would have stored in a run came otherwise.
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

/// Between two layouts neither of which is one run, in pieces of 8192 bytes: sizes around theirs, three messages at a time
/// in both directions, more than there is room for.
#[test]
fn irregular_blocks_to_other_blocks_come_in_pieces() {
    let _alone = alone();
    let devices = devices_with(PATIENTLY);
    let byte = Predefined::Byte.datatype();
    let commit = |datatype: Result<Datatype, _>| datatype.unwrap().commit();
    // Of as many bytes as wanted, in blocks of 5 and one that is not as long.
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
            // Scratch memory is allocated while the default stream is idle.
            default_stream_is_idle(&devices);
            let requests: Vec<_> = (0..12).map(|_| Request::new()).collect();
            for (i, (source, target, _)) in buffers.iter_mut().enumerate() {
                let (rank, peer) = (i % 2, 1 - i % 2);
                // SAFETY: buffers and requests live until all are complete.
                let _ = unsafe {
                    let room = Buffer::typed(target.address(), 1, to);
                    ranks.engines[peer].irecv(&ranks.world[peer], rank as i32, 1, room, &requests[2 * i]).unwrap();
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
                // There is room for all of them, and each piece is put once.
                let pieces = 6 * (len as u64).div_ceil(8192);
                assert_eq!((both("protocol_put"), both("protocol_fragments")), (pieces, 0), "{what}");
            }
            ranks.settle();
            assert_eq!(ranks.net.registered() + ranks.net.fragments(), 0);
        }
    }
}

/// A shorter receive, a link that is busy, and kernels that find no room now and then.
#[test]
fn pieces_come_all_the_same_where_something_is_in_their_way() {
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
            for room in [20, 19, 1] {
                let mut target = Memory::new(&devices, device, &vec![0xaa; span]);
                default_stream_is_idle(&devices);
                let errors = ranks.transfer(
                    Buffer::typed(source.address(), 20, &layout),
                    Buffer::typed(target.address(), room, &layout),
                    &SendMode::Standard,
                );
                assert!(errors.0.is_none() && errors.1.is_ok() == (room == 20), "{errors:?}");
                let wanted = (layout.size() * room) as usize;
                assert!(target.read(span) == placed(&layout, room, &packed[..wanted], span), "{scratch}, {room}");
            }
            // Less than a page in eighths is none.
            let puts = ranks.counter(0, "protocol_put");
            assert_eq!(puts == 0, ["0", "32767"].contains(&scratch), "{puts} of {scratch}");
            assert_eq!(ranks.net.registered() + ranks.net.fragments(), 0);
        }
    }
}

/// Where a kernel finds no room, what it was to move comes through the host, and nothing twice or never.
#[test]
fn irregular_blocks_come_all_the_same_where_kernels_are_revoked() {
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

/// Wherever the device fails while pieces are on their way, neither side waits for the other for ever, and nothing that
/// arrives is wrong.
#[test]
fn a_device_that_fails_between_pieces_ends_the_request_on_both_sides() {
    let _alone = alone();
    /// Before that many launches, pieces are on their way for certain. (How often events are asked about is chance.)
    const LATE: usize = 60;
    const TEST: &str = "a_device_that_fails_between_pieces_ends_the_request_on_both_sides";
    // Kernels first, then the copy engines that do their work; what asks for the end of either.
    let faults: Vec<String> = [6, 9, 12, 17, LATE]
        .iter()
        .flat_map(|&nth| {
            let launch = format!("cuLaunchKernel:1:{nth}+");
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
                let named = |error: &Error| matches!(error, Error::Device { .. } | Error::PeerGaveUp { .. });
                assert!(send.iter().chain(receive.as_ref().err()).all(named), "{send:?} {receive:?}");
                // What was packed whole has been sent, however the receiver's device then fares.
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
        let late = std::env::var("SIM_CUDA_FAIL").is_ok_and(|fault| fault == format!("cuLaunchKernel:1:{LATE}+"));
        assert!(pieces != 0 || !late, "the fault was met too early");
    });
}
