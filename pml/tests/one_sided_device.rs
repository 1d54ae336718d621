//! One-sided operations between host and device memory in every pairing, directly and by the owner.
#![cfg(feature = "cuda")]

mod common;

use cableway_btl::Flags;
use cableway_common_cuda::BufferKind;
use cableway_pml::{Buffer, Signal, SignalUpdate};

use common::memory::Memory;
use common::sides::Sides;
use common::{Link, pattern};
use test_nodes::devices;

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
                let signal = Signal { at: signals.key().at(0), update: SignalUpdate::Add(1) };
                let signal = Some(signal).filter(|_| round % 2 == 0);
                given += u64::from(signal.is_some());
                let from = Buffer::bytes(source.address(), len as u64);
                sides.put_from(0, from, window.key().at(16), signal).unwrap();
                assert_eq!(signals.load(0).unwrap(), given, "{what}");
                let landed = target.read(len + 32);
                assert!(landed[16..len + 16] == data, "{what}");
                assert!(landed[..16] == [0xee; 16], "{what}");
                let mut room = Memory::new(&devices, here, &vec![0x11; len]);
                let into = Buffer::bytes(room.address(), len as u64);
                sides.get_into(0, into, window.key().at(16)).unwrap();
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
