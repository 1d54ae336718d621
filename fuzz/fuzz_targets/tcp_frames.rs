//! A connection's frames, in pieces of any length.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_btl_tcp::fuzzing::frames(bytes));
