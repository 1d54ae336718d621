//! Either end of the handshake of a connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_btl_tcp::fuzzing::handshake(bytes));
