//! The values that a process publishes, as bytes for others that no launcher serves:
//!
//! ```text
//! 0        2          2 + k      6 + k         6 + k + v
//! | k: u16 | key: [k] | v: u32   | value: [v]  | the next key ...
//! ```
//!
//! Numbers are little-endian. Keys are UTF-8 and differ.

use std::collections::BTreeMap;

/// Values by key.
pub type Values = BTreeMap<String, Vec<u8>>;

/// Returns the bytes of values. A key or value that is too long for its field is left out, so that others see that it is
/// missing.
pub fn encode(values: &Values) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in values {
        let (Ok(key_len), Ok(value_len)) = (u16::try_from(key.len()), u32::try_from(value.len())) else { continue };
        bytes.extend(key_len.to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(value_len.to_le_bytes());
        bytes.extend(value);
    }
    bytes
}

/// Returns the values of bytes from another process, or `None` if they are malformed.
pub fn decode(mut bytes: &[u8]) -> Option<Values> {
    let mut values = Values::new();
    while !bytes.is_empty() {
        let key_len = u16::from_le_bytes(*take(&mut bytes, 2)?.first_chunk()?);
        let key = std::str::from_utf8(take(&mut bytes, key_len.into())?).ok()?.to_owned();
        let value_len = u32::from_le_bytes(*take(&mut bytes, 4)?.first_chunk()?);
        let value = take(&mut bytes, usize::try_from(value_len).ok()?)?.to_vec();
        if values.insert(key, value).is_some() {
            return None;
        }
    }
    Some(values)
}

fn take<'b>(bytes: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}
