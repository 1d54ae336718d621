//! Copies between the caller's memory and memory of a peer that is mapped, where either holds elements of a layout.

use cableway_common_cuda::{Devices, Location};

use super::local::Memory;
use super::target;
use crate::shapes::Elements;

/// The bytes that move at a time between two layouts.
const CHUNK: usize = 8192;

/// Which way bytes move.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// To the peer.
    Store,
    /// From the peer.
    Fetch,
}

/// Copies between memory of this process and a peer's, whose first byte is at `place`. Both lie on the host. Returns
/// whether it did.
///
/// # Safety
/// `place` has room for the range of the elements, or for as many bytes as this process's memory. What is read is valid, and
/// what is written exclusive to this call, but for peers.
pub(super) unsafe fn copy(
    devices: &Devices,
    ours: &Memory,
    (place, elements): (*mut u8, Option<&Elements>),
    way: Way,
) -> bool {
    let len = ours.len as usize;
    if let (Some(address), None) = (ours.run(), elements) {
        let (from, to) = if way == Way::Store { (address, place) } else { (place, address) };
        // SAFETY: the caller's promise. Both may be the same memory.
        unsafe { std::ptr::copy(from.cast_const(), to, len) };
        return true;
    }
    let (ours, theirs) = (ours.buffer(), target::buffer(place, ours.len, elements));
    let (from, to) = if way == Way::Store { (ours, theirs) } else { (theirs, ours) };
    // SAFETY: the caller's promise; the convertors end here.
    let (mut source, mut sink) =
        unsafe { (from.convertor_to_send(Location::HOST, devices), to.convertor_to_receive(Location::HOST, devices)) };
    let moved = match (from.contiguous(), to.contiguous()) {
        // SAFETY: a run holds all bytes of data, and is no part of the other memory.
        (Some((address, _)), _) => unsafe { sink.unpack(address, len) },
        // SAFETY: as above, and it may be written.
        (_, Some((address, _))) => unsafe { source.pack(address, len) },
        (None, None) => {
            let mut chunk = [0; CHUNK];
            let mut step = || {
                let packed = source.pack_slice(&mut chunk)?;
                sink.unpack_slice(&chunk[..packed])
            };
            let mut moved = 0;
            loop {
                match step() {
                    Ok(0) => break Ok(moved),
                    Ok(bytes) => moved += bytes,
                    Err(error) => break Err(error),
                }
            }
        }
    };
    moved.is_ok_and(|moved| moved == len)
}
