//! Chooses the address (GID) of a port.
//!
//! A RoCE port has an entry (a GID) for each address of its network interface and each version of the protocol. The
//! first one is often link-local. Routers cannot reach such an address, and on soft-RoCE not even the device itself
//! can. So entries are chosen by their kind, not by their index.

use std::net::Ipv6Addr;

use crate::verbs::{Context, port_file};

/// The protocol of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// InfiniBand.
    InfiniBand,
    /// Over Ethernet frames, within one network.
    RoceV1,
    /// Over UDP.
    RoceV2,
    /// Over TCP. Peers use IP addresses instead of these entries.
    Iwarp,
}

/// An entry of a port's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) index: u8,
    pub(crate) bytes: [u8; 16],
    pub(crate) kind: Kind,
}

impl Gid {
    /// Returns a rank, of which the highest is best. Returns `None` for an unusable entry.
    fn fitness(&self) -> Option<u32> {
        let address = Ipv6Addr::from(self.bytes);
        if address.is_unspecified() {
            return None;
        }
        let link_local = address.segments()[0] & 0xffc0 == 0xfe80;
        Some(match (self.kind, address.to_ipv4_mapped()) {
            (Kind::RoceV2, Some(_)) => 5,
            (Kind::RoceV2, None) if !link_local => 4,
            (Kind::RoceV2, None) => 3,
            (Kind::RoceV1, _) => 2,
            (Kind::InfiniBand | Kind::Iwarp, _) => 1,
        })
    }

    /// Returns whether it is an IPv4 address. On RoCE v2 these reach only other IPv4 addresses.
    pub(crate) fn is_ipv4(bytes: &[u8; 16]) -> bool {
        Ipv6Addr::from(*bytes).to_ipv4_mapped().is_some()
    }
}

/// Returns the best entry, and of equal ones the first. InfiniBand ports use their first entry.
pub(crate) fn choose(table: &[Gid]) -> Option<Gid> {
    let fit = table.iter().filter_map(|gid| Some((gid.fitness()?, gid)));
    fit.max_by_key(|(fitness, gid)| (*fitness, u8::MAX - gid.index)).map(|(_, gid)| *gid)
}

/// Reads the table of a port.
pub(crate) fn table(context: &Context, port: u8, entries: u16, ethernet: bool) -> Vec<Gid> {
    let iwarp = context.is_iwarp();
    (0..entries.min(256))
        .filter_map(|index| {
            let kind = match port_file(&context.name, port, &format!("gid_attrs/types/{index}")).as_deref() {
                _ if iwarp => Kind::Iwarp,
                Some("RoCE v2") => Kind::RoceV2,
                Some("IB/RoCE v1") if ethernet => Kind::RoceV1,
                // If the kernel's files are hidden, assume that an Ethernet port uses RoCE v2.
                None if ethernet => Kind::RoceV2,
                _ if ethernet => return None,
                _ => Kind::InfiniBand,
            };
            let bytes = context.gid(port, index).ok()?;
            Some(Gid { index: index as u8, bytes, kind })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, address: &str, kind: Kind) -> Gid {
        Gid { index, bytes: address.parse::<Ipv6Addr>().unwrap().octets(), kind }
    }

    #[test]
    fn an_ipv4_address_on_v2_is_preferred_at_any_index() {
        let table = [
            gid(0, "fe80::1", Kind::RoceV1),
            gid(1, "fe80::1", Kind::RoceV2),
            gid(2, "::ffff:10.0.0.1", Kind::RoceV1),
            gid(3, "::ffff:10.0.0.1", Kind::RoceV2),
            gid(4, "2001:db8::1", Kind::RoceV2),
            gid(5, "::ffff:10.0.0.2", Kind::RoceV2),
        ];
        let best = |table: &[Gid]| choose(table).map(|gid| gid.index);
        assert_eq!(best(&table), Some(3));
        assert_eq!(best(&[table[0], table[1], table[4]]), Some(4));
        assert_eq!(best(&table[..2]), Some(1));
        assert_eq!(best(&table[..1]), Some(0));
        assert_eq!(best(&[gid(0, "::", Kind::RoceV2)]), None);
        assert_eq!(best(&[gid(0, "fe80::1", Kind::InfiniBand), gid(1, "fe80::2", Kind::InfiniBand)]), Some(0));
    }
}
