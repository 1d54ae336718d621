//! Entry points for fuzzers: every parser here of bytes from a peer or an unknown sender. None may panic, and none
//! needs a device.

use cableway_btl::{Identity, Job, RemoteHandle};

use crate::card::Address;
use crate::connection::{CmMessage, HELLO, Hello, PrivateData};

const SECRET: [u8; 32] = [7; 32];

/// A peer's card.
pub fn card(bytes: &[u8]) {
    if let Ok(ports) = Address::decode(bytes) {
        assert_eq!(ports.iter().flat_map(Address::publish).collect::<Vec<_>>(), bytes);
        let _ = crate::networks::partner(&ports, 0, &ports, true);
        let _ = ports[0].process.find(&cableway_btl::process::Process::own());
    }
}

/// Decodes a datagram without a valid proof, and one with it.
pub fn datagram(bytes: &[u8]) {
    let identity = Identity::new(&Job::new("fuzz".to_owned(), SECRET, 1, 4, 4));
    let _ = Hello::decode(&identity, bytes);
    let mut signed = [0; HELLO];
    let (content, proof) = signed.split_at_mut(HELLO - Identity::PROOF);
    let len = bytes.len().min(content.len());
    content[..len].copy_from_slice(&bytes[..len]);
    let Some(signature) = identity.prove(0, &[&*content]) else { return };
    proof.copy_from_slice(&signature);
    private_data(bytes, &identity);
    if let Ok((from, hello)) = Hello::decode(&identity, &signed) {
        assert!(from < 4 && from != 1);
        let _ = hello.address.reaches(&hello.address);
    }
}

/// Decodes private data as a request and as a reply.
fn private_data(bytes: &[u8], identity: &Identity) {
    for part in [CmMessage::Request { card: b"a card" }, CmMessage::Reply { request: b"a request" }] {
        if let Ok((from, _)) = PrivateData::decode(identity, bytes, part) {
            assert!(from < 4 && from != 1);
        }
    }
}

/// Decodes a handle of registered memory, and 64 bytes at an offset in it.
pub fn handle(bytes: &[u8]) {
    let Some((offset, bytes)) = bytes.split_first_chunk() else { return };
    let Some(handle) = RemoteHandle::new(bytes) else { return };
    if let Ok((address, _)) = crate::registration::target(&handle, u64::from_le_bytes(*offset), 64) {
        assert!(address >= u64::from_le_bytes(*offset));
    }
}
