//! The librdmacm listener for connection requests.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nix::ifaddrs::getifaddrs;

use crate::NAME;
use crate::port::Port;
use crate::settings::Settings;
use crate::verbs::{Events, Id};

/// Listens for connection requests.
pub(super) struct Listener {
    pub(super) id: Id,
    pub(super) events: Arc<Events>,
    address: SocketAddr,
}

impl Listener {
    /// Listens at the first address of this host that belongs to the port, preferably IPv4.
    ///
    /// # Errors
    /// The port has no address, or librdmacm is missing.
    pub(super) fn open(port: &Port, settings: &Settings) -> Result<Self, String> {
        let events = Events::new()?;
        let partition = (!port.context.is_iwarp()).then_some(port.partition.index);
        let service = settings.type_of_service(port.gid.kind);
        let mut tried = Vec::new();
        for ip in addresses() {
            match Id::listen(&events, &port.context.name, port.facts.number, partition, ip, service) {
                Ok((id, address)) => {
                    log::debug!("{NAME}: {} listens for connections at {address}", port.context.name);
                    return Ok(Listener { id, address, events });
                }
                Err(error) => tried.push(format!("{ip}: {error}")),
            }
        }
        let (name, number) = (&port.context.name, port.facts.number);
        Err(format!(
            "no IP address of this host belongs to {name} port {number} in its partition ({})",
            tried.join("; ")
        ))
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Lists the addresses of this host that other hosts may reach.
fn addresses() -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = getifaddrs()
        .into_iter()
        .flatten()
        .filter_map(|interface| {
            let storage = interface.address?;
            let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        })
        .filter(|ip| match ip {
            IpAddr::V4(ip) => !ip.is_loopback(),
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        })
        .collect();
    found.sort();
    found.dedup();
    found
}
