//! What ranks and the built-in launcher say to each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway::fuzzing::launcher(bytes));
