//! The card that a process publishes: its ports, the nearest first. It is little-endian and versioned, and checked when
//! read.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use cableway_btl::MAX_HEADER;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::gid::{Gid, Kind};
use crate::partitions;
use crate::receive_queues::MOST_QUEUES;
use cableway_btl::process::Process;

/// The version of card and datagrams.
pub(crate) const VERSION: u16 = 5;
/// The largest number of ports of a process.
pub(crate) const MOST_PORTS: usize = 16;
/// The codes of packet lengths in verbs: 1 (256 bytes) to 5 (4096).
const LONGEST_PACKET: u8 = 5;
/// Numbers of queue pairs, packets and keys have 24 bits.
pub(crate) const BITS_24: u32 = (1 << 24) - 1;

/// The part of a card that datagrams carry, too.
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

/// The published data of a port.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Published {
    card: Card,
    /// The listener's address, with IPv4 mapped into IPv6; all zeros if there is no listener.
    listener: [u8; 16],
    listener_port: U16,
    pkey: U16,
    network: u8,
    zero: u8,
}

/// The bytes of a port in a published card, and the bytes that datagrams carry of it.
pub(crate) const PUBLISHED: usize = size_of::<Published>();
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
    assert!(PUBLISHED == 86);
    assert!(offset_of!(Published, listener) == 64);
    assert!(offset_of!(Published, listener_port) == 80);
    assert!(offset_of!(Published, pkey) == 82);
    assert!(offset_of!(Published, network) == 84);
};

/// A port to which others can connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The longest packet, as a code of verbs.
    pub(crate) mtu: u8,
    pub(crate) kind: Kind,
    pub(crate) lid: u16,
    /// The number of concurrent reads that the device serves.
    pub(crate) reads: u8,
    /// Its receive queues.
    pub(crate) queues: u8,
    pub(crate) gid: [u8; 16],
    /// The queue pair for datagrams, and its key.
    pub(crate) datagrams: u32,
    pub(crate) datagram_key: u32,
    /// The longest message that the process accepts.
    pub(crate) max_message: u32,
    /// The port's protocol and GID.
    pub(crate) process: Process,
    /// Where librdmacm listens; `None` if connections are made by datagrams.
    pub(crate) listener: Option<SocketAddr>,
    /// The key of the port's partition; 0 if unknown, as in datagrams.
    pub(crate) pkey: u16,
    /// The length of the network's prefix in bits, counted as for IPv6 addresses; 0 in datagrams.
    pub(crate) network: u8,
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
                Kind::Iwarp => 3,
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

    /// Returns the card of a process with this port only.
    pub(crate) fn publish(&self) -> [u8; PUBLISHED] {
        let published = Published {
            card: self.encode(),
            listener: self.listener.map_or([0; 16], |address| match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            }),
            listener_port: U16::new(self.listener.map_or(0, |address| address.port())),
            pkey: U16::new(self.pkey),
            network: self.network,
            zero: 0,
        };
        zerocopy::transmute!(published)
    }

    /// Reads a published card, which has at least one port.
    ///
    /// # Errors
    /// The card is malformed.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Self>, String> {
        let (ports, rest) = bytes.as_chunks::<PUBLISHED>();
        // Check the version before the length, which depends on it.
        if let Ok((card, _)) = Card::ref_from_prefix(bytes) {
            card.check_version()?;
        }
        if !rest.is_empty() || ports.is_empty() || ports.len() > MOST_PORTS {
            return Err(format!(
                "it has {} bytes, not {PUBLISHED} for each of {MOST_PORTS} ports at most",
                bytes.len()
            ));
        }
        ports.iter().map(Self::decode_port).collect()
    }

    fn decode_port(bytes: &[u8; PUBLISHED]) -> Result<Self, String> {
        let published: Published = zerocopy::transmute!(*bytes);
        let address = published.card.check()?;
        let listener = match published.listener_port.get() {
            0 if published.listener != [0; 16] => return Err("it listens at an address without a port".to_owned()),
            0 => None,
            port => Some(SocketAddr::new(Ipv6Addr::from(published.listener).to_canonical(), port)),
        };
        if address.kind == Kind::Iwarp && listener.is_none() {
            return Err("it has neither a listening address nor datagrams".to_owned());
        }
        if published.network > 128 || published.zero != 0 {
            return Err(format!(
                "invalid prefix length {}, or reserved byte {} is not zero",
                published.network, published.zero
            ));
        }
        Ok(Address { listener, pkey: published.pkey.get(), network: published.network, ..address })
    }

    /// Returns the port's IP address.
    pub(crate) fn ip(&self) -> IpAddr {
        let gid = Ipv6Addr::from(self.gid).to_canonical();
        self.listener.filter(|_| self.kind == Kind::Iwarp).map_or(gid, |listener| listener.ip())
    }

    /// Checks that the largest buffers of a connection, of `size` bytes, hold the messages that the card promises,
    /// because senders rely on it.
    ///
    /// # Errors
    /// The buffers are too small.
    pub(crate) fn is_kept_by(&self, size: u32) -> Result<(), String> {
        match size < self.max_message {
            true => {
                Err(format!("it says that it takes messages of {} bytes, into buffers of {size}", self.max_message))
            }
            false => Ok(()),
        }
    }

    /// Returns the InfiniBand subnet prefix.
    pub(crate) fn subnet(&self) -> &[u8] {
        &self.gid[..8]
    }

    /// Returns whether a connection between the two ports is possible at all, regardless of routes.
    pub(crate) fn reaches(&self, other: &Address) -> bool {
        self.kind == other.kind
            && self.listener.is_some() == other.listener.is_some()
            && partitions::meet(self.pkey, other.pkey)
            && match self.kind {
                // Only librdmacm resolves paths to other subnets.
                Kind::InfiniBand => self.listener.is_some() || self.subnet() == other.subnet(),
                Kind::RoceV1 => true,
                Kind::RoceV2 => Gid::is_ipv4(&self.gid) == Gid::is_ipv4(&other.gid),
                Kind::Iwarp => {
                    let v4 = |address: &Address| address.listener.map(|listener| listener.is_ipv4());
                    v4(self) == v4(other)
                }
            }
    }
}

impl Card {
    fn check_version(&self) -> Result<(), String> {
        if self.version.get() != VERSION {
            return Err(format!("it is of version {}, this process of {VERSION}", self.version));
        }
        Ok(())
    }

    /// # Errors
    /// The bytes are malformed.
    pub(crate) fn check(&self) -> Result<Address, String> {
        self.check_version()?;
        let kind = match self.kind {
            0 => Kind::InfiniBand,
            1 => Kind::RoceV1,
            2 => Kind::RoceV2,
            3 => Kind::Iwarp,
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
            listener: None,
            pkey: 0,
            network: 0,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        pub(crate) fn address()(mtu in 1u8..=5, kind in 0..4, lid in any::<u16>(), reads in any::<u8>(), queues in 1..=MOST_QUEUES as u8,
                                gid in any::<[u8; 16]>(), datagrams in 0..=BITS_24, datagram_key in any::<u32>(),
                                max_message in 384..u32::MAX, process in any::<[u8; 28]>()) -> Address {
            let kind = [Kind::InfiniBand, Kind::RoceV1, Kind::RoceV2, Kind::Iwarp][kind as usize];
            let process = zerocopy::transmute!(process);
            Address { mtu, kind, lid, reads, queues, gid, datagrams, datagram_key, max_message, process, listener: None, pkey: 0, network: 0 }
        }
    }

    prop_compose! {
        fn published()(address in address(), listens in any::<bool>(), ip in any::<IpAddr>(), port in 1..=u16::MAX,
                       pkey in any::<u16>(), network in 0u8..=128) -> Address {
            let listener = (listens || address.kind == Kind::Iwarp).then(|| SocketAddr::new(ip.to_canonical(), port));
            Address { listener, pkey, network, ..address }
        }
    }

    proptest! {
        #[test]
        fn a_card_reads_as_written(ports in proptest::collection::vec(published(), 1..=MOST_PORTS)) {
            let card: Vec<u8> = ports.iter().flat_map(Address::publish).collect();
            prop_assert_eq!(Address::decode(&card), Ok(ports));
        }

        #[test]
        fn a_damaged_card_is_read_or_refused(address in published(), at in 0..PUBLISHED, byte in any::<u8>(),
                                                  len in 0..=PUBLISHED) {
            let mut card = address.publish();
            card[at] = byte;
            match Address::decode(&card[..len]) {
                Ok(read) => prop_assert_eq!(read[0].publish(), card),
                Err(reason) => prop_assert!(!reason.is_empty()),
            }
        }
    }

    #[test]
    fn a_card_of_no_port_or_of_too_many_is_refused() {
        assert!(Address::decode(&[]).is_err());
        let port = crate::subnets::tests::of(Kind::RoceV2, "10.0.0.1").publish();
        assert!(Address::decode(&port.repeat(MOST_PORTS)).is_ok());
        assert!(Address::decode(&port.repeat(MOST_PORTS + 1)).is_err());
        assert!(Address::decode(&[&port[..], &port[..9]].concat()).is_err());
        let mut older = port;
        older[0] -= 1;
        assert!(Address::decode(&older[..84]).unwrap_err().contains("version"));
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
            listener: None,
            pkey: 0,
            network: 128,
        };
        assert!(base.reaches(&Address { gid: v4(2), ..base }));
        assert!(!base.reaches(&Address { gid: v6, ..base }));
        assert!(!base.reaches(&Address { kind: Kind::RoceV1, ..base }));
        let infiniband = Address { kind: Kind::InfiniBand, ..base };
        assert!(infiniband.reaches(&Address { gid: v4(9), ..infiniband }));
        assert!(!infiniband.reaches(&Address { gid: v6, ..infiniband }));
        let [full, limited, other] = [0x8001, 0x0001, 0xffff].map(|pkey| Address { pkey, ..base });
        assert!(full.reaches(&limited) && !full.reaches(&other) && !limited.reaches(&limited));
        let listening = |text: &str| Some(text.parse().unwrap());
        assert!(!base.reaches(&Address { listener: listening("10.0.0.2:7"), ..base }), "one by datagrams, one not");
        let managed = Address { listener: listening("10.0.0.1:7"), ..infiniband };
        assert!(managed.reaches(&Address { gid: v6, ..managed }), "there may be a router");
        let iwarp = Address { kind: Kind::Iwarp, listener: listening("10.0.0.1:7"), ..base };
        assert!(iwarp.reaches(&Address { listener: listening("10.0.0.2:7"), gid: v6, ..iwarp }));
        assert!(!iwarp.reaches(&Address { listener: listening("[2001:db8::1]:7"), ..iwarp }));
    }
}
