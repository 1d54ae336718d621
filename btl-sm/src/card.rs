//! The card that a process publishes.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::node::Node;

const MAGIC: [u8; 4] = *b"CWsm";
const VERSION: u16 = 1;
/// The capacity of `sockaddr_un`, less the leading zero of an abstract name.
const LONGEST_NAME: usize = 107;

/// A process's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// The node and namespaces that it runs in.
    pub(crate) node: Node,
    /// The name of its listening socket.
    pub(crate) socket: SocketName,
}

/// The name of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SocketName {
    /// In the abstract namespace of the network namespace.
    Abstract(Vec<u8>),
    /// In the file system.
    Path(Vec<u8>),
}

/// The fixed part; the socket's name follows.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Fixed {
    magic: [u8; 4],
    version: U16,
    in_file_system: u8,
    name_len: u8,
    node: Node,
}
const _: () = assert!(size_of::<Fixed>() == 8 + 36 + 3 * 16);

impl Card {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (in_file_system, name) = match &self.socket {
            SocketName::Abstract(name) => (0, name),
            SocketName::Path(path) => (1, path),
        };
        let fixed = Fixed {
            magic: MAGIC,
            version: VERSION.into(),
            in_file_system,
            name_len: name.len() as u8,
            node: self.node,
        };
        let mut bytes = fixed.as_bytes().to_vec();
        bytes.extend_from_slice(name);
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (fixed, name) =
            Fixed::read_from_prefix(bytes).map_err(|_| format!("{} bytes are too short", bytes.len()))?;
        if fixed.magic != MAGIC {
            return Err("it was not made by shared memory".to_owned());
        }
        if fixed.version.get() != VERSION {
            return Err(format!("its version is {}, this process has {VERSION}", fixed.version));
        }
        if name.is_empty() || name.len() > LONGEST_NAME || name.len() != usize::from(fixed.name_len) {
            return Err(format!("a socket name of {} bytes where {} were announced", name.len(), fixed.name_len));
        }
        let socket = match fixed.in_file_system {
            0 => SocketName::Abstract(name.to_vec()),
            1 if !name.contains(&0) => SocketName::Path(name.to_vec()),
            other => return Err(format!("a socket name of kind {other}")),
        };
        Ok(Card { node: fixed.node, socket })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_reverses_encoding_and_refuses_other_bytes() {
        let node = Node::of_this_process().unwrap();
        for socket in [SocketName::Abstract(b"a\0b".to_vec()), SocketName::Path(b"/tmp/x".to_vec())] {
            let card = Card { node, socket };
            let bytes = card.to_bytes();
            assert_eq!(Card::parse(&bytes), Ok(card));
            for len in 0..bytes.len() {
                assert!(Card::parse(&bytes[..len]).is_err());
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert!(Card::parse(&longer).is_err());
            for at in [0, 4, 6] {
                let mut spoilt = bytes.clone();
                spoilt[at] ^= 0x55;
                assert!(Card::parse(&spoilt).is_err());
            }
        }
    }
}
