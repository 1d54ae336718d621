//! What checked messages are filled with: bytes that tell their message and their place in it.

/// Fills `bytes` with what message `number` holds from byte `offset` on.
pub(crate) fn fill(bytes: &mut [u8], number: u64, offset: u64) {
    for (at, byte) in (offset..).zip(bytes) {
        *byte = expected(number, at);
    }
}

/// The first byte that is not what message `number` holds from byte `offset` on.
pub(crate) fn first_wrong(bytes: &[u8], number: u64, offset: u64) -> Option<Wrong> {
    let mut pairs = (offset..).zip(bytes);
    let (at, &found) = pairs.find(|&(at, &byte)| byte != expected(number, at))?;
    Some(Wrong { at, found, expected: expected(number, at) })
}

/// A byte that should have been another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) at: u64,
    pub(crate) found: u8,
    pub(crate) expected: u8,
}

/// Neighbouring bytes, words, pages and messages all differ.
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
        assert_eq!(first_wrong(&bytes, 3, 0), None);
        assert_eq!(first_wrong(&bytes[5000..], 3, 5000), None);
        assert!(first_wrong(&bytes, 4, 0).is_some());
        assert!(first_wrong(&bytes[4096..], 3, 0).is_some_and(|wrong| wrong.at < 16));
        bytes[7777] ^= 1;
        let wrong = first_wrong(&bytes, 3, 0).unwrap();
        assert_eq!((wrong.at, wrong.found ^ wrong.expected), (7777, 1));
        let equal_to_next = (0..9_999).filter(|&i| bytes[i] == bytes[i + 1]).count();
        assert!(equal_to_next < 200, "{equal_to_next}");
    }
}
