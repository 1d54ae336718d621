//! Device memory on either side, over links with and without device abilities. Runs on the simulated driver (or the one
//! in `CABLEWAY_CUDA_LIBDIR`), whose memory faults when a CPU accesses it.
#![cfg(feature = "cuda")]

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use cableway_btl::Flags;
use cableway_common_cuda::BufferKind;
use cableway_datatype::{Datatype, Layout, Predefined};
use cableway_pml::{Buffer, Error, Outcome, Request, SendMode};

use common::memory::Memory;
use common::{ANY_, Link, Ranks, pattern};
use test_nodes::{devices, isolated};

const KINDS: [Option<BufferKind>; 6] = [
    None,
    Some(BufferKind::Device),
    Some(BufferKind::Pool),
    Some(BufferKind::Vmm),
    Some(BufferKind::Managed),
    Some(BufferKind::Pinned),
];

const HOST_RDMA: Flags = Flags::GET.union(Flags::PUT);
const ALL: Flags = HOST_RDMA.union(Flags::DEVICE_GET).union(Flags::DEVICE_PUT);

/// Runs one test at a time: links check whether the process's only default stream is idle.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn links() -> Vec<(&'static str, Link)> {
    let link = |flags| Link::new("net", flags);
    let small = |flags| link(flags).with(|link| link.capabilities.device_min_rdma_size = 1);
    let direct = |flags| {
        small(flags | Flags::DEVICE_DIRECT).with(|link| {
            link.asynchronous = true;
            link.capabilities.device_max_rdma_size = 20_000;
        })
    };
    vec![
        ("send only", link(Flags::empty())),
        ("host get and put", link(HOST_RDMA).with(|link| link.retains = true)),
        ("in place", link(Flags::SEND_IN_PLACE | Flags::DEVICE_FRAGMENTS)),
        ("busy", link(HOST_RDMA).with(|link| (link.busy, link.retains) = (600, true))),
        ("device get", link(HOST_RDMA | Flags::DEVICE_GET).with(|link| link.asynchronous = true)),
        ("device put", link(Flags::PUT | Flags::DEVICE_PUT)),
        ("device, small messages too", small(ALL).with(|link| link.asynchronous = true)),
        ("device, the sender copies", small(ALL).with(|link| (link.asynchronous, link.push) = (true, true))),
        ("device, small messages too, refused", small(ALL).with(|link| (link.refuses, link.push) = (true, true))),
        ("GPUDirect", direct(ALL)),
        ("GPUDirect, put", direct(Flags::PUT | Flags::DEVICE_PUT)),
        ("GPUDirect, refused", direct(ALL).with(|link| link.refuses = true)),
        ("device get, refused", link(ALL).with(|link| link.refuses = true)),
    ]
}

#[test]
fn every_pairing_over_every_kind_of_link() {
    let _alone = alone();
    let devices = devices();
    let large = pattern(300_001, 1);
    for (name, link) in links() {
        for protocols in ["auto", "copy"] {
            let parameters = [("device_protocols", protocols), ("device_chunk_size", "64K")];
            let ranks = Ranks::on(&devices, 2, &[link], &parameters, false);
            for (from, to) in KINDS.iter().flat_map(|&from| KINDS.map(|to| (from, to))) {
                for len in [0, 1, 100, 4080, 4081, 20_000, 300_001] {
                    let mut source = Memory::new(&devices, from, &large[..len]);
                    let mut target = Memory::new(&devices, to, &vec![0xaa; len]);
                    let from = Buffer::bytes(source.address(), len as u64);
                    let to = Buffer::bytes(target.address(), len as u64);
                    let mode = if len % 2 == 0 { SendMode::Standard } else { SendMode::Synchronous };
                    let errors = ranks.transfer(from, to, &mode);
                    assert!(matches!(errors, (None, Ok(_))), "{name}, {protocols}: {errors:?}");
                    assert!(target.read(len) == large[..len], "{name}, {protocols}, {from:?} to {to:?}");
                }
            }
            assert_eq!(ranks.net.registered() + ranks.net.fragments(), 0);
        }
    }
}

/// Sends all of the source, and checks that the target has it.
fn carry(ranks: &Ranks, source: &mut Memory, target: &mut Memory, content: &[u8]) {
    let len = content.len();
    let (from, to) = (Buffer::bytes(source.address(), len as u64), Buffer::bytes(target.address(), len as u64));
    ranks.transfer(from, to, &SendMode::Standard).1.unwrap();
    assert!(target.read(len) == content);
}

/// Checks which side copies, by the counters of both.
#[test]
fn small_device_messages_are_one_copy_and_the_cheaper_side_makes_it() {
    let _alone = alone();
    let devices = devices();
    for (push, len) in [(false, 8), (false, 50_000), (true, 8), (true, 50_000)] {
        let link = Link::new("net", ALL | Flags::DEVICE_TO_DEVICE).with(|link| {
            link.capabilities.device_min_rdma_size = 1;
            (link.asynchronous, link.push) = (true, push);
        });
        let ranks = Ranks::on(&devices, 2, &[link], &[], false);
        let content = pattern(len, 4);
        let mut source = Memory::new(&devices, Some(BufferKind::Device), &content);
        for _ in 0..5 {
            let mut target = Memory::new(&devices, Some(BufferKind::Device), &vec![0; len]);
            carry(&ranks, &mut source, &mut target, &content);
        }
        let counts = |name| (ranks.counter(0, name), ranks.counter(1, name));
        assert_eq!(counts("device_direct"), if push { (5, 0) } else { (0, 5) });
        assert_eq!(counts("protocol_put"), if push { (5, 0) } else { (0, 0) });
        assert_eq!((counts("sends_eager"), counts("device_copies")), ((0, 0), (0, 0)));
    }
}

/// A link that copies between devices alone carries fragments if one buffer is in host memory. No GET, PUT or offer may
/// be tried first.
#[test]
fn one_buffer_in_host_memory_takes_fragments_at_once() {
    let _alone = alone();
    let devices = devices();
    let flags = ALL | Flags::OFFER | Flags::DEVICE_TO_DEVICE;
    for (from, to) in [(Some(BufferKind::Device), None), (None, Some(BufferKind::Device))] {
        for len in [20_000, 300_001, (1 << 20) + 1] {
            let ranks = Ranks::on(&devices, 2, &[Link::new("net", flags)], &[], false);
            let content = pattern(len, 4);
            let mut source = Memory::new(&devices, from, &content);
            let mut target = Memory::new(&devices, to, &vec![0; len]);
            carry(&ranks, &mut source, &mut target, &content);
            let both = |name| ranks.counter(0, name) + ranks.counter(1, name);
            assert_eq!((both("protocol_get"), both("protocol_put")), (0, 0), "{len} bytes from {from:?} to {to:?}");
            assert_eq!((both("protocol_fragments"), ranks.net.offers_made()), (1, 0));
        }
    }
}

/// Checks that the PUT requests and FINs of a window leave together, whichever side copies, and that all data arrives.
#[test]
fn a_window_of_device_messages_batches_its_control_messages() {
    windows_batch_their_control_messages();
}

/// Checks the same of messages that wait until the default stream is idle.
#[test]
fn a_window_behind_a_busy_default_stream_batches_its_control_messages() {
    const TEST: &str = "a_window_behind_a_busy_default_stream_batches_its_control_messages";
    isolated(TEST, &[("SIM_CUDA_DELAY_US", "1000")], windows_batch_their_control_messages);
}

fn windows_batch_their_control_messages() {
    const COUNT: usize = 64;
    const LEN: usize = 100;
    let _alone = alone();
    let devices = devices();
    for (push, busy) in [(false, 0), (true, 0), (false, 600), (true, 600)] {
        let link = Link::new("net", ALL | Flags::DEVICE_TO_DEVICE).with(|link| {
            link.capabilities.device_min_rdma_size = 1;
            (link.asynchronous, link.push, link.busy) = (true, push, busy);
        });
        let ranks = Ranks::on(&devices, 2, &[link], &[], false);
        let content = pattern(COUNT * LEN, 4);
        let mut source = Memory::new(&devices, Some(BufferKind::Device), &content);
        let mut target = Memory::new(&devices, Some(BufferKind::Device), &vec![0; COUNT * LEN]);
        let requests: Vec<Request> = (0..2 * COUNT).map(|_| Request::new()).collect();
        let (sends, receives) = requests.split_at(COUNT);
        let piece =
            |memory: &mut Memory, index: usize| Buffer::bytes(memory.address().wrapping_add(index * LEN), LEN as u64);
        // SAFETY: buffers and requests live until all is done.
        unsafe {
            for (index, request) in receives.iter().enumerate() {
                ranks.engines[1].irecv(&ranks.world[1], 0, 7, piece(&mut target, index), request).unwrap();
            }
            for (index, request) in sends.iter().enumerate() {
                let (engine, world) = (&ranks.engines[0], &ranks.world[0]);
                let outcome = engine.isend(world, 1, 7, piece(&mut source, index), &SendMode::Standard, request);
                assert_eq!(outcome.unwrap(), Outcome::Started);
            }
        }
        ranks.finish(&requests.iter().collect::<Vec<_>>());
        assert!(requests.iter().all(|request| request.result().is_ok()));
        assert!(target.read(COUNT * LEN) == content);
        let copied = (ranks.counter(0, "device_direct"), ranks.counter(1, "device_direct"));
        assert_eq!(copied, if push { (COUNT as u64, 0) } else { (0, COUNT as u64) });
        assert_eq!(ranks.counter(0, "sends_rendezvous"), COUNT as u64);
        let besides = ranks.net.carried(0) - COUNT;
        // A busy link changes which control messages leave together.
        assert!(busy != 0 || besides <= COUNT / 4, "{besides} control messages besides announcements, push: {push}");
    }
}

/// Checks that messages beyond the limit use internal buffers, and so does memory that cannot be registered. The sender
/// must not make the receiver expose its memory in vain.
#[test]
fn gpudirect_accesses_device_memory_up_to_its_limit() {
    let _alone = alone();
    let devices = devices();
    const LIMIT: usize = 20_000;
    let device = Some(BufferKind::Device);
    for (from, to) in [(device, device), (device, None), (None, device), (Some(BufferKind::Managed), device)] {
        for len in [1, 8192, LIMIT - 1, LIMIT, LIMIT + 1, 300_001] {
            let link = Link::new("net", ALL | Flags::DEVICE_DIRECT).with(|link| {
                link.capabilities.device_min_rdma_size = 1;
                link.capabilities.device_max_rdma_size = LIMIT;
                link.asynchronous = true;
            });
            let ranks = Ranks::on(&devices, 2, &[link], &[], false);
            let content = pattern(len, 4);
            let mut source = Memory::new(&devices, from, &content);
            let mut target = Memory::new(&devices, to, &vec![0; len]);
            carry(&ranks, &mut source, &mut target, &content);
            let by_network = match from {
                Some(BufferKind::Device) => len <= LIMIT,
                None => (8192..=LIMIT).contains(&len),
                _ => false,
            };
            let what = format!("{len} bytes from {from:?} to {to:?}");
            assert_eq!(ranks.counter(1, "protocol_get"), by_network.into(), "{what}");
            assert_eq!(ranks.counter(0, "protocol_put"), 0, "{what}");
        }
    }
}

/// Checks that the sender learns that the receiver's buffers are in host memory.
#[test]
fn small_device_messages_to_host_memory_become_eager() {
    let _alone = alone();
    let devices = devices();
    let link = Link::new("net", ALL).with(|link| {
        link.capabilities.device_min_rdma_size = 1;
        link.refuses = true;
    });
    let ranks = Ranks::on(&devices, 2, &[link], &[], false);
    let content = pattern(100, 4);
    let mut source = Memory::new(&devices, Some(BufferKind::Device), &content);
    for _ in 0..100 {
        let mut target = Memory::new(&devices, None, &[0; 100]);
        ranks
            .transfer(Buffer::bytes(source.address(), 100), Buffer::bytes(target.address(), 100), &SendMode::Standard)
            .1
            .unwrap();
        assert!(target.read(100) == content);
    }
    let eager = ranks.counter(0, "sends_eager");
    assert!((80..100).contains(&eager), "{eager} of 100");
}

#[test]
fn copy_only_takes_neither_get_nor_put() {
    let _alone = alone();
    let devices = devices();
    let content = pattern(200_000, 1);
    for (from, to) in [(true, true), (true, false), (false, true)] {
        let ranks = Ranks::on(&devices, 2, &[Link::new("net", ALL)], &[("device_protocols", "copy")], false);
        let kind = |device: bool| device.then_some(BufferKind::Device);
        let mut source = Memory::new(&devices, kind(from), &content);
        let mut target = Memory::new(&devices, kind(to), &content);
        let len = content.len() as u64;
        ranks
            .transfer(Buffer::bytes(source.address(), len), Buffer::bytes(target.address(), len), &SendMode::Standard)
            .1
            .unwrap();
        let counts = |name| ranks.counter(0, name) + ranks.counter(1, name);
        assert_eq!((counts("protocol_get"), counts("protocol_put"), counts("protocol_fragments")), (0, 0, 1));
    }
}

#[test]
fn unexpected_messages_reach_the_device() {
    let _alone = alone();
    let devices = devices();
    for len in [100, 4000, 50_000] {
        let ranks = Ranks::on(&devices, 2, &[Link::new("net", HOST_RDMA)], &[], false);
        let content = pattern(len, 5);
        let send = ranks.isend(0, 1, 1, &content, &SendMode::Standard);
        ranks.settle();
        let mut target = Memory::new(&devices, Some(BufferKind::Device), &vec![0; len]);
        let receive = Request::new();
        let to = Buffer::bytes(target.address(), len as u64);
        // SAFETY: buffer and request live until complete.
        unsafe { ranks.engines[1].irecv(&ranks.world[1], 0, 1, to, &receive) }.unwrap();
        ranks.finish(&[&receive]);
        send.finish(&ranks);
        assert!(target.read(len) == content);
    }
}

#[test]
fn host_messages_do_not_overtake_device_messages() {
    let _alone = alone();
    let devices = devices();
    let ranks = Ranks::on(&devices, 2, &[Link::new("net", Flags::empty())], &[], false);
    let mut sources: Vec<Memory> =
        (0..20u8).map(|i| Memory::new(&devices, (i % 2 == 0).then_some(BufferKind::Device), &[i; 64])).collect();
    let requests: Vec<Request> = sources.iter().map(|_| Request::new()).collect();
    for (source, request) in sources.iter_mut().zip(&requests) {
        // SAFETY: buffers and requests live until the end.
        let _ = unsafe {
            let from = Buffer::bytes(source.address(), 64);
            ranks.engines[0].isend(&ranks.world[0], 1, 1, from, &SendMode::Standard, request).unwrap()
        };
    }
    for expected in 0..20 {
        let mut received = [0xff; 64];
        ranks.recv(1, ANY_, ANY_, &mut received).unwrap();
        assert_eq!(received, [expected; 64]);
    }
    assert_ne!(ranks.counter(1, "out_of_order"), 0, "some overtook on the wire");
    ranks.settle();
}

fn strided() -> Layout {
    Datatype::vector(300, 16, 64, &Predefined::Int.datatype()).unwrap().commit()
}

#[test]
fn vectors_of_device_memory() {
    let _alone = alone();
    let devices = devices();
    let layout = strided();
    let span = 300 * 256;
    let content = pattern(span, 3);
    let packed: Vec<u8> = content.chunks(256).flat_map(|row| &row[..64]).copied().collect();
    for (name, link) in links() {
        let ranks = Ranks::on(&devices, 2, &[link], &[("device_chunk_size", "4K")], false);
        for (from, to) in [(true, true), (true, false), (false, true)] {
            let kind = |device: bool| device.then_some(BufferKind::Device);
            let mut source = Memory::new(&devices, kind(from), &content);
            let mut target = Memory::new(&devices, kind(to), &vec![0; span]);
            let from = Buffer::typed(source.address(), 1, &layout);
            let errors = ranks.transfer(from, Buffer::typed(target.address(), 1, &layout), &SendMode::Standard);
            assert!(matches!(errors, (None, Ok(_))), "{name}: {errors:?}");
            let got: Vec<u8> = target.read(span).chunks(256).flat_map(|row| &row[..64]).copied().collect();
            assert!(got == packed, "{name}");
            let whole = Buffer::bytes(target.address(), packed.len() as u64);
            let errors = ranks.transfer(from, whole, &SendMode::Standard);
            assert!(matches!(errors, (None, Ok(_))), "{name}: {errors:?}");
            assert!(target.read(packed.len()) == packed, "{name}");
        }
    }
}

#[test]
fn truncation_writes_nothing_beyond_the_buffer() {
    let _alone = alone();
    let devices = devices();
    let content = pattern(100_000, 3);
    for (name, link) in links() {
        let ranks = Ranks::on(&devices, 2, &[link], &[], false);
        for len in [1000, 100_000] {
            let mut source = Memory::new(&devices, Some(BufferKind::Device), &content);
            let mut target = Memory::new(&devices, Some(BufferKind::Device), &vec![0xaa; len]);
            let to = Buffer::bytes(target.address(), len as u64 / 2);
            let errors = ranks.transfer(Buffer::bytes(source.address(), len as u64), to, &SendMode::Standard);
            assert!(matches!(errors, (None, Err(Error::Truncated { .. }))), "{name}: {errors:?}");
            let got = target.read(len);
            assert!(got[..len / 2] == content[..len / 2] && got[len / 2..].iter().all(|&byte| byte == 0xaa));
        }
    }
}

#[test]
fn buffered_sends_copy_device_memory() {
    let _alone = alone();
    let devices = devices();
    let ranks = Ranks::on(&devices, 2, &[Link::new("net", Flags::GET)], &[], false);
    let mut memory = vec![0u8; 100_000];
    // SAFETY: the memory outlives the test's use of the buffer.
    let attached = unsafe { cableway_pml::AttachedBuffer::new(memory.as_mut_ptr(), memory.len()) };
    let mode = SendMode::Buffered(std::sync::Arc::new(attached));
    for len in [10, 50_000] {
        let content = pattern(len, 3);
        let mut source = Memory::new(&devices, Some(BufferKind::Device), &content);
        let from = Buffer::bytes(source.address(), len as u64);
        // SAFETY: the buffer is valid during the call, and the request is not used.
        let outcome = unsafe { ranks.engines[0].isend(&ranks.world[0], 1, 1, from, &mode, &Request::new()) }.unwrap();
        assert_eq!(outcome, Outcome::Complete);
        drop(source);
        let mut received = vec![0; len];
        ranks.recv(1, 0, 1, &mut received).unwrap();
        assert!(received == content);
    }
}
