//! Pairs the own addresses with a peer's. The result is symmetric, so that both ends give a link the same number.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use crate::card::{Address, Card};
use crate::handshake::MAX_LINKS;
use crate::interfaces::same_network;

/// A route: bind to `local`, connect to `remote`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) loopback: bool,
    /// The speed of the slower end.
    pub(crate) megabits: u32,
}

/// The quality of a pair of addresses; the least is the best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Quality {
    Loopback,
    SameNetwork,
    LinkLocal,
    Routed,
}

/// Returns the routes between two processes, the best first, at most one for each interface of either end. Each route
/// has one or several links. Returns none if no addresses match.
pub(crate) fn routes(ours: &Card, theirs: &Card) -> Vec<Route> {
    let same_host = ours.host == theirs.host && ours.host.is_known();
    let mut pairs: Vec<_> = ours
        .addresses
        .iter()
        .flat_map(|a| theirs.addresses.iter().map(move |b| (a, b)))
        .filter(|(a, b)| ours.port(a.ip) != 0 && theirs.port(b.ip) != 0)
        .filter_map(|(a, b)| Some((quality(a, b, same_host)?, a, b)))
        .collect();
    // The key does not depend on which end is the own one, so both ends sort alike.
    pairs.sort_by_key(|(quality, a, b)| (*quality, a.ip.is_ipv6(), a.ip.min(b.ip), a.ip.max(b.ip)));
    // All traffic between processes of one host uses the loopback device, whatever the address. Routes across routers
    // are used only if there is no common network.
    let best = pairs.first().map(|(quality, ..)| *quality);
    pairs.retain(|(quality, ..)| match best {
        Some(Quality::Loopback) => *quality == Quality::Loopback,
        Some(Quality::SameNetwork | Quality::LinkLocal) => *quality < Quality::Routed,
        _ => true,
    });
    let (mut used_here, mut used_there) = (Vec::new(), Vec::new());
    let mut routes = Vec::new();
    for (_, a, b) in pairs {
        if used_here.contains(&a.interface) || used_there.contains(&b.interface) {
            continue;
        }
        used_here.push(a.interface);
        used_there.push(b.interface);
        routes.push(Route {
            local: endpoint(a.ip, 0, a.interface),
            remote: endpoint(b.ip, theirs.port(b.ip), a.interface),
            loopback: a.loopback,
            megabits: a.megabits.min(b.megabits),
        });
    }
    routes
}

/// Returns the number of connections over each route, from the wishes of both ends.
pub(crate) fn links_per_route(ours: &Card, theirs: &Card, routes: usize) -> usize {
    ours.links.min(theirs.links).min(MAX_LINKS / routes.max(1)).max(1)
}

/// Returns `None` if the two addresses cannot connect.
fn quality(a: &Address, b: &Address, same_host: bool) -> Option<Quality> {
    if a.ip.is_ipv4() != b.ip.is_ipv4() || a.loopback != b.loopback {
        return None;
    }
    if a.loopback {
        let reachable = same_host || (a.explicit && b.explicit);
        return (reachable && same_network(a.ip, b.ip, a.prefix)).then_some(Quality::Loopback);
    }
    // Two hosts with the same address: each has a bridge for its own containers. A connection would reach the own
    // listener.
    if !same_host && a.ip == b.ip {
        return None;
    }
    let link_local = is_link_local(a.ip);
    if link_local != is_link_local(b.ip) {
        return None;
    }
    // The common prefix. Equal networks are equal at both ends.
    let shared = a.prefix == b.prefix && same_network(a.ip, b.ip, a.prefix);
    match (link_local, shared) {
        (true, true) => Some(Quality::LinkLocal),
        (true, false) => None,
        (false, true) => Some(Quality::SameNetwork),
        (false, false) => Some(Quality::Routed),
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// A link-local address needs the own interface's scope, at both ends of the own side of the connection.
fn endpoint(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if is_link_local(ip) => SocketAddrV6::new(v6, port, 0, interface).into(),
        _ => SocketAddr::new(ip, port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::Host;

    fn card(namespace: u64, addresses: &[(u32, &str, u8)]) -> Card {
        Card {
            host: Host { boot: [1; 16], namespace },
            process: cableway_btl::process::Process::default(),
            links: 2,
            max_message: 1 << 20,
            port_v4: 4000 + namespace as u16,
            port_v6: 6000 + namespace as u16,
            addresses: addresses
                .iter()
                .map(|&(interface, ip, prefix)| {
                    let ip: IpAddr = ip.parse().unwrap();
                    Address {
                        interface,
                        ip,
                        prefix,
                        loopback: ip.is_loopback(),
                        explicit: false,
                        megabits: 100 * interface,
                    }
                })
                .collect(),
        }
    }

    /// Returns the routes as (own address, peer's address), and checks that the peer finds the mirror image.
    fn pairs(a: &Card, b: &Card) -> Vec<(String, String)> {
        let here = routes(a, b);
        let there = routes(b, a);
        assert_eq!(here.len(), there.len());
        for (ours, theirs) in here.iter().zip(&there) {
            assert_eq!((ours.local.ip(), ours.remote.ip()), (theirs.remote.ip(), theirs.local.ip()));
            assert_eq!(ours.megabits, theirs.megabits);
            assert_eq!(ours.remote.port(), b.port(ours.remote.ip()));
        }
        here.iter().map(|route| (route.local.ip().to_string(), route.remote.ip().to_string())).collect()
    }

    fn expect(found: &[(String, String)], wanted: &[(&str, &str)]) {
        let found: Vec<_> = found.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn interfaces_of_one_network_are_paired() {
        let a = card(1, &[(1, "127.0.0.1", 8), (2, "10.0.0.1", 24), (3, "10.0.1.1", 24), (2, "fd00::1", 64)]);
        let b = card(2, &[(1, "127.0.0.1", 8), (7, "10.0.1.2", 24), (9, "10.0.0.2", 24), (9, "fd00::2", 64)]);
        expect(&pairs(&a, &b), &[("10.0.0.1", "10.0.0.2"), ("10.0.1.1", "10.0.1.2")]);
    }

    #[test]
    fn one_host_takes_its_loopback_interface() {
        let a = card(1, &[(1, "127.0.0.1", 8), (1, "::1", 128), (2, "10.0.0.1", 24)]);
        expect(&pairs(&a, &a), &[("127.0.0.1", "127.0.0.1")]);
        let without = card(1, &[(2, "10.0.0.1", 24)]);
        expect(&pairs(&without, &without), &[("10.0.0.1", "10.0.0.1")]);
    }

    #[test]
    fn loopback_addresses_reach_only_the_same_host() {
        let (mut a, mut b) = (card(1, &[(1, "127.0.0.1", 8)]), card(2, &[(1, "127.0.0.1", 8)]));
        expect(&pairs(&a, &b), &[]);
        a.addresses[0].explicit = true;
        expect(&pairs(&a, &b), &[]);
        b.addresses[0].explicit = true;
        expect(&pairs(&a, &b), &[("127.0.0.1", "127.0.0.1")]);
    }

    #[test]
    fn a_bridge_that_both_hosts_have_is_no_route() {
        let a = card(1, &[(2, "10.0.0.1", 24), (3, "172.17.0.1", 16)]);
        let b = card(2, &[(2, "10.0.5.1", 24), (3, "172.17.0.1", 16)]);
        expect(&pairs(&a, &b), &[("10.0.0.1", "10.0.5.1")]);
    }

    #[test]
    fn link_local_addresses_carry_our_scope() {
        let a = card(1, &[(4, "fe80::1", 64)]);
        let b = card(2, &[(5, "fe80::2", 64)]);
        let route = routes(&a, &b)[0];
        assert_eq!(route.remote.to_string(), "[fe80::2%4]:6002");
        assert_eq!(routes(&b, &a)[0].remote.to_string(), "[fe80::1%5]:6001");
    }

    #[test]
    fn without_a_listener_there_is_no_route() {
        let a = card(1, &[(2, "10.0.0.1", 24)]);
        let mut b = card(2, &[(2, "10.0.0.2", 24)]);
        b.port_v4 = 0;
        expect(&pairs(&a, &b), &[]);
    }

    #[test]
    fn the_smaller_number_of_links_is_used() {
        let (mut a, b) = (card(1, &[]), card(2, &[]));
        assert_eq!(links_per_route(&a, &b, 2), 2);
        a.links = 64;
        assert_eq!(links_per_route(&a, &b, 2), 2);
        assert_eq!(links_per_route(&a, &a, 4), 16);
    }
}
