//! Active messages, within the payload of an ordinary message.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_pml::fuzzing::active_message(bytes));
