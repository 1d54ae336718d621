//! A connection datagram, from a foreign process and from a peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cableway_btl_openib::fuzzing::datagram(bytes));
