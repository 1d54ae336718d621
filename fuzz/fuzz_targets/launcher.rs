//! The messages between ranks and the built-in launcher.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway::fuzzing::launcher(bytes));
