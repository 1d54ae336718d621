//! What a process publishes so that others can connect to it. Little-endian, versioned, checked when read.

use cableway_btl::MAX_HEADER;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::gid::{Gid, Kind};
use crate::process::Process;
use crate::receive_queues::MOST_QUEUES;

/// Of card and datagrams.
pub(crate) const VERSION: u16 = 3;
/// Verbs number packet lengths 1 (256 bytes) to 5 (4096).
const LONGEST_PACKET: u8 = 5;
/// Queue pairs, packets and keys of theirs have 24 bits.
pub(crate) const BITS_24: u32 = (1 << 24) - 1;

/// The card's bytes; datagrams carry them, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Card {
    version: U16,
    mtu: u8,
    /// As [`Kind`] is declared.
    kind: u8,
    lid: U16,
    reads: u8,
    queues: u8,
    gid: [u8; 16],
    datagrams: U32,
    datagram_key: U32,
    max_message: U32,
    process: Process,
}

/// Bytes of a card.
pub(crate) const CARD: usize = size_of::<Card>();

const _: () = {
    use memoffset::offset_of;
    assert!(CARD == 64);
    assert!(offset_of!(Card, mtu) == 2);
    assert!(offset_of!(Card, lid) == 4);
    assert!(offset_of!(Card, reads) == 6);
    assert!(offset_of!(Card, gid) == 8);
    assert!(offset_of!(Card, datagrams) == 24);
    assert!(offset_of!(Card, datagram_key) == 28);
    assert!(offset_of!(Card, max_message) == 32);
    assert!(offset_of!(Card, process) == 36 && size_of::<Process>() == 28);
};

/// A port that can be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// Longest packet, as verbs number them.
    pub(crate) mtu: u8,
    pub(crate) kind: Kind,
    pub(crate) lid: u16,
    /// Reads that the device serves at a time.
    pub(crate) reads: u8,
    /// Its receive queues.
    pub(crate) queues: u8,
    pub(crate) gid: [u8; 16],
    /// The queue pair that takes datagrams, and their key.
    pub(crate) datagrams: u32,
    pub(crate) datagram_key: u32,
    /// Longest message that the process takes.
    pub(crate) max_message: u32,
    /// Whose address it is.
    pub(crate) process: Process,
}

impl Address {
    pub(crate) fn encode(&self) -> Card {
        Card {
            version: U16::new(VERSION),
            mtu: self.mtu,
            kind: match self.kind {
                Kind::InfiniBand => 0,
                Kind::RoceV1 => 1,
                Kind::RoceV2 => 2,
            },
            lid: U16::new(self.lid),
            reads: self.reads,
            queues: self.queues,
            gid: self.gid,
            datagrams: U32::new(self.datagrams),
            datagram_key: U32::new(self.datagram_key),
            max_message: U32::new(self.max_message),
            process: self.process,
        }
    }

    /// Reads a published card.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        Card::read_from_bytes(bytes).map_err(|_| format!("it has {} bytes instead of {CARD}", bytes.len()))?.check()
    }

    /// Whether a connection between the two is possible at all.
    pub(crate) fn reaches(&self, other: &Address) -> bool {
        self.kind == other.kind
            && match self.kind {
                // One subnet: the upper half of the address.
                Kind::InfiniBand => self.gid[..8] == other.gid[..8],
                Kind::RoceV1 => true,
                Kind::RoceV2 => Gid::is_ipv4(&self.gid) == Gid::is_ipv4(&other.gid),
            }
    }
}

impl Card {
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<Address, String> {
        if self.version.get() != VERSION {
            return Err(format!("it is of version {}, this process of {VERSION}", self.version));
        }
        let kind = match self.kind {
            0 => Kind::InfiniBand,
            1 => Kind::RoceV1,
            2 => Kind::RoceV2,
            kind => return Err(format!("its protocol has the number {kind}")),
        };
        if self.mtu == 0 || self.mtu > LONGEST_PACKET {
            return Err(format!("its packet length has the number {}", self.mtu));
        }
        if self.queues == 0 || usize::from(self.queues) > MOST_QUEUES {
            return Err(format!("it has {} receive queues", self.queues));
        }
        if self.datagrams.get() > BITS_24 {
            return Err(format!("its queue pair has the number {}", self.datagrams));
        }
        if (self.max_message.get() as usize) < 2 * MAX_HEADER {
            return Err(format!("its longest message has {} bytes", self.max_message));
        }
        Ok(Address {
            mtu: self.mtu,
            kind,
            lid: self.lid.get(),
            reads: self.reads,
            queues: self.queues,
            gid: self.gid,
            datagrams: self.datagrams.get(),
            datagram_key: self.datagram_key.get(),
            max_message: self.max_message.get(),
            process: self.process,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        pub(crate) fn address()(mtu in 1u8..=5, kind in 0..3, lid in any::<u16>(), reads in any::<u8>(), queues in 1..=MOST_QUEUES as u8,
                                gid in any::<[u8; 16]>(), datagrams in 0..=BITS_24, datagram_key in any::<u32>(),
                                max_message in 384..u32::MAX, process in any::<[u8; 28]>()) -> Address {
            let kind = [Kind::InfiniBand, Kind::RoceV1, Kind::RoceV2][kind as usize];
            let process = zerocopy::transmute!(process);
            Address { mtu, kind, lid, reads, queues, gid, datagrams, datagram_key, max_message, process }
        }
    }

    proptest! {
        #[test]
        fn a_card_reads_as_written(address in address()) {
            prop_assert_eq!(Address::decode(address.encode().as_bytes()), Ok(address));
        }

        #[test]
        fn a_damaged_card_is_read_or_refused(address in address(), at in 0..CARD, byte in any::<u8>(), len in 0..=CARD) {
            let mut card = address.encode();
            card.as_mut_bytes()[at] = byte;
            match Address::decode(&card.as_bytes()[..len]) {
                Ok(read) => prop_assert_eq!(read.encode(), card),
                Err(reason) => prop_assert!(!reason.is_empty()),
            }
        }
    }

    #[test]
    fn only_the_same_protocol_and_family_reach_each_other() {
        let v4 = |last| std::net::Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets();
        let v6 = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).octets();
        let base = Address {
            mtu: 5,
            kind: Kind::RoceV2,
            lid: 0,
            reads: 4,
            queues: 1,
            gid: v4(1),
            datagrams: 1,
            datagram_key: 2,
            max_message: 4096,
            process: Process::default(),
        };
        assert!(base.reaches(&Address { gid: v4(2), ..base }));
        assert!(!base.reaches(&Address { gid: v6, ..base }));
        assert!(!base.reaches(&Address { kind: Kind::RoceV1, ..base }));
        let infiniband = Address { kind: Kind::InfiniBand, ..base };
        assert!(infiniband.reaches(&Address { gid: v4(9), ..infiniband }));
        assert!(!infiniband.reaches(&Address { gid: v6, ..infiniband }));
    }
}
