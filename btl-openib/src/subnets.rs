//! Decides whether a route leads from this process's port to a peer's port.
//!
//! InfiniBand ports of one subnet have the same upper half of their addresses. RoCE over UDP and iWARP follow IP
//! routes, so the kernel must have a route through the port's own interface. RoCE over Ethernet has no routers.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

use crate::card::Address;
use crate::gid::Kind;
use crate::port::Port;
use crate::routes::{Route, route};
use crate::verbs::port_file;

/// Returns the interface of `port` with the address `own`, or `None` if there is none or it is unknown.
pub(crate) fn interface(port: &Port, own: &Address) -> Option<String> {
    match own.kind {
        Kind::InfiniBand => None,
        Kind::RoceV1 | Kind::RoceV2 => {
            port_file(&port.context.name, port.facts.number, &format!("gid_attrs/ndevs/{}", port.gid.index))
        }
        Kind::Iwarp => {
            let ip = own.ip();
            let named = getifaddrs().ok()?.find(|interface| {
                interface.address.is_some_and(|storage| match ip {
                    IpAddr::V4(ip) => storage.as_sockaddr_in().is_some_and(|address| address.ip() == ip),
                    IpAddr::V6(ip) => storage.as_sockaddr_in6().is_some_and(|address| address.ip() == ip),
                })
            });
            named.map(|interface| interface.interface_name)
        }
    }
}

/// Returns whether the network leads from `own`, through its `interface`, to `peer`, as far as is known.
pub(crate) fn lead(own: &Address, interface: Option<&str>, peer: &Address) -> bool {
    if own.kind == Kind::InfiniBand {
        return own.subnet() == peer.subnet();
    }
    let (from, to) = (own.ip(), peer.ip());
    // Every network has link-local addresses.
    if is_link_local(from) && is_link_local(to) {
        return true;
    }
    match interface.and_then(|interface| route(interface, from, to)) {
        None | Some(Route::Direct) => true,
        Some(Route::Routed) => own.kind != Kind::RoceV1,
        Some(Route::Nowhere) => false,
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use cableway_btl::process::Process;

    /// Returns a port with that address.
    pub(crate) fn of(kind: Kind, ip: &str) -> Address {
        let ip: IpAddr = ip.parse().unwrap();
        let gid = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let listener = (kind == Kind::Iwarp).then_some((ip, 7).into());
        Address {
            mtu: 3,
            kind,
            lid: 1,
            reads: 1,
            queues: 1,
            gid: if kind == Kind::Iwarp { [9; 16] } else { gid },
            datagrams: 1,
            datagram_key: 2,
            max_message: 4096,
            process: Process::default(),
            listener,
            pkey: 0,
            network: 128,
        }
    }

    #[test]
    fn ip_peers_are_reached_along_routes() {
        for kind in [Kind::RoceV1, Kind::RoceV2, Kind::Iwarp] {
            let leads = |interface: Option<&str>, to: &str| lead(&of(kind, "127.0.0.1"), interface, &of(kind, to));
            assert!(leads(Some("lo"), "127.0.0.1") && leads(Some("lo"), "127.1.2.3"));
            assert!(!leads(Some("lo"), "198.51.100.7"), "{kind:?}");
            // The interface is unknown.
            assert!(leads(None, "198.51.100.7") && leads(Some("no such"), "198.51.100.7"));
            assert!(lead(&of(kind, "fe80::1"), Some("lo"), &of(kind, "fe80::2")));
        }
    }

    #[test]
    fn infiniband_reaches_only_its_subnet() {
        let [own, same, other] = ["fe80::1", "fe80::2", "fec0::2"].map(|ip| of(Kind::InfiniBand, ip));
        assert!(lead(&own, None, &same) && !lead(&own, None, &other));
    }
}
