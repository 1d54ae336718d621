//! Pairs the ports of two processes by their networks.
//!
//! A process publishes all of its ports in one card. Both processes compute the pairs from both cards by the same rule.
//! So they agree on the pairs and on the best one, whatever other ports either process has. Ports of one network are
//! paired first. Routers may connect the remaining ports. They are paired by the longest common part of their
//! addresses, as ports of one rail have.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};

use nix::ifaddrs::getifaddrs;

use crate::card::Address;
use crate::gid::Kind;

/// The common part of the addresses of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    kind: Kind,
    /// An address in it: the port's address, with IPv4 mapped to IPv6.
    address: u128,
    /// The length of the network's prefix in bits.
    bits: u8,
}

impl Network {
    /// The network of a subnet prefix, the upper half of addresses.
    const INFINIBAND: u8 = 64;

    /// Returns the network of this host's port with this address.
    pub(crate) fn of_port(kind: Kind, gid: [u8; 16]) -> Self {
        let address = Ipv6Addr::from(gid);
        let bits = match kind {
            Kind::InfiniBand => Self::INFINIBAND,
            Kind::RoceV1 | Kind::RoceV2 => bits_of(address.to_canonical()),
            // iWARP uses IP addresses and has no GID.
            Kind::Iwarp => 128,
        };
        Network { kind, address: address.to_bits(), bits }
    }

    /// Reads a network from a card.
    fn of(address: &Address) -> Self {
        let ip = address.ip();
        let bits = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Network { kind: address.kind, address: bits.to_bits(), bits: address.network }
    }

    pub(crate) fn is(&self, other: &Network) -> bool {
        self.kind == other.kind && self.common(other) == self.bits.min(other.bits)
    }

    /// Counts the leading bits that both addresses have in common, up to the longest possible prefix.
    fn common(&self, other: &Network) -> u8 {
        let equal = (self.address ^ other.address).leading_zeros() as u8;
        equal.min(self.bits).min(other.bits)
    }

    pub(crate) fn bits(&self) -> u8 {
        self.bits
    }
}

/// Returns the prefix length of this host's address, in IPv6 bits. Returns the full length if the host does not know
/// it.
pub(crate) fn bits_of(ip: IpAddr) -> u8 {
    // Every link-local network has this prefix.
    if matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
        return Network::INFINIBAND;
    }
    let mask = getifaddrs().into_iter().flatten().find_map(|interface| {
        let (address, mask) = (interface.address?, interface.netmask?);
        match ip {
            IpAddr::V4(ip) if address.as_sockaddr_in()?.ip() == ip => {
                Some(96 + mask.as_sockaddr_in()?.ip().to_bits().leading_ones())
            }
            IpAddr::V6(ip) if address.as_sockaddr_in6()?.ip() == ip => {
                Some(mask.as_sockaddr_in6()?.ip().to_bits().leading_ones())
            }
            _ => None,
        }
    });
    mask.map_or(128, |bits| bits as u8)
}

/// Returns the peer's port that talks to the port of `ours` at `own`, and the number of better pairs. Both processes
/// get the same pair if exactly one of them `decides`.
pub(crate) fn partner<'p>(
    ours: &[Address],
    own: usize,
    theirs: &'p [Address],
    decides: bool,
) -> Option<(u8, &'p Address)> {
    let pairs = if decides { pair(ours, theirs) } else { pair(theirs, ours) };
    let mut pairs = pairs.into_iter().map(|(i, j)| if decides { (i, j) } else { (j, i) }).zip(0..=u8::MAX);
    pairs.find_map(|((i, j), place)| (i == own).then_some((place, &theirs[j])))
}

/// Pairs ports of two processes, the best pair first. Each process lists its ports from the nearest on, and pairs of
/// ports that are near to both processes come first. Both processes get the same list if they agree on which of them is
/// the first.
fn pair(first: &[Address], second: &[Address]) -> Vec<(usize, usize)> {
    let mut candidates = Vec::new();
    for (i, a) in first.iter().enumerate() {
        for (j, b) in second.iter().enumerate().filter(|(_, b)| a.reaches(b)) {
            let (own, other) = (Network::of(a), Network::of(b));
            candidates.push((!own.is(&other), Reverse(own.common(&other)), i + j, i, j));
        }
    }
    candidates.sort_unstable();
    let mut pairs: Vec<(bool, usize, usize, usize)> = Vec::new();
    for (routed, _, distance, i, j) in candidates {
        if pairs.iter().all(|pair| pair.2 != i && pair.3 != j) {
            pairs.push((routed, distance, i, j));
        }
    }
    pairs.sort_unstable();
    pairs.into_iter().map(|(_, _, i, j)| (i, j)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::subnets::tests::of;

    /// Makes RoCE v2 ports from addresses and prefix lengths.
    fn ports(list: &[(&str, u8)]) -> Vec<Address> {
        list.iter().map(|&(ip, bits)| Address { network: 96 + bits, ..of(Kind::RoceV2, ip) }).collect()
    }

    #[test]
    fn ports_of_one_network_are_paired_in_any_order() {
        let here = ports(&[("10.1.0.1", 16), ("10.2.0.1", 16)]);
        assert_eq!(pair(&here, &ports(&[("10.1.0.2", 16), ("10.2.0.2", 16)])), [(0, 0), (1, 1)]);
        assert_eq!(pair(&here, &ports(&[("10.2.0.2", 16), ("10.1.0.2", 16)])), [(0, 1), (1, 0)]);
        assert_eq!(pair(&here, &ports(&[("10.2.0.2", 16)])), [(1, 0)], "the peer has only the second network");
        assert_eq!(pair(&here[..1], &ports(&[("10.2.0.2", 16), ("10.1.0.2", 16)])), [(0, 1)]);
        assert_eq!(pair(&here, &[]), []);
    }

    #[test]
    fn the_best_is_near_to_both() {
        let here = ports(&[("10.1.0.1", 16), ("10.2.0.1", 16), ("10.3.0.1", 16)]);
        let there = ports(&[("10.3.0.2", 16), ("10.2.0.2", 16), ("10.1.0.2", 16)]);
        assert_eq!(pair(&here, &there), [(0, 2), (1, 1), (2, 0)]);
        let there = ports(&[("10.2.0.2", 16), ("10.3.0.2", 16), ("10.1.0.2", 16)]);
        assert_eq!(pair(&here, &there), [(1, 0), (0, 2), (2, 1)]);
    }

    #[test]
    fn ports_on_routed_networks_are_paired_by_nearness() {
        // Each port is on a different network.
        let here = ports(&[("10.2.1.5", 31), ("10.1.1.5", 31)]);
        assert_eq!(pair(&here, &ports(&[("10.1.7.9", 31), ("10.2.7.9", 31)])), [(0, 1), (1, 0)]);
        assert_eq!(pair(&ports(&[("10.79.0.1", 32)]), &ports(&[("10.79.0.2", 32)])), [(0, 0)]);
        // The common network comes before the nearer ports.
        let both = (ports(&[("10.1.0.1", 24), ("10.2.0.1", 24)]), ports(&[("10.9.0.1", 24), ("10.2.0.2", 24)]));
        assert_eq!(pair(&both.0, &both.1), [(1, 1), (0, 0)]);
    }

    #[test]
    fn infiniband_is_one_network_by_its_subnet() {
        let of = |text: &str| Address { network: 64, ..of(Kind::InfiniBand, text) };
        let here = [of("fe80::1:1"), of("fec0::1:2")];
        assert_eq!(pair(&here, &[of("fec0::1"), of("fec0::2"), of("fe80::3")]), [(1, 0), (0, 2)]);
        let network = |ip: &str| Network::of_port(Kind::InfiniBand, ip.parse::<Ipv6Addr>().unwrap().octets());
        assert!(network("fe80::1").is(&network("fe80::2")) && !network("fe80::1").is(&network("fec0::1")));
    }

    #[test]
    fn this_host_knows_its_networks() {
        assert_eq!(bits_of("127.0.0.1".parse().unwrap()), 96 + 8);
        assert_eq!(bits_of("198.51.100.7".parse().unwrap()), 128);
        assert_eq!(bits_of("fe80::1".parse().unwrap()), 64);
    }

    prop_compose! {
        fn port()(kind in 0..3, ip in any::<[u8; 4]>(), near in any::<bool>(), bits in 0u8..=32, listens in any::<bool>())
            -> Address {
            let ip = if near { [10, ip[1] & 1, 0, ip[3] & 3] } else { ip };
            let address = of([Kind::InfiniBand, Kind::RoceV2, Kind::Iwarp][kind as usize], &IpAddr::from(ip).to_string());
            let listener = address.listener.or_else(|| listens.then(|| "10.0.0.1:7".parse().unwrap()));
            Address { network: 96 + bits, listener, ..address }
        }
    }

    proptest! {
        #[test]
        fn both_ends_agree(ours in prop::collection::vec(port(), 1..5), theirs in prop::collection::vec(port(), 1..5),
                           decides in any::<bool>()) {
            for own in 0..ours.len() {
                let Some((place, other)) = partner(&ours, own, &theirs, decides) else { continue };
                let other = (0..theirs.len()).find(|&at| std::ptr::eq(other, &theirs[at])).unwrap();
                let (same, back) = partner(&theirs, other, &ours, !decides).unwrap();
                prop_assert_eq!((same, std::ptr::eq(back, &ours[own])), (place, true));
            }
        }

        #[test]
        fn no_port_is_in_two_pairs(first in prop::collection::vec(port(), 0..5), second in prop::collection::vec(port(), 0..5)) {
            let pairs = pair(&first, &second);
            for (at, (i, j)) in pairs.iter().enumerate() {
                prop_assert!(first[*i].reaches(&second[*j]) && second[*j].reaches(&first[*i]));
                prop_assert!(pairs[..at].iter().all(|other| other.0 != *i && other.1 != *j));
            }
            // No two unpaired ports could talk to each other.
            for (i, a) in first.iter().enumerate().filter(|(i, _)| pairs.iter().all(|pair| pair.0 != *i)) {
                for (j, b) in second.iter().enumerate().filter(|(j, _)| pairs.iter().all(|pair| pair.1 != *j)) {
                    prop_assert!(!a.reaches(b), "{i} and {j}");
                }
            }
        }
    }
}
