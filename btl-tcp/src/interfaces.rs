//! The addresses of this host that connections may use.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cableway_base::parameters::Families;
use cableway_base::{nearest, warn_once};
use cableway_btl::Error;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_nametoindex};

use crate::card::Address;
use crate::settings::Settings;
use crate::{NAME, invalid};

/// The speed in Mb/s of interfaces without a known speed: an ordinary network.
const UNKNOWN_MEGABITS: u32 = 10_000;
/// The speed of the loopback interface, which only the processor limits.
const LOOPBACK_MEGABITS: u32 = 60_000;

/// An address and the name of its interface.
struct Candidate {
    name: String,
    address: Address,
}

/// Lists the addresses that the settings allow, interface by interface.
///
/// # Errors
/// An entry of a list is neither a name nor a network, or the system cannot list its addresses.
pub(crate) fn usable(settings: &Settings) -> Result<Vec<Address>, Error> {
    let candidates: Vec<Candidate> = getifaddrs()
        .map_err(|errno| Error::system(NAME, "cannot list the network interfaces", errno.into()))?
        .filter_map(|found| candidate(&found))
        .collect();
    select(candidates, settings)
}

fn candidate(found: &InterfaceAddress) -> Option<Candidate> {
    if !found.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING) {
        return None;
    }
    let storage = found.address.as_ref()?;
    let mask = found.netmask.as_ref();
    let (ip, prefix) = if let Some(address) = storage.as_sockaddr_in() {
        let mask = mask.and_then(|mask| mask.as_sockaddr_in()).map_or(32, |mask| u32::from(mask.ip()).leading_ones());
        (IpAddr::V4(address.ip()), mask)
    } else {
        let address = storage.as_sockaddr_in6()?;
        let mask =
            mask.and_then(|mask| mask.as_sockaddr_in6()).map_or(128, |mask| u128::from(mask.ip()).leading_ones());
        (IpAddr::V6(address.ip()), mask)
    };
    let loopback = found.flags.contains(InterfaceFlags::IFF_LOOPBACK);
    let interface = if_nametoindex(found.interface_name.as_str()).ok()?;
    Some(Candidate {
        address: Address {
            interface,
            ip,
            prefix: prefix as u8,
            loopback,
            explicit: false,
            megabits: megabits(&found.interface_name, loopback),
        },
        name: found.interface_name.clone(),
    })
}

/// Reads the speed from the driver. Virtual interfaces have none, or -1.
fn megabits(name: &str, loopback: bool) -> u32 {
    if loopback {
        return LOOPBACK_MEGABITS;
    }
    std::fs::read_to_string(format!("/sys/class/net/{name}/speed"))
        .ok()
        .and_then(|speed| speed.trim().parse().ok())
        .filter(|&speed| speed > 0)
        .unwrap_or(UNKNOWN_MEGABITS)
}

fn select(candidates: Vec<Candidate>, settings: &Settings) -> Result<Vec<Address>, Error> {
    let include = rules("btl_tcp_if_include", &settings.include, &candidates)?;
    let exclude = rules("btl_tcp_if_exclude", &settings.exclude, &candidates)?;
    let mut usable: Vec<Address> = candidates
        .iter()
        .filter(|candidate| match settings.families {
            Families::Both => true,
            Families::Ipv4 => candidate.address.ip.is_ipv4(),
            Families::Ipv6 => candidate.address.ip.is_ipv6(),
        })
        .filter(|candidate| !exclude.iter().any(|rule| rule.covers(candidate)))
        .filter_map(|candidate| {
            let explicit = include.iter().any(|rule| rule.covers(candidate));
            (explicit || include.is_empty()).then_some(Address { explicit, ..candidate.address })
        })
        .collect();
    // The order is the same on every call, whatever the order of the system: IPv4 before IPv6.
    usable.sort_by_key(|address| (address.interface, address.ip));
    usable.dedup();
    Ok(usable)
}

/// An entry of an include or exclude list.
enum Rule {
    Name(String),
    Network(IpAddr, u8),
}

impl Rule {
    fn covers(&self, candidate: &Candidate) -> bool {
        match self {
            Rule::Name(name) => *name == candidate.name,
            Rule::Network(network, prefix) => same_network(*network, candidate.address.ip, *prefix),
        }
    }
}

/// Parses a list. Warns once about a name without an interface, since the same list may serve many hosts.
fn rules(parameter: &str, entries: &[String], candidates: &[Candidate]) -> Result<Vec<Rule>, Error> {
    let names: BTreeSet<&str> = candidates.iter().map(|candidate| candidate.name.as_str()).collect();
    entries
        .iter()
        .map(|entry| {
            if let Some((network, prefix)) = entry.split_once('/') {
                let rule = network
                    .parse()
                    .ok()
                    .zip(prefix.parse().ok())
                    .filter(|&(network, prefix): &(IpAddr, u8)| prefix <= bits(network));
                let (network, prefix) = rule.ok_or_else(|| {
                    invalid(parameter, format!("'{entry}' is no network: write ADDRESS/PREFIX, such as 10.0.0.0/8"))
                })?;
                return Ok(Rule::Network(network, prefix));
            }
            if let Ok(ip) = entry.parse() {
                return Ok(Rule::Network(ip, bits(ip)));
            }
            if !names.contains(entry.as_str()) {
                warn_once(&format!("{NAME}/{parameter}/{entry}"), || unknown(parameter, entry, &names));
            }
            Ok(Rule::Name(entry.clone()))
        })
        .collect()
}

fn unknown(parameter: &str, entry: &str, names: &BTreeSet<&str>) -> String {
    let hint = match nearest(entry, names.iter().copied()) {
        Some(name) => format!("the nearest is '{name}'"),
        None => format!("there are {}", names.iter().copied().collect::<Vec<_>>().join(", ")),
    };
    format!("{NAME}: {parameter} names '{entry}', but no interface that is up has that name; {hint}")
}

fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { Ipv4Addr::BITS as u8 } else { Ipv6Addr::BITS as u8 }
}

/// Whether the first `prefix` bits of two addresses of one family are equal.
pub(crate) fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(prefix),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(prefix),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use cableway_base::Parameters;

    use super::*;

    fn host() -> Vec<Candidate> {
        [
            ("lo", 1, "127.0.0.1", 8),
            ("lo", 1, "::1", 128),
            ("eth0", 2, "10.1.0.5", 16),
            ("eth0", 2, "fe80::5", 64),
            ("ib0", 3, "192.168.7.5", 24),
        ]
        .map(|(name, interface, ip, prefix)| Candidate {
            name: name.to_owned(),
            address: Address {
                interface,
                ip: ip.parse().unwrap(),
                prefix,
                loopback: interface == 1,
                explicit: false,
                megabits: 1,
            },
        })
        .into()
    }

    fn selected(assignment: &str) -> Result<Vec<String>, Error> {
        let mut parameters = Parameters::default();
        parameters.assign_internal(assignment).unwrap();
        let addresses = select(host(), &Settings::new(&parameters)?)?;
        Ok(addresses.iter().map(|address| address.ip.to_string()).collect())
    }

    #[test]
    fn lists_are_names_networks_or_addresses() {
        assert_eq!(selected("btl_tcp_if_include=eth0").unwrap(), ["10.1.0.5", "fe80::5"]);
        assert_eq!(selected("btl_tcp_if_include=192.168.0.0/16,127.0.0.1").unwrap(), ["127.0.0.1", "192.168.7.5"]);
        assert_eq!(selected("btl_tcp_if_exclude=lo,fe80::/10").unwrap(), ["10.1.0.5", "192.168.7.5"]);
        assert_eq!(selected("btl_tcp_family=ipv6").unwrap(), ["::1", "fe80::5"]);
        assert_eq!(selected("btl_tcp_family=ipv4").unwrap().len(), 3);
        assert_eq!(selected("btl_tcp_if_include=eth7").unwrap(), [""; 0]);
    }

    #[test]
    fn bad_networks_are_errors() {
        for entry in ["10.0.0.0/33", "10.0.0/8", "::/129", "lo/x"] {
            let error = selected(&format!("btl_tcp_if_include={entry}")).unwrap_err().to_string();
            assert!(error.contains(entry) && error.contains("btl_tcp_if_include"), "{error}");
        }
    }

    #[test]
    fn a_mistyped_name_gets_a_suggestion() {
        let names = BTreeSet::from(["lo", "eth0"]);
        assert!(unknown("btl_tcp_if_include", "eth1", &names).contains("'eth0'"));
        assert!(unknown("btl_tcp_if_include", "wlan0", &names).contains("eth0, lo"));
    }

    #[test]
    fn this_host_has_a_loopback_interface() {
        let settings = Settings::new(&Parameters::default()).unwrap();
        assert!(usable(&settings).unwrap().iter().any(|address| address.loopback));
    }
}
