//! The card that a peer publishes for shared memory, and its handles to memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    cableway_btl_sm::fuzzing::card(bytes);
    cableway_btl_sm::fuzzing::handle(bytes);
});
