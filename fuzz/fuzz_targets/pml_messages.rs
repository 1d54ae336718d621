//! An engine with operations under way, and a peer that sends arbitrary bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_pml::fuzzing::messages(bytes));
