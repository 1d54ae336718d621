//! Queries the kernel's routes by rtnetlink(7). RoCE over UDP and iWARP over TCP follow IP routes, but only through
//! their port's own interface.

use std::net::IpAddr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How an interface reaches an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Nowhere,
    /// Within its own network.
    Direct,
    /// Across a router.
    Routed,
}

/// `struct nlmsghdr` of `linux/netlink.h`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    len: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
}

/// `struct rtmsg` of `linux/rtnetlink.h`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Message {
    family: u8,
    to_bits: u8,
    from_bits: u8,
    service: u8,
    table: u8,
    protocol: u8,
    scope: u8,
    kind: u8,
    flags: u32,
}

/// `struct rtattr`, before its value. The next one begins at a multiple of four.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Attribute {
    len: u16,
    kind: u16,
}

const ERROR: u16 = 2;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const TO: u16 = 1;
const FROM: u16 = 2;
const INTERFACE: u16 = 4;
const GATEWAY: u16 = 5;
const VIA: u16 = 18;

/// Returns how `interface` reaches `to` from its address `from`. Returns `None` if that is unknown, for example because
/// the interface is in another network namespace.
pub(crate) fn route(interface: &str, from: IpAddr, to: IpAddr) -> Option<Route> {
    if from.is_ipv4() != to.is_ipv4() {
        return None;
    }
    let flags = SocketFlags::CLOEXEC;
    // NETLINK_ROUTE is protocol 0.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).ok()?;
    let index = netdevice::name_to_index(&socket, interface).ok()?;
    rustix::net::send(&socket, &question(index, from, to), SendFlags::empty()).ok()?;
    // The kernel has answered by now.
    let mut answer = [0; 4096];
    let (_, len) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
    read(answer.get(..len)?, index)
}

fn question(interface: u32, from: IpAddr, to: IpAddr) -> Vec<u8> {
    const REQUEST: u16 = 1;
    /// Only a matching entry of a table counts, not the kernel's fallback, which searches for the address on the
    /// network.
    const ENTRY: u32 = 0x2000;
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let [from, to] = [octets(from), octets(to)];
    let family = if to.len() == 4 { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let bits = 8 * to.len() as u8;
    let (service, table, protocol, scope, kind) = (0, 0, 0, 0, 0);
    let message =
        Message { family, to_bits: bits, from_bits: bits, service, table, protocol, scope, kind, flags: ENTRY };
    let mut body = message.as_bytes().to_vec();
    for (kind, value) in [(TO, &to[..]), (FROM, &from[..]), (INTERFACE, &interface.to_ne_bytes()[..])] {
        let attribute = Attribute { len: (size_of::<Attribute>() + value.len()) as u16, kind };
        body.extend_from_slice(attribute.as_bytes());
        body.extend_from_slice(value);
    }
    let len = (size_of::<Header>() + body.len()) as u32;
    let header = Header { len, kind: GET_ROUTE, flags: REQUEST, sequence: 1, port: 0 };
    [header.as_bytes(), &body].concat()
}

fn read(answer: &[u8], interface: u32) -> Option<Route> {
    const ORDINARY: u8 = 1;
    const OWN: u8 = 2;
    let (header, body) = Header::read_from_prefix(answer).ok()?;
    match header.kind {
        ERROR => {
            let (code, _) = i32::read_from_prefix(body).ok()?;
            let none = [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::ACCESS];
            none.contains(&Errno::from_raw_os_error(code.checked_neg()?)).then_some(Route::Nowhere)
        }
        NEW_ROUTE => {
            let (message, mut rest) = Message::read_from_prefix(body).ok()?;
            if !matches!(message.kind, ORDINARY | OWN) {
                return Some(Route::Nowhere);
            }
            let mut route = Route::Direct;
            while let Ok((attribute, value)) = Attribute::read_from_prefix(rest) {
                let len = usize::from(attribute.len);
                let value = value.get(..len.checked_sub(size_of::<Attribute>())?)?;
                match attribute.kind {
                    // With IPv6 the route may use another interface.
                    INTERFACE if value != interface.to_ne_bytes() => return Some(Route::Nowhere),
                    GATEWAY | VIA => route = Route::Routed,
                    _ => {}
                }
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            }
            Some(route)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_interface_reaches_the_networks_of_its_routes() {
        let own = ip("127.0.0.1");
        assert_eq!(route("lo", own, own), Some(Route::Direct));
        assert_eq!(route("lo", own, ip("127.1.2.3")), Some(Route::Direct));
        // A documentation address. Any route to it uses another interface.
        assert_eq!(route("lo", own, ip("198.51.100.7")), Some(Route::Nowhere));
        assert_eq!(route("no such", own, own), None);
        assert_eq!(route("lo", own, ip("::1")), None);
    }

    fn answer(kind: u16, route: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = question(7, ip("10.0.0.1"), ip("10.0.0.2"));
        bytes.truncate(size_of::<Header>() + size_of::<Message>());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[size_of::<Header>() + 7] = route;
        for (kind, value) in attributes {
            bytes.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn answers_are_read() {
        let seven = 7_u32.to_ne_bytes();
        assert_eq!(read(&answer(NEW_ROUTE, 1, &[(INTERFACE, &seven)]), 7), Some(Route::Direct));
        assert_eq!(read(&answer(NEW_ROUTE, 1, &[(INTERFACE, &seven)]), 8), Some(Route::Nowhere));
        assert_eq!(read(&answer(NEW_ROUTE, 1, &[(20, &[0]), (GATEWAY, &[9; 4])]), 7), Some(Route::Routed));
        assert_eq!(read(&answer(NEW_ROUTE, 7, &[(INTERFACE, &seven)]), 7), Some(Route::Nowhere), "marked unreachable");
        let error = |code: i32| [&answer(ERROR, 0, &[])[..size_of::<Header>()], &code.to_ne_bytes()[..]].concat();
        assert_eq!(read(&error(-113), 7), Some(Route::Nowhere));
        assert_eq!((read(&error(-22), 7), read(&error(i32::MIN), 7)), (None, None), "an old kernel");
    }

    proptest! {
        #[test]
        fn any_answer_is_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            read(&bytes, 7);
            read(&[&answer(NEW_ROUTE, 1, &[])[..], &bytes[..]].concat(), 7);
        }
    }
}
