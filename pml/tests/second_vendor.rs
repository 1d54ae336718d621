//! The engine over devices of another vendor than CUDA: nothing above `common-cuda` knows whose memory it carries.
#![cfg(any(feature = "cuda", feature = "rocm"))]

mod common;

use cableway_btl::Flags;
use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices, MemoryClass};
use cableway_datatype::{Datatype, Predefined};
use cableway_pml::{Buffer, Outcome, Request, SendMode};

use common::{Link, Ranks, pattern};

/// Memory of a kind, or of the host.
struct Memory {
    host: Vec<u8>,
    device: Option<DeviceBuffer>,
}

impl Memory {
    fn new(devices: &Devices, kind: Option<BufferKind>, content: &[u8]) -> Memory {
        let device = kind.map(|kind| {
            let mut buffer = DeviceBuffer::new(devices, DeviceIndex(0), kind, content.len()).unwrap();
            buffer.copy_from_host(0, content).unwrap();
            buffer
        });
        Memory { host: content.to_vec(), device }
    }

    fn address(&mut self) -> *mut u8 {
        self.device.as_ref().map_or(self.host.as_mut_ptr(), DeviceBuffer::as_device_ptr)
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = self.host.clone();
        if let Some(buffer) = &self.device {
            buffer.copy_to_host(0, &mut bytes).unwrap();
        }
        bytes
    }
}

fn carry(ranks: &Ranks, from: Buffer<'_>, to: Buffer<'_>) {
    let (send, receive) = (Request::new(), Request::new());
    // SAFETY: buffers and requests live until complete.
    let outcome = unsafe {
        ranks.engines[1].irecv(&ranks.world[1], 0, 1, to, &receive).unwrap();
        ranks.engines[0].isend(&ranks.world[0], 1, 1, from, &SendMode::Standard, &send).unwrap()
    };
    ranks.finish(&[&receive]);
    if outcome == Outcome::Started {
        ranks.finish(&[&send]);
    }
    ranks.settle();
    assert!(send.error().is_none() && receive.error().is_none());
}

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
                carry(&ranks, Buffer::bytes(source.address(), len as u64), Buffer::bytes(target.address(), len as u64));
                assert!(target.content() == content[..len], "{from:?} to {to:?}, {len} bytes");
            }
        }
        assert_eq!(ranks.net.registered() + ranks.net.fragments(), 0);
    }
}

#[test]
fn strided_memory_goes_and_keeps_what_lies_between_its_blocks() {
    let devices = Devices::double();
    let ranks = Ranks::on(&devices, 2, &[Link::new("net", Flags::empty())], &[("device_chunk_size", "64K")], false);
    let (blocks, block, stride) = (1000, 64, 256);
    let layout = Datatype::vector(blocks, block, stride, &Predefined::Byte.datatype()).unwrap().commit();
    let content = pattern(256 * 1000, 3);
    let mut source = Memory::new(&devices, Some(BufferKind::Device), &content);
    let mut target = Memory::new(&devices, Some(BufferKind::Device), &vec![0xaa; content.len()]);
    carry(&ranks, Buffer::typed(source.address(), 1, &layout), Buffer::typed(target.address(), 1, &layout));
    for (index, (got, sent)) in target.content().iter().zip(&content).enumerate() {
        let expected = if index % 256 < 64 { *sent } else { 0xaa };
        assert_eq!(*got, expected, "byte {index}");
    }
}

/// So that the tests above are about device memory: what a program gets is told to be a device's, by its own address.
#[test]
fn its_memory_is_told_from_the_hosts() {
    let devices = Devices::double();
    let buffer = DeviceBuffer::new(&devices, DeviceIndex(0), BufferKind::Device, 4096).unwrap();
    assert_eq!(buffer.location().class, MemoryClass::Device);
    assert_eq!(devices.classify(vec![0_u8; 1 << 20].as_ptr(), 1 << 20).class, MemoryClass::Host);
    assert!(Devices::none().classify(buffer.as_device_ptr(), 4096) == cableway_common_cuda::Location::HOST);
    assert!(devices.one_allocation(&buffer.location(), buffer.as_device_ptr(), 4096));
    assert!(!devices.one_allocation(&buffer.location(), buffer.as_device_ptr(), 4097));
}
