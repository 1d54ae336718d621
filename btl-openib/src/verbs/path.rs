//! The path from one port to another, and the timeouts on it.

use rdma_mummy_sys::{ibv_ah_attr, ibv_gid, ibv_global_route};

/// Retry without limit: a busy peer answers RNR, and is not dead.
pub(super) const FOR_EVER: u8 = 7;

/// The path to a peer's port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) port: u8,
    /// The index of the sender's own GID.
    pub(crate) gid_index: u8,
    /// The peer's GID; `None` within an InfiniBand subnet.
    pub(crate) gid: Option<[u8; 16]>,
    pub(crate) lid: u16,
    pub(crate) priority: Priority,
}

/// The priority of packets, for networks with several. 0 is the default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Priority {
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
}

impl Priority {
    /// Overrides the values of the connection manager by those that are set.
    pub(super) fn overrule(&self, way: &mut ibv_ah_attr) {
        if self.service_level != 0 {
            way.sl = self.service_level;
        }
        if self.traffic_class != 0 && way.is_global != 0 {
            way.grh.traffic_class = self.traffic_class;
        }
    }
}

impl Path {
    pub(super) fn attributes(&self) -> ibv_ah_attr {
        const HOPS: u8 = 64;
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: self.gid.unwrap_or_default() },
                flow_label: 0,
                sgid_index: self.gid_index,
                hop_limit: HOPS,
                traffic_class: self.priority.traffic_class,
            },
            dlid: self.lid,
            sl: self.priority.service_level,
            src_path_bits: 0,
            static_rate: 0,
            is_global: self.gid.is_some().into(),
            port_num: self.port,
        }
    }
}

/// How long a device waits for the peer's device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The time before it resends: the exponent of 4.096 us.
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    /// The time before it resends a message that found no buffer, as a code of verbs.
    pub(crate) rnr_timer: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_values_override_those_of_the_path() {
        let found = Priority { service_level: 3, traffic_class: 7 };
        let seen = |priority: Priority, gid| {
            let path = Path { port: 1, gid_index: 0, gid, lid: 9, priority: found };
            let mut way = path.attributes();
            priority.overrule(&mut way);
            (way.sl, way.grh.traffic_class)
        };
        let of = |service_level, traffic_class| Priority { service_level, traffic_class };
        let global = Some([1; 16]);
        assert_eq!(seen(of(0, 0), global), (3, 7));
        assert_eq!(seen(of(5, 0), global), (5, 7));
        assert_eq!(seen(of(0, 104), global), (3, 104));
        assert_eq!(seen(of(5, 104), global), (5, 104));
        assert_eq!(seen(of(5, 104), None), (5, 7), "within a subnet there is no header for the class");
    }
}
