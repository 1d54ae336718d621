//! Shared memory in the hands of a peer that writes what it likes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_btl_sm::fuzzing::segment(bytes));
