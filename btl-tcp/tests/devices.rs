//! Tests device data over the transport, on the simulated driver, or on the real one with
//! `CABLEWAY_TEST_REAL_DRIVER=1`.
#![cfg(feature = "cuda")]

mod common;

use std::sync::atomic::Ordering;

use cableway_btl::FragmentKind;
use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, MemoryClass};
use common::{LOOPBACK, node, node_with, pattern, send, until};
use test_nodes::devices;

/// The messages that wait for a device are limited. Further messages are delivered to be copied at once.
#[test]
fn messages_beyond_the_limit_are_not_kept() {
    let set = [LOOPBACK, "btl_tcp_retained_limit=300K", "device_chunk_size=256K"];
    let (a, b) = (node(0, 2, &set), node(1, 2, &set));
    let nodes = [&a, &b];
    let (mut to_b, _to_a) = (a.connect(&b), b.connect(&a));
    b.seen.keep.store(true, Ordering::Relaxed);
    // Each is larger than the receive buffer.
    let message = |number| pattern(200_000, number);
    let kept = |number: u64| {
        let expected = 1 + number as usize;
        until(&nodes, "it arrives", || b.received() == expected);
        assert!(b.seen.messages.lock()[number as usize].1 == message(number));
        b.seen.retained.lock().len()
    };
    let mut send = |number: u64| {
        until(&nodes, "a fragment is there", || {
            let Some(mut fragment) = to_b[0].alloc(200_000, FragmentKind::Device).unwrap() else { return false };
            fragment.write(0, &message(number));
            to_b[0].send(fragment, 200_000).unwrap();
            true
        });
    };
    for (number, expected) in [(0, 1), (1, 2), (2, 2), (3, 2)] {
        send(number);
        assert_eq!(kept(number), expected, "message {number}");
    }
    for (waiting, number) in b.seen.retained.lock().iter().zip(0..) {
        let mut got = vec![0; 200_000];
        waiting.bytes().copy_to(&mut got);
        assert!(got == message(number), "a kept message must not change");
    }
    b.seen.retained.lock().clear();
    send(4);
    assert_eq!(kept(4), 1, "a message must be kept again");
}

#[test]
fn a_device_copies_into_and_out_of_registered_buffers() {
    let devices = devices();
    let (a, b) = (node_with(0, 2, &[LOOPBACK], &devices), node_with(1, 2, &[LOOPBACK], &devices));
    let nodes = [&a, &b];
    let (mut to_b, _to_a) = (a.connect(&b), b.connect(&a));
    let link = &mut *to_b[0];
    send(&nodes, link, b"first", b"");
    b.seen.keep.store(true, Ordering::Relaxed);
    let buffer = |len| DeviceBuffer::new(&devices, DeviceIndex(0), BufferKind::Device, len).unwrap();
    let longest = link.capabilities().device_max_send_size;
    for (round, len) in [200_000, 1 << 20, longest].into_iter().enumerate() {
        let (message, mut got) = (pattern(len, round as u64), vec![0; len]);
        let (source, target) = (buffer(len), buffer(len));
        // SAFETY: both have `len` bytes.
        unsafe { devices.copy(source.as_device_ptr(), message.as_ptr(), len) }.unwrap();

        let mut fragment = link.alloc(len, FragmentKind::Device).unwrap().unwrap();
        // SAFETY: the fragment has room and belongs to this test.
        unsafe { devices.copy(fragment.as_mut_ptr(), source.as_device_ptr(), len) }.unwrap();
        assert_eq!(devices.classify(fragment.as_mut_ptr(), len).class, MemoryClass::Pinned, "on the sender's side");
        link.send(fragment, len).unwrap();

        until(&nodes, "it arrives", || !b.seen.retained.lock().is_empty());
        let kept = b.seen.retained.lock().pop().unwrap();
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
