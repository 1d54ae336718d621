//! The content of checked messages: bytes that identify the message and their position in it.

/// Fills `bytes` with the content of message `number` from byte `offset` on.
pub(crate) fn fill(bytes: &mut [u8], number: u64, offset: u64) {
    for (at, byte) in (offset..).zip(bytes) {
        *byte = expected(number, at);
    }
}

/// Returns the first byte that differs from the content of message `number` from byte `offset` on.
pub(crate) fn first_mismatch(bytes: &[u8], number: u64, offset: u64) -> Option<Mismatch> {
    let mut pairs = (offset..).zip(bytes);
    let (at, &found) = pairs.find(|&(at, &byte)| byte != expected(number, at))?;
    Some(Mismatch { at, found, expected: expected(number, at) })
}

/// A byte that differs from the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) at: u64,
    pub(crate) found: u8,
    pub(crate) expected: u8,
}

/// Returns the expected byte. Neighbouring bytes, words, pages and messages differ.
fn expected(number: u64, at: u64) -> u8 {
    let word = ((at >> 3) ^ number.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> (8 * (at & 7))) as u8 ^ (word >> 56) as u8 ^ (at as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_found_and_messages_differ() {
        let mut bytes = vec![0; 10_000];
        fill(&mut bytes, 3, 0);
        assert_eq!(first_mismatch(&bytes, 3, 0), None);
        assert_eq!(first_mismatch(&bytes[5000..], 3, 5000), None);
        assert!(first_mismatch(&bytes, 4, 0).is_some());
        assert!(first_mismatch(&bytes[4096..], 3, 0).is_some_and(|wrong| wrong.at < 16));
        bytes[7777] ^= 1;
        let wrong = first_mismatch(&bytes, 3, 0).unwrap();
        assert_eq!((wrong.at, wrong.found ^ wrong.expected), (7777, 1));
        let equal_to_next = (0..9_999).filter(|&i| bytes[i] == bytes[i + 1]).count();
        assert!(equal_to_next < 200, "{equal_to_next}");
    }
}
