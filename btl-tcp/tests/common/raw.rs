//! A peer made of a bare socket, which can break the protocol.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use super::{Node, until};
use cableway_btl::Btl;

/// The offsets of the fields of a card that tests need; see `card.rs`.
const PORT_V4: std::ops::Range<usize> = 32..34;

pub(crate) fn port(card: &[u8]) -> u16 {
    u16::from_le_bytes([card[PORT_V4.start], card[PORT_V4.start + 1]])
}

/// Replaces the port in a card, for a relay.
pub(crate) fn with_port(mut card: Vec<u8>, port: u16) -> Vec<u8> {
    card[PORT_V4].copy_from_slice(&port.to_le_bytes());
    card
}

pub(crate) fn dial(node: &Node) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port(&node.btl.card()))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    stream
}

/// Builds the first message of a handshake.
pub(crate) fn hello(job: &str, from: u32, to: u32, link: u16) -> Vec<u8> {
    let mut bytes = b"CABLEWAY".to_vec();
    bytes.extend(3u16.to_le_bytes());
    bytes.extend(link.to_le_bytes());
    bytes.extend(u64::from(from).to_le_bytes());
    bytes.extend(u64::from(to).to_le_bytes());
    bytes.extend(&Sha256::digest(job.as_bytes())[..16]);
    bytes.extend([5; 20]);
    bytes
}

/// Computes the proof of either end. The words are its role, the hello, the nonce, and for a server also the verdict.
pub(crate) fn proof(words: &[&[u8]]) -> Vec<u8> {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&[42; 32]).unwrap();
    for part in words {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

/// Reads exactly `count` bytes while the nodes progress. Returns `None` if the other end closes the connection.
pub(crate) fn read(nodes: &[&Node], stream: &mut TcpStream, count: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; count];
    let mut have = 0;
    let mut closed = false;
    until(nodes, "bytes or the end of the stream", || {
        if have == count {
            return true;
        }
        match stream.read(&mut bytes[have..]) {
            Ok(0) => closed = true,
            Ok(more) => have += more,
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => closed = true,
        }
        closed || have == count
    });
    (!closed).then_some(bytes)
}

/// Opens a connection with a proof for rank `from`, which is above the node's rank. Returns it with the verdict.
pub(crate) fn connect(nodes: &[&Node], node: &Node, from: u32, link: u16) -> (TcpStream, Vec<u8>) {
    let mut stream = dial(node);
    let hello = hello("test-job", from, node.rank, link);
    stream.write_all(&hello).unwrap();
    let nonce = read(nodes, &mut stream, 32).unwrap();
    stream.write_all(&proof(&[b"client", &hello, &nonce])).unwrap();
    let verdict = read(nodes, &mut stream, 36).unwrap();
    let (word, server) = verdict.split_at(4);
    assert_eq!(server, proof(&[b"server", &hello, &nonce, word]));
    (stream, word.to_vec())
}

/// Builds a frame's header.
pub(crate) fn frame(length: u32, kind: u8) -> Vec<u8> {
    [&length.to_le_bytes()[..], &[kind, 0, 0, 0]].concat()
}
