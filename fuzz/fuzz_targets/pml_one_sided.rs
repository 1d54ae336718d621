//! What a peer asks of registered memory, and the answers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_pml::fuzzing::one_sided(bytes));
