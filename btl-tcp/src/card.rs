//! The card that a process publishes. It is little-endian and versioned, and checked byte by byte when read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cableway_btl::process::Process;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::handshake::MAX_LINKS;
use crate::wire::VERSION;

/// The largest number of addresses in a card.
const MAX_ADDRESSES: usize = 256;
const LOOPBACK: u8 = 1;
const EXPLICIT: u8 = 2;
const KNOWN_FLAGS: u8 = LOOPBACK | EXPLICIT;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CardHeader {
    version: U16,
    links: U16,
    max_message: U32,
    boot: [u8; 16],
    namespace: U64,
    port_v4: U16,
    port_v6: U16,
    addresses: U16,
    reserved: U16,
    process: Process,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CardAddress {
    interface: U32,
    megabits: U32,
    /// 4 or 6.
    family: u8,
    prefix: u8,
    flags: u8,
    reserved: u8,
    /// Network byte order. An IPv4 address uses the first four bytes.
    address: [u8; 16],
}

const _: () = {
    use memoffset::offset_of;
    assert!(size_of::<CardHeader>() == 68 && size_of::<CardAddress>() == 28);
    assert!(offset_of!(CardHeader, max_message) == 4);
    assert!(offset_of!(CardHeader, boot) == 8);
    assert!(offset_of!(CardHeader, namespace) == 24);
    assert!(offset_of!(CardHeader, port_v4) == 32);
    assert!(offset_of!(CardHeader, addresses) == 36);
    assert!(offset_of!(CardHeader, process) == 40);
    assert!(offset_of!(CardAddress, family) == 8);
    assert!(offset_of!(CardAddress, address) == 12);
};

/// Identifies the loopback interface that a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Host {
    /// The kernel's boot id.
    pub(crate) boot: [u8; 16],
    /// The network namespace.
    pub(crate) namespace: u64,
}

impl Host {
    /// True if the system identified the process's host. If not, no other process counts as being on the same host.
    pub(crate) fn is_known(&self) -> bool {
        self.boot != [0; 16] && self.namespace != 0
    }
}

/// One address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The interface's index, on its own host.
    pub(crate) interface: u32,
    pub(crate) ip: IpAddr,
    pub(crate) prefix: u8,
    pub(crate) loopback: bool,
    /// The user selected this interface or network.
    pub(crate) explicit: bool,
    /// Speed in Mb/s.
    pub(crate) megabits: u32,
}

/// A card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) host: Host,
    /// Connections per pair of interfaces.
    pub(crate) links: usize,
    /// The longest message that this process accepts.
    pub(crate) max_message: usize,
    /// 0 without a listener of that family.
    pub(crate) port_v4: u16,
    pub(crate) port_v6: u16,
    pub(crate) addresses: Vec<Address>,
    /// Identifies the process for other processes on its node.
    pub(crate) process: Process,
}

impl Card {
    pub(crate) fn port(&self, ip: IpAddr) -> u16 {
        if ip.is_ipv4() { self.port_v4 } else { self.port_v6 }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let addresses = &self.addresses[..self.addresses.len().min(MAX_ADDRESSES)];
        let header = CardHeader {
            version: U16::new(VERSION),
            links: U16::new(self.links as u16),
            max_message: U32::new(self.max_message as u32),
            boot: self.host.boot,
            namespace: U64::new(self.host.namespace),
            port_v4: U16::new(self.port_v4),
            port_v6: U16::new(self.port_v6),
            addresses: U16::new(addresses.len() as u16),
            reserved: U16::ZERO,
            process: self.process,
        };
        let mut bytes = header.as_bytes().to_vec();
        for address in addresses {
            let mut octets = [0; 16];
            let family = match address.ip {
                IpAddr::V4(ip) => {
                    octets[..4].copy_from_slice(&ip.octets());
                    4
                }
                IpAddr::V6(ip) => {
                    octets = ip.octets();
                    6
                }
            };
            let flags = if address.loopback { LOOPBACK } else { 0 } | if address.explicit { EXPLICIT } else { 0 };
            bytes.extend_from_slice(
                CardAddress {
                    interface: U32::new(address.interface),
                    megabits: U32::new(address.megabits),
                    family,
                    prefix: address.prefix,
                    flags,
                    reserved: 0,
                    address: octets,
                }
                .as_bytes(),
            );
        }
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// The card is malformed.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (header, rest) =
            CardHeader::read_from_prefix(bytes).map_err(|_| format!("{} bytes are too few", bytes.len()))?;
        if header.version.get() != VERSION {
            return Err(format!("it is of version {}, this process of {VERSION}", header.version));
        }
        if header.reserved != U16::ZERO {
            return Err(format!("its reserved field is {}", header.reserved));
        }
        let links = usize::from(header.links.get());
        if links == 0 || links > MAX_LINKS {
            return Err(format!("{links} links per interface, where 1 to {MAX_LINKS} are possible"));
        }
        if header.reserved.get() != 0 {
            return Err(format!("its reserved field holds {}", header.reserved));
        }
        let addresses = <[CardAddress]>::ref_from_bytes(rest)
            .ok()
            .filter(|addresses| addresses.len() == usize::from(header.addresses.get()))
            .ok_or_else(|| format!("{} addresses do not fit {} bytes", header.addresses, rest.len()))?;
        if addresses.len() > MAX_ADDRESSES {
            return Err(format!("{} addresses are too many", addresses.len()));
        }
        Ok(Card {
            host: Host { boot: header.boot, namespace: header.namespace.get() },
            links,
            max_message: header.max_message.get() as usize,
            port_v4: header.port_v4.get(),
            port_v6: header.port_v6.get(),
            addresses: addresses.iter().map(CardAddress::check).collect::<Result<_, _>>()?,
            process: header.process,
        })
    }
}

impl CardAddress {
    fn check(&self) -> Result<Address, String> {
        let [a, b, c, d, ref unused @ ..] = self.address;
        let (ip, longest) = match self.family {
            4 if unused.iter().all(|&byte| byte == 0) => (IpAddr::V4(Ipv4Addr::new(a, b, c, d)), 32),
            6 => (IpAddr::V6(Ipv6Addr::from(self.address)), 128),
            family => return Err(format!("an address of family {family}")),
        };
        if self.prefix > longest || self.flags & !KNOWN_FLAGS != 0 || self.reserved != 0 {
            return Err(format!("{ip} with prefix {} and flags {}", self.prefix, self.flags));
        }
        Ok(Address {
            interface: self.interface.get(),
            ip,
            prefix: self.prefix,
            loopback: self.flags & LOOPBACK != 0,
            explicit: self.flags & EXPLICIT != 0,
            megabits: self.megabits.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = Address> {
        (any::<u32>(), any::<IpAddr>(), 0u8..=32, any::<bool>(), any::<bool>(), any::<u32>()).prop_map(
            |(interface, ip, prefix, loopback, explicit, megabits)| Address {
                interface,
                ip,
                prefix,
                loopback,
                explicit,
                megabits,
            },
        )
    }

    prop_compose! {
        fn card()(boot in any::<[u8; 16]>(), namespace in any::<u64>(), links in 1usize..=64, max_message in any::<u32>(),
                  port_v4 in any::<u16>(), port_v6 in any::<u16>(), addresses in proptest::collection::vec(address(), 0..5)) -> Card {
            let (host, process) = (Host { boot, namespace }, Process::own());
            Card { host, links, max_message: max_message as usize, port_v4, port_v6, addresses, process }
        }
    }

    proptest! {
        #[test]
        fn a_card_reads_as_written(card in card()) {
            prop_assert_eq!(Card::decode(&card.encode()), Ok(card));
        }

        #[test]
        fn a_damaged_card_is_read_or_refused(card in card(), at in any::<usize>(), byte in any::<u8>(), cut in any::<usize>()) {
            let mut bytes = card.encode();
            let index = at % bytes.len();
            bytes[index] = byte;
            bytes.truncate(cut % (bytes.len() + 1));
            if let Ok(card) = Card::decode(&bytes) {
                prop_assert_eq!(card.encode(), bytes);
            }
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let (host, process) = (Host::default(), Process::default());
        let card = Card { host, links: 1, max_message: 1, port_v4: 1, port_v6: 0, addresses: vec![], process };
        let mut bytes = card.encode();
        bytes[0] = 9;
        assert!(Card::decode(&bytes).unwrap_err().contains("version 9"));
        assert!(Card::decode(&bytes[..10]).unwrap_err().contains("10 bytes"));
        let mut bytes = card.encode();
        bytes.push(0);
        assert!(Card::decode(&bytes).unwrap_err().contains("do not fit"));
        let mut bytes = card.encode();
        bytes[2] = 0;
        assert!(Card::decode(&bytes).unwrap_err().contains("0 links"));
    }
}
