//! Entry points for fuzzers: code that reads bytes of a peer. None may panic.

/// Parses the messages of an exchange by peer access, and writes them again.
pub fn exchange(bytes: &[u8]) {
    crate::run::recode(bytes);
}
