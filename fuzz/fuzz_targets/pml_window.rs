//! What a peer asks of a window, and the answers and notices.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_pml::fuzzing::window(bytes));
