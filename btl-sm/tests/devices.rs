//! Device data through the transport, on the simulated driver; with `CABLEWAY_TEST_REAL_DRIVER=1` on the one that the
//! loader finds.
#![cfg(feature = "cuda")]

mod common;

use cableway_btl::{Access, Error, Flags, FragmentKind, Region, Token};
use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, MemoryClass, Order};
use common::{Pair, pattern, until};
use test_nodes::devices;

#[test]
fn a_device_copies_into_and_out_of_the_same_registered_pages() {
    let devices = devices();
    let mut pair = Pair::with_devices(&[], &devices);
    assert!(pair.to_one.capabilities().flags.contains(Flags::DEVICE_FRAGMENTS));
    pair.one.heard.retain.set(true);
    let buffer = |len| DeviceBuffer::new(&devices, DeviceIndex(0), BufferKind::Device, len).unwrap();
    for (round, len) in [100, 4000, 5000, 1 << 20, 64].into_iter().enumerate() {
        let (message, mut got) = (pattern(round, len), vec![0; len]);
        let (source, target) = (buffer(len), buffer(len));
        // SAFETY: both have `len` bytes.
        unsafe { devices.copy(source.as_device_ptr(), message.as_ptr(), len) }.unwrap();

        let mut fragment = None;
        until(&[&pair.zero, &pair.one], "a device fragment is free", || {
            fragment = pair.to_one.alloc(len, FragmentKind::Device).unwrap();
            fragment.is_some()
        });
        let mut fragment = fragment.unwrap();
        // SAFETY: the fragment has room and is ours.
        unsafe { devices.copy(fragment.as_mut_ptr(), source.as_device_ptr(), len) }.unwrap();
        assert_eq!(devices.classify(fragment.as_mut_ptr(), len).class, MemoryClass::Pinned, "on the sender's side");
        pair.to_one.send(fragment, len).unwrap();

        until(&[&pair.zero, &pair.one], "it arrives", || !pair.one.heard.retained.borrow().is_empty());
        let kept = pair.one.heard.retained.borrow_mut().pop().unwrap();
        assert_eq!(kept.bytes().len(), len);
        // SAFETY: the message is kept until after the copies.
        unsafe {
            devices.copy(target.as_device_ptr(), kept.bytes().as_ptr(), len).unwrap();
            devices.copy(got.as_mut_ptr(), target.as_device_ptr(), len).unwrap();
        }
        let class = devices.classify(kept.bytes().as_ptr(), len).class;
        assert_eq!(class, MemoryClass::Pinned, "on the receiver's side");
        assert!(got == message, "{len} bytes");
    }
}

#[test]
fn device_memory_is_named_to_a_peer_and_what_cannot_be_mapped_is_unavailable() {
    let devices = devices();
    for set in ["device_protocols=copy", "device_ipc=no"] {
        let pair = Pair::with_devices(&[set], &devices);
        assert!(!pair.to_one.capabilities().flags.intersects(Flags::DEVICE_GET | Flags::DEVICE_PUT), "{set}");
    }
    let mut pair = Pair::with_devices(&["device_ipc_open_size=1"], &devices);
    let able = Flags::DEVICE_GET | Flags::DEVICE_PUT | Flags::DEVICE_TO_DEVICE;
    assert!(pair.to_one.capabilities().flags.contains(able));
    pair.deliver(b"connected");
    let region = |buffer: &DeviceBuffer| Region {
        address: buffer.as_device_ptr(),
        len: buffer.len(),
        location: buffer.location(),
        order: Order::AfterDefaultStream,
    };
    let buffer = |kind| DeviceBuffer::new(&devices, DeviceIndex(0), kind, 5000).unwrap();
    for kind in [BufferKind::Pool, BufferKind::Vmm, BufferKind::Managed] {
        let mine = buffer(kind);
        // SAFETY: the buffer outlives the registration.
        let registered = unsafe { pair.to_one.register(region(&mine), Access::RemoteRead) };
        assert!(registered.unwrap().is_none(), "{kind:?}");
    }
    // The two are one process, which no driver lets open its own memory; after a few tries it is left at that.
    for _ in 0..5 {
        let (mine, theirs) = (buffer(BufferKind::Device), buffer(BufferKind::Device));
        // SAFETY: both buffers outlive what is done with them.
        unsafe {
            let registered = pair.to_one.register(region(&mine), Access::RemoteRead).unwrap().unwrap();
            let got = pair.to_zero.get(region(&theirs), registered.handle(), 0, Token(1));
            assert!(matches!(got, Err(Error::Unavailable { .. })), "{got:?}");
            let put = pair.to_zero.put(region(&theirs), registered.handle(), 0, Token(1));
            assert!(matches!(put, Err(Error::Unavailable { .. })), "not permitted: {put:?}");
        }
    }
    assert!(!pair.to_zero.capabilities().flags.intersects(able));
    let mine = buffer(BufferKind::Device);
    // SAFETY: as above.
    let registered = unsafe { pair.to_zero.register(region(&mine), Access::RemoteRead) };
    assert!(registered.unwrap().is_none(), "nor does it announce what the peer cannot map either");
}
