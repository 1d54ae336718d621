//! Writes of bytes in the order of a stream.

use std::ffi::c_void;
use std::sync::Arc;

use cableway_common_cuda::{WordAccess, WordOperation};
use cableway_pml::{Engine, Error, StreamBatch, StreamJob};

/// The stream itself writes so many bytes, as words. More of them take longer than a thread.
const MOST: usize = 1024;

/// Adds a write to a stream, which passes it when the bytes are there.
///
/// # Safety
/// The destination is valid, and free of other accesses, until the stream has passed the write.
pub(super) unsafe fn write(batch: &mut StreamBatch<'_>, engine: &Arc<Engine>, to: *mut c_void, bytes: &[u8]) {
    let address = to.expose_provenance();
    let aligned = address.is_multiple_of(4) && bytes.len().is_multiple_of(4);
    if aligned && bytes.len() <= MOST && engine.devices().reaches(to.cast(), bytes.len()) {
        // SAFETY: the caller's promise.
        unsafe { batch.operate(&words(address as u64, bytes)) };
        return;
    }
    let job = Box::new(Write { engine: engine.clone(), to: address, bytes: bytes.into() });
    // SAFETY: the caller's promise; the bytes are the job's own.
    let message = unsafe { batch.run(job) };
    batch.wait(&[&message]);
}

/// Describes the words of a write, as wide as their addresses permit. All lengths are multiples of 4.
fn words(mut address: u64, mut bytes: &[u8]) -> Vec<WordOperation> {
    let mut words = Vec::with_capacity(bytes.len() / 8 + 2);
    while let Some((low, rest)) = bytes.split_first_chunk::<4>() {
        let (wide, value, taken, rest) = match (address.is_multiple_of(8), bytes.split_first_chunk::<8>()) {
            (true, Some((both, rest))) => (true, u64::from_le_bytes(*both), 8, rest),
            _ => (false, u64::from(u32::from_le_bytes(*low)), 4, rest),
        };
        words.push(WordOperation { address, value, wide, access: WordAccess::Write });
        (address, bytes) = (address + taken, rest);
    }
    words
}

/// A write that the thread makes.
struct Write {
    engine: Arc<Engine>,
    to: usize,
    bytes: Box<[u8]>,
}

impl StreamJob for Write {
    fn poll(&mut self) -> Option<Result<(), Error>> {
        let to = std::ptr::with_exposed_provenance_mut(self.to);
        // SAFETY: the caller of `write` keeps the destination until the job is over.
        let copied = unsafe { self.engine.devices().copy_now(to, self.bytes.as_ptr(), self.bytes.len()) };
        Some(copied.map_err(Error::Stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_as_wide_as_their_addresses_permit() {
        let bytes: Vec<u8> = (0..20).collect();
        let described = |address| {
            let words = words(address, &bytes);
            words.iter().map(|word| (word.address, word.value, word.wide)).collect::<Vec<_>>()
        };
        let (wide, narrow) = (0x0706_0504_0302_0100, 0x0302_0100);
        assert_eq!(described(8), [(8, wide, true), (16, wide + 0x0808_0808_0808_0808, true), (24, 0x1312_1110, false)]);
        let shifted = wide + 0x0404_0404_0404_0404;
        assert_eq!(described(4), [(4, narrow, false), (8, shifted, true), (16, shifted + 0x0808_0808_0808_0808, true)]);
        assert!(words(8, &[]).is_empty());
        assert!(matches!(words(8, &bytes)[0].access, WordAccess::Write));
    }
}
