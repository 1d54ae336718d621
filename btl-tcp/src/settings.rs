//! The parameters of this transport, in the form that its parts use.

use std::time::Duration;

use cableway_base::Parameters;
use cableway_base::parameters::Families;
use cableway_btl::{Error, MAX_HEADER};

use crate::handshake::MAX_LINKS;
use crate::invalid;

/// The longest message that any process may accept, whatever its parameters. It limits what a peer can make this
/// process allocate.
const LONGEST_MESSAGE: usize = 256 << 20;

/// See the parameters `btl_tcp_*`.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The longest message that leaves at once, with its header.
    pub(crate) eager_limit: usize,
    /// Largest fragment of host data.
    pub(crate) max_send_size: usize,
    /// Largest fragment of device data.
    pub(crate) device_max_send_size: usize,
    /// The number of large device fragments in flight on each link.
    pub(crate) device_fragments: usize,
    /// The bytes of received messages that may stay in the transport's buffers for devices.
    pub(crate) retained_limit: usize,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    pub(crate) links: usize,
    /// The first port and the number of ports to listen on. Without it the system selects one.
    pub(crate) ports: Option<(u16, u16)>,
    pub(crate) socket: SocketSettings,
    pub(crate) families: Families,
}

/// The options of every connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketSettings {
    pub(crate) nodelay: bool,
    /// 0 means the system's default.
    pub(crate) send_buffer: usize,
    /// 0 means the system's default.
    pub(crate) receive_buffer: usize,
    pub(crate) peer_timeout: Duration,
}

impl Settings {
    /// # Errors
    /// Parameters contradict each other, or no socket supports them.
    pub(crate) fn new(parameters: &Parameters) -> Result<Self, Error> {
        let include = list(&parameters.btl_tcp_if_include);
        let exclude = list(&parameters.btl_tcp_if_exclude);
        if !include.is_empty() && !exclude.is_empty() {
            return Err(invalid("btl_tcp_if_include and btl_tcp_if_exclude", "only one of them can be given"));
        }
        let links = parameters.btl_tcp_links;
        if links == 0 || links > MAX_LINKS {
            return Err(invalid("btl_tcp_links", format!("1 to {MAX_LINKS} are possible, not {links}")));
        }
        // A message without payload must fit in any case.
        let size = |name: &str, value: usize| {
            if value > LONGEST_MESSAGE - MAX_HEADER {
                return Err(invalid(
                    name,
                    format!("at most {} bytes are possible, not {value}", LONGEST_MESSAGE - MAX_HEADER),
                ));
            }
            Ok(value.max(2 * MAX_HEADER))
        };
        // Sizes are powers of two, so the limit counts data.
        let eager_limit = size("btl_tcp_eager_limit", parameters.btl_tcp_eager_limit)? + MAX_HEADER;
        Ok(Settings {
            eager_limit,
            max_send_size: size("btl_tcp_max_send_size", parameters.btl_tcp_max_send_size)?.max(eager_limit),
            // An eager message is sent in one fragment, wherever its data is.
            device_max_send_size: (size("device_chunk_size", parameters.device_chunk_size)? + MAX_HEADER)
                .max(eager_limit),
            device_fragments: parameters.device_chunks.max(1),
            retained_limit: parameters.btl_tcp_retained_limit,
            include,
            exclude,
            links,
            ports: ports(parameters.btl_tcp_port_min, parameters.btl_tcp_port_range)?,
            socket: SocketSettings {
                nodelay: parameters.btl_tcp_nodelay,
                send_buffer: parameters.btl_tcp_sndbuf,
                receive_buffer: parameters.btl_tcp_rcvbuf,
                // A kernel need not answer within less than a second.
                peer_timeout: parameters.peer_timeout.max(Duration::from_secs(1)),
            },
            families: parameters.btl_tcp_family,
        })
    }

    /// Returns the longest message that this process accepts from peers.
    pub(crate) fn max_message(&self) -> usize {
        self.max_send_size.max(self.device_max_send_size)
    }
}

fn ports(first: usize, count: usize) -> Result<Option<(u16, u16)>, Error> {
    if first == 0 {
        return Ok(None);
    }
    let first = u16::try_from(first)
        .map_err(|_| invalid("btl_tcp_port_min", format!("a port is at most {}, not {first}", u16::MAX)))?;
    if count == 0 {
        return Err(invalid("btl_tcp_port_range", "at least one port is needed"));
    }
    Ok(Some((first, count.min(usize::from(u16::MAX - first) + 1).min(usize::from(u16::MAX)) as u16)))
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::NAME;

    fn settings(assignments: &[&str]) -> Result<Settings, Error> {
        let mut parameters = Parameters::default();
        for assignment in assignments {
            parameters.assign_internal(assignment).unwrap();
        }
        Settings::new(&parameters)
    }

    #[test]
    fn contradictions_name_the_parameter() {
        for (assignments, name) in [
            (&["btl_tcp_if_include=lo", "btl_tcp_if_exclude=eth0"][..], "btl_tcp_if_include"),
            (&["btl_tcp_links=0"], "btl_tcp_links"),
            (&["btl_tcp_links=65"], "btl_tcp_links"),
            (&["btl_tcp_port_min=65536"], "btl_tcp_port_min"),
            (&["btl_tcp_port_min=9000", "btl_tcp_port_range=0"], "btl_tcp_port_range"),
            (&["btl_tcp_eager_limit=1G"], "btl_tcp_eager_limit"),
        ] {
            let error = settings(assignments).unwrap_err().to_string();
            assert!(error.contains(name) && error.starts_with(NAME), "{error}");
        }
    }

    #[test]
    fn limits_are_consistent() {
        let settings = settings(&["btl_tcp_eager_limit=1M", "btl_tcp_max_send_size=1", "device_chunk_size=1"]).unwrap();
        let with_header = (1 << 20) + MAX_HEADER;
        assert_eq!((settings.max_send_size, settings.device_max_send_size), (with_header, with_header));
        assert!(settings.max_message() >= settings.max_send_size);
    }

    #[test]
    fn port_ranges_end_at_the_last_port() {
        assert_eq!(ports(0, 10).unwrap(), None);
        assert_eq!(ports(65000, 1000).unwrap(), Some((65000, 536)));
        assert_eq!(ports(1, 70000).unwrap(), Some((1, 65535)));
    }
}
