//! The packets that two processes exchange before they share memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_btl_sm::fuzzing::packet(bytes));
