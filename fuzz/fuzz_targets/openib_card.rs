//! What a peer publishes of its port.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_btl_openib::fuzzing::card(bytes));
