//! Shared memory to which a hostile peer writes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_btl_sm::fuzzing::segment(bytes));
