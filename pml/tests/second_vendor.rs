//! The engine over devices of a second vendor. Only `common-cuda` knows the vendor of the memory.
#![cfg(any(feature = "cuda", feature = "rocm"))]

mod common;

use cableway_btl::Flags;
use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices, MemoryClass};
use cableway_datatype::{Datatype, Predefined};
use cableway_pml::{Buffer, SendMode};

use common::memory::Memory;
use common::{Link, Ranks, pattern};

const KINDS: [Option<BufferKind>; 3] = [None, Some(BufferKind::Device), Some(BufferKind::Pinned)];

#[test]
fn every_pairing_and_size() {
    let devices = Devices::double();
    let content = pattern(300_001, 1);
    let rdma = Link::new("net", Flags::GET | Flags::PUT).with(|link| link.retains = true);
    for link in [Link::new("net", Flags::empty()), rdma] {
        let ranks = Ranks::on(&devices, 2, &[link], &[("device_chunk_size", "64K")], false);
        for (from, to) in KINDS.iter().flat_map(|&from| KINDS.map(|to| (from, to))) {
            for len in [1, 100, 4081, 300_001] {
                let mut source = Memory::new(&devices, from, &content[..len]);
                let mut target = Memory::new(&devices, to, &vec![0xaa; len]);
                let (sent, received) = ranks.transfer(
                    Buffer::bytes(source.address(), len as u64),
                    Buffer::bytes(target.address(), len as u64),
                    &SendMode::Standard,
                );
                assert!(sent.is_none() && received.is_ok());
                assert!(target.read(len) == content[..len], "{from:?} to {to:?}, {len} bytes");
            }
        }
        assert_eq!(ranks.net.registered() + ranks.net.fragments(), 0);
    }
}

#[test]
fn strided_receives_keep_the_gaps_between_blocks() {
    let devices = Devices::double();
    let ranks = Ranks::on(&devices, 2, &[Link::new("net", Flags::empty())], &[("device_chunk_size", "64K")], false);
    let (blocks, block, stride) = (1000, 64, 256);
    let layout = Datatype::vector(blocks, block, stride, &Predefined::Byte.datatype()).unwrap().commit();
    let content = pattern(256 * 1000, 3);
    let mut source = Memory::new(&devices, Some(BufferKind::Device), &content);
    let mut target = Memory::new(&devices, Some(BufferKind::Device), &vec![0xaa; content.len()]);
    let (sent, received) = ranks.transfer(
        Buffer::typed(source.address(), 1, &layout),
        Buffer::typed(target.address(), 1, &layout),
        &SendMode::Standard,
    );
    assert!(sent.is_none() && received.is_ok());
    for (index, (got, sent)) in target.read(content.len()).iter().zip(&content).enumerate() {
        let expected = if index % 256 < 64 { *sent } else { 0xaa };
        assert_eq!(*got, expected, "byte {index}");
    }
}

/// Checks that memory of the simulated device is classified as such, so that the tests above cover device memory.
#[test]
fn device_memory_is_distinguished_from_host_memory() {
    let devices = Devices::double();
    let buffer = DeviceBuffer::new(&devices, DeviceIndex(0), BufferKind::Device, 4096).unwrap();
    assert_eq!(buffer.location().class, MemoryClass::Device);
    assert_eq!(devices.classify(vec![0_u8; 1 << 20].as_ptr(), 1 << 20).class, MemoryClass::Host);
    assert!(Devices::none().classify(buffer.as_device_ptr(), 4096) == cableway_common_cuda::Location::HOST);
    assert!(devices.one_allocation(&buffer.location(), buffer.as_device_ptr(), 4096));
    assert!(!devices.one_allocation(&buffer.location(), buffer.as_device_ptr(), 4097));
}
