//! The messages of an exchange by peer access.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_coll::fuzzing::exchange(bytes));
