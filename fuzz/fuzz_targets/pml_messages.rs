//! An engine with operations under way, and a peer that sends it anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_pml::fuzzing::messages(bytes));
