//! The card that a peer publishes for its sockets.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_btl_tcp::fuzzing::card(bytes));
