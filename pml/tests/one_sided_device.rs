//! One-sided operations between host and device memory in every pairing, directly and by the owner.
#![cfg(feature = "cuda")]

mod common;

use cableway_btl::Flags;
use cableway_common_cuda::BufferKind;
use cableway_pml::{Buffer, Error, Signal, SignalUpdate};

use common::memory::{Memory, with_faults};
use common::sides::Sides;
use common::{Link, pattern};
use test_nodes::{devices, isolated};

const KINDS: [Option<BufferKind>; 4] =
    [None, Some(BufferKind::Device), Some(BufferKind::Managed), Some(BufferKind::Pinned)];

const SIZES: [usize; 6] = [0, 8, 8116, 8117, 65_536, 1 << 20];

const ALL: Flags = Flags::GET.union(Flags::PUT).union(Flags::DEVICE_GET).union(Flags::DEVICE_PUT);

#[test]
fn every_byte_moves_between_every_pair_of_memories() {
    let devices = devices();
    let link = Link::new("net", ALL).with(|link| link.asynchronous = true);
    let pushing = link.with(|link| link.push = true);
    let only_devices = link.with(|link| link.capabilities.flags |= Flags::DEVICE_TO_DEVICE);
    for (link, protocols) in [(link, "auto"), (pushing, "auto"), (only_devices, "auto"), (pushing, "copy")] {
        let sides = Sides::on(&devices, 2, &[link], &[("device_protocols", protocols)]);
        for (here, there) in KINDS.iter().flat_map(|here| KINDS.iter().map(move |there| (*here, *there))) {
            let before = sides.direct(0);
            let mut target = Memory::new(&devices, there, &vec![0xee; (1 << 20) + 64]);
            let mut word = Memory::new(&devices, there, &[0; 8]);
            let window = sides.register_at(1, target.address(), (1 << 20) + 64);
            let signals = sides.register_at(1, word.address(), 8);
            let mut given = 0;
            for (round, len) in SIZES.into_iter().cycle().take(3 * SIZES.len()).enumerate() {
                let what = format!("{protocols}, {here:?} and {there:?}, {len} bytes");
                let data = pattern(len, round as u8);
                let mut source = Memory::new(&devices, here, &data);
                // The owner exposes managed memory once its default stream has done the work before the first question. A
                // copy to the host waits for the copy that has filled the source.
                source.read(len.min(1));
                let add = Signal { at: signals.key().at(0), update: SignalUpdate::Add(1) };
                // Puts and gets take turns with the signals.
                let signal = Some(add).filter(|_| round % 2 == 0);
                given += u64::from(signal.is_some());
                let from = Buffer::bytes(source.address(), len as u64);
                sides.put_from(0, from, window.key().at(16), signal).unwrap();
                assert_eq!(signals.load(0).unwrap(), given, "{what}");
                let landed = target.read(len + 32);
                assert!(landed[16..len + 16] == data, "{what}");
                assert!(landed[..16] == [0xee; 16], "{what}");
                let mut room = Memory::new(&devices, here, &vec![0x11; len]);
                room.read(len.min(1));
                let into = Buffer::bytes(room.address(), len as u64);
                let signal = signal.is_none().then_some(add);
                given += u64::from(signal.is_some());
                sides.get_into(0, into, window.key().at(16), signal).unwrap();
                assert_eq!(signals.load(0).unwrap(), given, "{what}");
                assert!(room.read(len) == data, "{what}");
            }
            let on_device = |kind| matches!(kind, Some(BufferKind::Device | BufferKind::Managed));
            let direct = match (on_device(here), on_device(there)) {
                (false, false) => true,
                (true, true) => protocols == "auto",
                _ => protocols == "auto" && !link.capabilities.flags.contains(Flags::DEVICE_TO_DEVICE),
            };
            assert_eq!(sides.direct(0) > before, direct, "{protocols}, {here:?} and {there:?}");
            drop((window, signals));
        }
    }
}

/// Checks that memory becomes reachable although its owner's default stream is never idle when it is asked for.
#[test]
fn memory_behind_a_stream_that_is_never_idle_is_exposed() {
    const LEN: usize = 65_536;
    const TEST: &str = "memory_behind_a_stream_that_is_never_idle_is_exposed";
    isolated(TEST, &[("SIM_CUDA_DELAY_US", "2000")], || {
        let devices = devices();
        let link = Link::new("net", ALL).with(|link| (link.asynchronous, link.push) = (true, true));
        let sides = Sides::on(&devices, 2, &[link], &[]);
        let device = Some(BufferKind::Device);
        let mut source = Memory::new(&devices, device, &pattern(LEN, 1));
        // The driver does not complete synchronous calls on such memory, so the stream must be asked.
        let mut target = Memory::new(&devices, Some(BufferKind::Managed), &[0; LEN]);
        let window = sides.register_at(1, target.address(), LEN);
        let mut rounds = 0;
        while sides.direct(0) == 0 {
            rounds += 1;
            assert!(rounds < 200, "it is never exposed");
            let busy = Memory::new(&devices, device, &[0; LEN]);
            let from = Buffer::bytes(source.address(), LEN as u64);
            sides.put_from(0, from, window.key().at(0), None).unwrap();
            drop(busy);
        }
        assert!(target.read(LEN) == pattern(LEN, 1));
    });
}

#[test]
fn a_get_that_a_device_fails_gives_no_signal() {
    const TEST: &str = "a_get_that_a_device_fails_gives_no_signal";
    // Each call that starts or polls a copy fails in turn, after the first few succeeded.
    let faults = ["cuMemcpyAsync:719:3+", "cuMemcpyAsync:719:8+", "cuEventQuery:719:6+", "cuEventRecord:719:9+"];
    with_faults(TEST, &faults, || {
        let (devices, mut failed) = (devices(), 0);
        for link in [Link::new("net", Flags::empty()), Link::new("net", Flags::GET)] {
            let sides = Sides::on(&devices, 2, &[link], &[("device_chunk_size", "32K")]);
            for (here, there) in [(true, false), (false, true), (true, true)] {
                let new = |device: bool| {
                    let kind = device.then_some(BufferKind::Device);
                    Memory::try_new(&devices, kind, &pattern(400_000, 1))
                };
                let (Some(mut room), Some(mut source)) = (new(here), new(there)) else { continue };
                let mut word = [0_u64];
                let window = sides.register_at(1, source.address(), 400_000);
                let signals = sides.register_at(1, word.as_mut_ptr().cast(), 8);
                let mut given = 0;
                for len in [100, 400_000, 8192, 400_000] {
                    let signal = Signal { at: signals.key().at(0), update: SignalUpdate::Add(1) };
                    let into = Buffer::bytes(room.address(), len);
                    let got = sides.get_into(0, into, window.key().at(0), Some(signal));
                    let named = |error: &Error| {
                        matches!(error, Error::Device { .. } | Error::PeerAborted { .. } | Error::Refused { .. })
                    };
                    assert!(got.as_ref().err().is_none_or(named), "{here} {there} {len}: {got:?}");
                    given += u64::from(got.is_ok());
                    failed += u32::from(got.is_err());
                    assert_eq!(signals.load(0).unwrap(), given, "{here} {there} {len}: {got:?}");
                }
            }
        }
        assert!(failed > 0);
    });
}
