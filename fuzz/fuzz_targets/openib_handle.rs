//! The handle of a peer's registered memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_btl_openib::fuzzing::handle(bytes));
