//! One link to a peer, and what the links to a peer can do together.

use cableway_btl::{Capabilities, Endpoint, Error, Flags, FragmentKind, Sent};

use crate::wire::BtlTag;

pub(crate) struct Link {
    pub(crate) endpoint: Box<dyn Endpoint>,
    /// Index of its transport in the engine.
    pub(crate) btl: usize,
    pub(crate) tag: BtlTag,
    /// Number of this link among the transport's links to the peer.
    pub(crate) ordinal: u8,
    /// Serial number. Unlike an index, it is never used for another link.
    pub(crate) serial: u32,
    /// Seconds of work in its share of striped data.
    pub(crate) load: f64,
    /// Whether a message ever left through it.
    pub(crate) carried: bool,
}

impl Link {
    #[inline]
    pub(crate) fn capabilities(&self) -> &Capabilities {
        self.endpoint.capabilities()
    }

    #[inline]
    pub(crate) fn has(&self, flags: Flags) -> bool {
        self.capabilities().flags.contains(flags)
    }

    /// Returns the kind of fragments that a device copies into.
    pub(crate) fn device_kind(&self) -> FragmentKind {
        if self.has(Flags::DEVICE_FRAGMENTS) { FragmentKind::Device } else { FragmentKind::Host }
    }

    /// Returns the longest message that the link takes.
    pub(crate) fn longest(&self) -> usize {
        let limits = self.capabilities();
        limits.max_send_size.max(limits.device_max_send_size).max(limits.inline_limit)
    }

    /// Sends a short message from host memory.
    pub(crate) fn send_small(&mut self, header: &[u8], payload: &[u8]) -> Result<Sent, Error> {
        let len = header.len() + payload.len();
        if len <= self.capabilities().inline_limit && self.endpoint.send_inline(header, payload)? == Sent::Done {
            self.carried = true;
            return Ok(Sent::Done);
        }
        let Some(mut fragment) = self.endpoint.alloc(len, FragmentKind::Host)? else { return Ok(Sent::Busy) };
        fragment.write(0, header);
        fragment.write(header.len(), payload);
        self.endpoint.send(fragment, len)?;
        self.carried = true;
        Ok(Sent::Done)
    }
}

/// GET or PUT of device memory.
pub(crate) const DEVICE_RDMA: Flags = Flags::DEVICE_GET.union(Flags::DEVICE_PUT);
const RDMA: Flags = DEVICE_RDMA.union(Flags::GET).union(Flags::PUT);

/// The combined abilities of the links to a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// Flags that any of the links has.
    pub(crate) any: Flags,
    /// The smallest RDMA limit of the links that can GET or PUT.
    pub(crate) min_rdma_size: usize,
    /// The smallest and the largest RDMA limit of the links that can GET or PUT device memory; 0 if none can.
    pub(crate) device_min_rdma_size: usize,
    pub(crate) device_max_rdma_size: usize,
}

impl Abilities {
    /// The abilities of no link.
    pub(crate) const NONE: Abilities = Abilities {
        any: Flags::empty(),
        min_rdma_size: usize::MAX,
        device_min_rdma_size: usize::MAX,
        device_max_rdma_size: 0,
    };

    #[inline]
    pub(crate) fn of(links: &[Link]) -> Abilities {
        links.iter().fold(Abilities::NONE, |together, link| together.with(link.capabilities()))
    }

    /// Adds a link.
    #[inline]
    pub(crate) fn with(mut self, able: &Capabilities) -> Abilities {
        self.any |= able.flags;
        if able.flags.intersects(RDMA) {
            self.min_rdma_size = self.min_rdma_size.min(able.min_rdma_size);
        }
        if able.flags.intersects(DEVICE_RDMA) {
            self.device_min_rdma_size = self.device_min_rdma_size.min(able.device_min_rdma_size);
            self.device_max_rdma_size = self.device_max_rdma_size.max(able.device_max_rdma_size);
        }
        self
    }
}
