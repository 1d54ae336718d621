//! Device buffers that two processes copy between.

use std::time::Instant;

use cableway_btl::{Access, Error, Region, Registration, Remote, Token, Transfer};
use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices, Order};

use super::{PATIENCE, Pair, until};

pub fn region(buffer: &DeviceBuffer) -> Region {
    Region {
        address: buffer.as_device_ptr(),
        len: buffer.len(),
        location: buffer.location(),
        order: Order::AfterDefaultStream,
    }
}

/// Allocates a buffer and fills it. Waits until the fill is complete.
pub fn filled(devices: &Devices, kind: BufferKind, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = DeviceBuffer::new(devices, DeviceIndex(0), kind, bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    devices.default_stream(&buffer.location()).unwrap().wait().unwrap();
    buffer
}

/// Process 0 registers the buffer for process 1.
pub fn registered(pair: &mut Pair, buffer: &DeviceBuffer, access: Access) -> Option<Registration> {
    // SAFETY: the callers' buffers outlive their transfers.
    unsafe { pair.to_one.register(region(buffer), access) }.unwrap()
}

/// Process 1 starts a copy. Returns false if the copy is unavailable.
pub fn copied(pair: &mut Pair, local: &DeviceBuffer, remote: &Registration, access: Access) -> bool {
    // SAFETY: both buffers live until the copy completes, and no other code accesses them.
    let begun = unsafe {
        match access {
            Access::RemoteRead => pair.to_zero.get(&region(local).into(), &Remote::at(remote.handle(), 0), Token(7)),
            Access::RemoteWrite => pair.to_zero.put(&region(local).into(), &Remote::at(remote.handle(), 0), Token(7)),
        }
    };
    match begun {
        Ok(Transfer::Started) => {}
        Err(Error::Unavailable { .. }) => return false,
        other => panic!("{other:?}"),
    }
    pair.one.heard.asynchronous.set(true);
    until(&[&pair.zero, &pair.one], "the copy is done", || !pair.one.heard.completed.borrow().is_empty());
    assert!(matches!(pair.one.heard.completed.borrow_mut().pop(), Some((Token(7), Ok(())))));
    true
}

/// Process 1 copies as soon as process 0 has passed what it needs to map the memory.
pub fn copied_when_mapped(pair: &mut Pair, local: &DeviceBuffer, remote: &Registration, access: Access) {
    let start = Instant::now();
    while !copied(pair, local, remote, access) {
        assert!(start.elapsed() < PATIENCE, "no descriptor was given");
        progress(pair);
    }
}

pub fn progress(pair: &Pair) {
    for process in [&pair.zero, &pair.one] {
        process.progress();
    }
}

pub fn content(buffer: &DeviceBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.copy_to_host(0, &mut bytes).unwrap();
    bytes
}
