//! The parameters of this transport, in the form that its parts use.

use std::path::PathBuf;
use std::time::Duration;

use cableway_base::Parameters;
use cableway_base::parameters::GpuDirect;
use cableway_btl::{Error, MAX_HEADER};

use crate::card::MOST_PORTS;
use crate::gid::Kind;
use crate::receive_queues::ReceiveQueues;
use crate::verbs::{Patience, Priority};
use crate::{invalid, memory, partitions};

/// The work of a connection besides messages: a credit, a goodbye, and the request that ends it.
pub(crate) const SPARE_WORK: usize = 3;
/// The completions besides those of receives for which there is always room.
pub(crate) const SPARE_COMPLETIONS: usize = 64;

/// See the parameters `btl_openib_*`.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) eager_limit: usize,
    pub(crate) max_send_size: usize,
    pub(crate) min_rdma_size: usize,
    /// The receiver's device moves large messages, not the sender's.
    pub(crate) get: bool,
    /// The bytes of the program's memory that stay registered.
    pub(crate) registration_cache: usize,
    pub(crate) direct: DirectSettings,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    /// The largest number of ports to use.
    pub(crate) ports: usize,
    pub(crate) gid_index: Option<u8>,
    pub(crate) connection_manager: ConnectionManager,
    /// The receive queues. Their number is the same in all processes of a job.
    pub(crate) queues: ReceiveQueues,
    pub(crate) completions: usize,
    /// The work under way on one connection.
    pub(crate) depth: usize,
    pub(crate) inline: u32,
    pub(crate) pkey_index: u16,
    /// The key of the partition to use, instead of an index.
    pub(crate) pkey: Option<u16>,
    pub(crate) different_subnets: bool,
    pub(crate) fork_support: bool,
    pub(crate) priority: Priority,
    /// The exponent of 4.096 us after which a device resends.
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) peer_timeout: Duration,
}

/// See the parameters `btl_openib_gpudirect*`.
#[derive(Clone, Debug)]
pub(crate) struct DirectSettings {
    pub(crate) wanted: GpuDirect,
    /// The largest message in bytes.
    pub(crate) limit: usize,
    /// The bytes of device memory that stay registered.
    pub(crate) cache: usize,
    /// The folder in which the kernel lists its modules.
    pub(crate) sysfs: PathBuf,
}

/// The connection method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionManager {
    /// Datagrams if the device supports them.
    Auto,
    Datagrams,
    Rdmacm,
}

impl Settings {
    /// Returns the receive queues for a network on which `peers` may send. A device may not support shared buffers.
    /// Over iWARP a message without a buffer breaks its connection. librdmacm connects only one queue pair.
    pub(crate) fn queues_on(&self, iwarp: bool, shares: bool, peers: usize) -> ReceiveQueues {
        let list = if shares { self.queues.clone() } else { self.queues.all_per_peer() };
        match self.connection_manager {
            _ if iwarp => list.last_alone().without_waiting(peers),
            ConnectionManager::Rdmacm => list.last_alone(),
            ConnectionManager::Auto | ConnectionManager::Datagrams => list,
        }
    }

    /// The device names.
    pub(crate) fn patience(&self) -> Patience {
        Patience { timeout: self.timeout, retries: self.retries, rnr_timer: self.rnr_timer }
    }

    /// Returns the traffic class for librdmacm, or `None` on InfiniBand, where it would select another route.
    pub(crate) fn type_of_service(&self, kind: Kind) -> Option<u8> {
        Some(self.priority.traffic_class).filter(|&class| class != 0 && kind != Kind::InfiniBand)
    }

    /// Returns the number of messages of one peer that may wait here.
    pub(crate) fn window(&self) -> usize {
        self.queues.window()
    }

    /// # Errors
    /// Parameters contradict each other, or no device supports them.
    pub(crate) fn new(parameters: &Parameters) -> Result<Self, Error> {
        let include = list(&parameters.btl_openib_if_include);
        let exclude = list(&parameters.btl_openib_if_exclude);
        if !include.is_empty() && !exclude.is_empty() {
            return Err(invalid("btl_openib_if_include and btl_openib_if_exclude", "only one of them can be given"));
        }
        let queues = ReceiveQueues::parse(&parameters.btl_openib_receive_queues)
            .map_err(|reason| invalid("btl_openib_receive_queues", reason))?;
        let max_send_size = queues.longest();
        let receives: usize = queues.shared().map(|queue| queue.count).sum();
        let gid_index = match parameters.btl_openib_gid_index.trim() {
            "auto" => None,
            text => Some(text.parse().map_err(|_| {
                invalid("btl_openib_gid_index", format!("'{text}' is neither 'auto' nor a number up to 255"))
            })?),
        };
        let connection_manager = match parameters.btl_openib_connection_manager.trim() {
            "auto" => ConnectionManager::Auto,
            "datagrams" => ConnectionManager::Datagrams,
            "rdmacm" => ConnectionManager::Rdmacm,
            text => {
                let reason = format!("'{text}' is not 'auto', 'datagrams' or 'rdmacm'");
                return Err(invalid("btl_openib_connection_manager", reason));
            }
        };
        let small = |name: &'static str, value: usize, most: usize| {
            if value > most {
                return Err(invalid(name, format!("at most {most} is possible, not {value}")));
            }
            Ok(value)
        };
        let ports = small("btl_openib_max_btls", parameters.btl_openib_max_btls, MOST_PORTS)?;
        if ports == 0 {
            return Err(invalid("btl_openib_max_btls", "at least 1 is possible; 'btl' says which transports are used"));
        }
        let pkey_index = small("btl_openib_pkey_index", parameters.btl_openib_pkey_index, 65535)? as u16;
        let pkey = partitions::parse(&parameters.btl_openib_ib_pkey_val)
            .map_err(|reason| invalid("btl_openib_ib_pkey_val", reason))?;
        if pkey.is_some() && pkey_index != 0 {
            return Err(invalid("btl_openib_ib_pkey_val and btl_openib_pkey_index", "only one of them can be given"));
        }
        let retries = small("btl_openib_ib_retry_count", parameters.btl_openib_ib_retry_count, 7)? as u8;
        let peer_timeout = parameters.peer_timeout.max(Duration::from_millis(100));
        let timeout = match small("btl_openib_ib_timeout", parameters.btl_openib_ib_timeout, 31)? as u8 {
            0 => timeout_within(peer_timeout / 2, retries),
            timeout => timeout,
        };
        Ok(Settings {
            eager_limit: parameters.btl_openib_eager_limit.clamp(2 * MAX_HEADER, max_send_size),
            max_send_size,
            min_rdma_size: parameters.btl_openib_min_rdma_size.max(1),
            get: parameters.btl_openib_get,
            registration_cache: memory::lockable(parameters.btl_openib_registration_cache),
            direct: DirectSettings {
                wanted: parameters.btl_openib_gpudirect,
                limit: parameters.btl_openib_gpudirect_limit,
                cache: parameters.btl_openib_registration_cache,
                sysfs: parameters.btl_openib_gpudirect_sysfs.clone().into(),
            },
            include,
            exclude,
            ports,
            gid_index,
            connection_manager,
            completions: parameters.btl_openib_cq_size.max(receives + 2 * SPARE_COMPLETIONS),
            queues,
            depth: parameters.btl_openib_send_depth.clamp(8, 1 << 14),
            inline: small("btl_openib_max_inline", parameters.btl_openib_max_inline, 4096)? as u32,
            pkey_index,
            pkey,
            different_subnets: parameters.btl_openib_allow_different_subnets,
            fork_support: parameters.btl_openib_want_fork_support,
            priority: Priority {
                service_level: small("btl_openib_service_level", parameters.btl_openib_service_level, 15)? as u8,
                traffic_class: small("btl_openib_traffic_class", parameters.btl_openib_traffic_class, 255)? as u8,
            },
            timeout,
            retries,
            rnr_timer: small("btl_openib_min_rnr_timer", parameters.btl_openib_min_rnr_timer, 31)? as u8,
            peer_timeout,
        })
    }
}

/// Returns the longest timeout whose repetitions end within `limit`.
fn timeout_within(limit: Duration, retries: u8) -> u8 {
    let each = limit / (u32::from(retries) + 1);
    let mut exponent = 8;
    while exponent < 20 && Duration::from_nanos(4096 << (exponent + 1)) <= each {
        exponent += 1;
    }
    exponent
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_peer_is_given_up_in_time() {
        for seconds in [1, 4, 10, 60] {
            let limit = Duration::from_secs(seconds);
            let exponent = timeout_within(limit, 7);
            assert!(Duration::from_nanos(4096 << exponent) * 8 <= limit, "{seconds} s: {exponent}");
        }
        assert_eq!(timeout_within(Duration::from_secs(5), 7), 17);
    }

    #[test]
    fn impossible_values_are_named() {
        for (assignment, said) in [
            ("btl_openib_gid_index=first", "btl_openib_gid_index"),
            ("btl_openib_ib_pkey_val=0x18001", "no key of 16 bits"),
            ("btl_openib_ib_retry_count=8", "btl_openib_ib_retry_count"),
            ("btl_openib_max_btls=0", "at least 1"),
            ("btl_openib_max_btls=17", "at most 16"),
            ("btl_openib_connection_manager=udcm", "datagrams"),
            ("btl_openib_receive_queues=S", "btl_openib_receive_queues"),
            ("btl_openib_receive_queues=P,4K,64:S,4K", "entry 2 of 2"),
        ] {
            let mut parameters = Parameters::default();
            parameters.assign_internal(assignment).unwrap();
            let error = Settings::new(&parameters).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(Settings::new(&Parameters::default()).is_ok());
    }
}
