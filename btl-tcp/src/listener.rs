//! Listening sockets, and the options of connected ones.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use cableway_base::fork::Unshared;
use cableway_btl::Error;
use socket2::{Domain, Protocol, SockAddr, SockRef, TcpKeepalive, Type};

use crate::card::Address;
use crate::pairing::Route;
use crate::settings::{Settings, SocketSettings};
use crate::sys::Socket;
use crate::{NAME, sys};

/// The length of the accept queue. The system may limit it further.
const BACKLOG: i32 = 4096;

/// Returns a listening socket and its port, or `None` if no usable address has that family.
///
/// # Errors
/// No port of the range is free, or the system refuses.
pub(crate) fn listen(v6: bool, addresses: &[Address], settings: &Settings) -> Result<Option<(Socket, u16)>, Error> {
    let mut usable = addresses.iter().filter(|address| address.ip.is_ipv6() == v6).peekable();
    if usable.peek().is_none() {
        return Ok(None);
    }
    // A single address is bound. For several addresses one socket accepts all connections, and the handshake rejects
    // foreign processes.
    let any =
        if v6 { SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)) } else { SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)) };
    let ip = if usable.clone().all(|address| address.loopback) && usable.clone().count() == 1 {
        usable.next().map_or(any.ip(), |address| address.ip)
    } else {
        any.ip()
    };
    let (first, count) = settings.ports.unwrap_or((0, 1));
    let mut refused = None;
    for port in (first..=u16::MAX).take(count.into()) {
        match listen_on(SocketAddr::new(ip, port), settings) {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = Some(error),
            Err(error) => return Err(Error::system(NAME, format!("cannot listen on {ip} port {port}"), error)),
        }
    }
    let last = first.saturating_add(count.saturating_sub(1));
    let what = format!("no port from {first} to {last} is free (btl_tcp_port_min, btl_tcp_port_range)");
    Err(Error::system(NAME, what, refused.unwrap_or_else(|| io::ErrorKind::AddrInUse.into())))
}

fn listen_on(address: SocketAddr, settings: &Settings) -> io::Result<(Socket, u16)> {
    let socket = stream_socket(&address)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Buffers are set before the handshake of a connection so that its window scale fits them.
    set_buffers(&socket, &settings.socket);
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let port = socket.local_addr()?.as_socket().map_or(0, |address| address.port());
    Ok((socket, port))
}

/// Starts to connect a socket along `route`.
///
/// # Errors
/// The system refuses immediately.
pub(crate) fn connect(route: &Route, settings: &SocketSettings) -> io::Result<Socket> {
    let socket = stream_socket(&route.remote)?;
    set_options(&socket, settings);
    if is_local(route.local.ip(), route.remote.ip()) {
        spare_pacing(&socket);
    }
    // Without this option each bound connection uses up a port. Older kernels lack it.
    let _ = sys::bind_address_only(&socket);
    socket.bind(&SockAddr::from(route.local))?;
    match socket.connect(&SockAddr::from(route.remote)) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// Prepares an accepted connection in the same way.
pub(crate) fn prepare_accepted(socket: &Socket, from: Option<SocketAddr>, settings: &SocketSettings) {
    set_options(socket, settings);
    let here = socket.local_addr().ok().and_then(|address| address.as_socket());
    if let (Some(here), Some(there)) = (here, from)
        && is_local(here.ip(), there.ip())
    {
        spare_pacing(socket);
    }
}

/// Returns whether a connection stays within this host.
fn is_local(here: IpAddr, there: IpAddr) -> bool {
    here == there || here.is_loopback()
}

/// Within a host there is no congestion. Pacing algorithms such as BBR only cost time: 512 KiB messages reach 7.7 GB/s
/// with Reno and 4.5 GB/s with BBR. Every process may select Reno.
fn spare_pacing(socket: &Socket) {
    if let Err(error) = socket.set_tcp_congestion(b"reno") {
        log::debug!("{NAME}: TCP_CONGESTION: {error}");
    }
}

fn stream_socket(address: &SocketAddr) -> io::Result<Socket> {
    let domain = if address.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
    Unshared::open(|| socket2::Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP)))
}

/// Sets the options of a connection. Ignores options that the system refuses.
fn set_options(socket: &Socket, settings: &SocketSettings) {
    set_buffers(socket, settings);
    let granted = [
        ("TCP_NODELAY", socket.set_tcp_nodelay(settings.nodelay)),
        ("SO_KEEPALIVE", SockRef::from(socket).set_tcp_keepalive(&keepalive(settings.peer_timeout))),
    ];
    for (option, result) in granted {
        if let Err(error) = result {
            log::debug!("{NAME}: {option}: {error}");
        }
    }
    // Limits the pauses between retransmissions and probes, so that neither a lossy network nor a peer that does not
    // read makes them exceed the limit in `watch`. Before Linux 6.15, which lacks the option, a dead peer may be
    // detected later.
    let _ = sys::set_longest_pause(socket, settings.peer_timeout / 8);
}

fn set_buffers(socket: &Socket, settings: &SocketSettings) {
    let set = |name: &str, size: usize, result: io::Result<()>| {
        if let Err(error) = result {
            cableway_base::warn_once(&format!("{NAME}/{name}"), || format!("{NAME}: {name} of {size} bytes: {error}"));
        }
    };
    if settings.send_buffer != 0 {
        set("btl_tcp_sndbuf", settings.send_buffer, socket.set_send_buffer_size(settings.send_buffer));
    }
    if settings.receive_buffer != 0 {
        set("btl_tcp_rcvbuf", settings.receive_buffer, socket.set_recv_buffer_size(settings.receive_buffer));
    }
}

/// The probes begin early enough to detect an idle connection's death within the timeout. The kernel counts seconds,
/// and gives up well after `watch` does.
fn keepalive(peer_timeout: Duration) -> TcpKeepalive {
    let second = Duration::from_secs(1);
    TcpKeepalive::new()
        .with_time((peer_timeout / 4).max(second))
        .with_interval((peer_timeout / 8).max(second))
        .with_retries(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_the_options_that_were_asked_for() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let peer_timeout = Duration::from_secs(16);
        for (nodelay, send_buffer, receive_buffer) in [(true, 64 << 10, 32 << 10), (false, 32 << 10, 64 << 10)] {
            let socket = stream_socket(&address).unwrap();
            set_options(&socket, &SocketSettings { nodelay, send_buffer, receive_buffer, peer_timeout });
            assert_eq!(socket.tcp_nodelay().unwrap(), nodelay);
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), peer_timeout / 4);
            // The kernel doubles the requested size for its own overhead.
            assert_eq!(socket.send_buffer_size().unwrap(), 2 * send_buffer);
            assert_eq!(socket.recv_buffer_size().unwrap(), 2 * receive_buffer);
        }
        let (system, ours) = (stream_socket(&address).unwrap(), stream_socket(&address).unwrap());
        set_options(&ours, &SocketSettings { nodelay: true, send_buffer: 0, receive_buffer: 0, peer_timeout });
        assert_eq!(ours.send_buffer_size().unwrap(), system.send_buffer_size().unwrap());
        assert_eq!(ours.recv_buffer_size().unwrap(), system.recv_buffer_size().unwrap());
    }
}
