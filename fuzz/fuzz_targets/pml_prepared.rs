//! The messages by which two processes agree on prepared operations of streams.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_pml::fuzzing::prepared(bytes));
