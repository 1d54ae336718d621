//! What an engine publishes of itself.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_pml::fuzzing::card(bytes));
