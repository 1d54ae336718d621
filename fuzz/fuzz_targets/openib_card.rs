//! The card that a peer publishes for its ports.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_btl_openib::fuzzing::card(bytes));
