//! Queue pairs: connected ones, and those for datagrams.

mod requests;

use std::ffi::{c_int, c_uint};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::{ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type};

pub(crate) use self::requests::{Data, Gather, Post, Work};
use super::connection_manager::Id;
use super::objects::{CompletionQueue, Protection, SharedReceiveQueue};
use super::path::{FOR_EVER, Path, Patience, Priority};
use super::results::{answer, made};

// Bits of `enum ibv_qp_attr_mask`.
const STATE: c_int = 1 << 0;
const ACCESS_FLAGS: c_int = 1 << 3;
const PKEY_INDEX: c_int = 1 << 4;
const PORT: c_int = 1 << 5;
const QKEY: c_int = 1 << 6;
const AV: c_int = 1 << 7;
const PATH_MTU: c_int = 1 << 8;
const TIMEOUT: c_int = 1 << 9;
const RETRY_CNT: c_int = 1 << 10;
const RNR_RETRY: c_int = 1 << 11;
const RQ_PSN: c_int = 1 << 12;
const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
const MIN_RNR_TIMER: c_int = 1 << 15;
const SQ_PSN: c_int = 1 << 16;
const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
const DEST_QPN: c_int = 1 << 20;

/// The largest inline data of one work request.
const WITHIN: usize = 1024;

/// Remote access to a connected queue pair: writes and reads, if memory is registered for them.
const REMOTE_ACCESS: c_uint = 2 | 4;

/// The options of a connected queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePairOptions {
    pub(crate) port: u8,
    pub(crate) pkey_index: u16,
    /// The largest number of work requests under way.
    pub(crate) depth: u32,
    /// Inline data: as much of it as the device supports.
    pub(crate) inline: u32,
    /// The number of its own receive buffers.
    pub(crate) receives: u32,
}

/// The other end of a connected queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) number: u32,
    pub(crate) first_packet: u32,
    pub(crate) path: Path,
    /// The packet length, as a code of verbs.
    pub(crate) mtu: u8,
    /// The number of concurrent reads, in either direction.
    pub(crate) reads: u8,
    pub(crate) patience: Patience,
}

/// A queue pair. Dropping it destroys it. Work under way is not reported.
pub(crate) struct QueuePair {
    protection: Arc<Protection>,
    raw: NonNull<ibv_qp>,
    number: u32,
    inline: u32,
    /// Set by tests to refuse further work.
    #[cfg(test)]
    pub(crate) refuses: std::sync::atomic::AtomicBool,
    _completions: Arc<CompletionQueue>,
    _receives: Option<Arc<SharedReceiveQueue>>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a connected queue pair in its initial state. Messages arrive in buffers of the shared queue, or, without
    /// one, in its own buffers, whose number `options` has.
    ///
    /// # Errors
    /// The device's resources are exhausted.
    pub(crate) fn connected(
        protection: &Arc<Protection>,
        completions: &Arc<CompletionQueue>,
        receives: Option<&Arc<SharedReceiveQueue>>,
        options: &QueuePairOptions,
    ) -> io::Result<Self> {
        let mut init = blank(completions);
        match receives {
            Some(receives) => init.srq = receives.raw.as_ptr(),
            None => {
                init.cap.max_recv_wr = options.receives;
                init.cap.max_recv_sge = 1;
            }
        }
        init.qp_type = ibv_qp_type::IBV_QPT_RC;
        init.cap.max_send_wr = options.depth;
        init.cap.max_send_sge = 1;
        init.cap.max_inline_data = options.inline;
        let pair = Self::create(protection, completions, receives, init)?;
        let mut attributes = no_attributes();
        attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attributes.pkey_index = options.pkey_index;
        attributes.port_num = options.port;
        attributes.qp_access_flags = REMOTE_ACCESS;
        let of_port = if protection.context.is_iwarp() { 0 } else { PKEY_INDEX | PORT };
        pair.modify(&mut attributes, STATE | ACCESS_FLAGS | of_port)?;
        Ok(pair)
    }

    /// Creates a queue pair for datagrams under `key`, ready to send and receive.
    ///
    /// # Errors
    /// The device's resources are exhausted.
    pub(crate) fn datagrams(
        protection: &Arc<Protection>,
        completions: &Arc<CompletionQueue>,
        key: u32,
        options: &QueuePairOptions,
    ) -> io::Result<Self> {
        let mut init = blank(completions);
        init.qp_type = ibv_qp_type::IBV_QPT_UD;
        init.cap.max_send_wr = options.depth;
        init.cap.max_recv_wr = options.receives;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        let pair = Self::create(protection, completions, None, init)?;
        pair.begin(key, options)?;
        Ok(pair)
    }

    /// Makes a queue pair for datagrams ready.
    fn begin(&self, key: u32, options: &QueuePairOptions) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attributes.pkey_index = options.pkey_index;
        attributes.port_num = options.port;
        attributes.qkey = key;
        self.modify(&mut attributes, STATE | PKEY_INDEX | PORT | QKEY)?;
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
        self.modify(&mut attributes, STATE)?;
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attributes.sq_psn = 0;
        self.modify(&mut attributes, STATE | SQ_PSN)
    }

    /// Restarts a queue pair for datagrams, from any state, under its number. Its work and its buffers belong to the
    /// owner again, after the pending completions are taken.
    ///
    /// # Errors
    /// The device was removed.
    pub(crate) fn begin_anew(&self, key: u32, options: &QueuePairOptions) -> io::Result<()> {
        self.reset()?;
        self.begin(key, options)
    }

    /// Returns whether it sends and receives.
    ///
    /// # Errors
    /// The device was removed.
    pub(crate) fn is_ready(&self) -> io::Result<bool> {
        Ok(self.query(STATE)?.qp_state == ibv_qp_state::IBV_QPS_RTS)
    }

    fn create(
        protection: &Arc<Protection>,
        completions: &Arc<CompletionQueue>,
        receives: Option<&Arc<SharedReceiveQueue>>,
        mut init: ibv_qp_init_attr,
    ) -> io::Result<Self> {
        let wanted = init.cap;
        let library = protection.context.library;
        let raw = loop {
            // SAFETY: all that `init` names is live; the function writes back what was granted.
            match made(unsafe { (library.ibv_create_qp)(protection.raw.as_ptr(), &raw mut init) }) {
                Ok(raw) => break raw,
                // Devices do not report their limit of inline data, but refuse. Then try half of it.
                Err(error) if init.cap.max_inline_data == 0 => return Err(error),
                Err(_) => {
                    let inline = init.cap.max_inline_data.min(wanted.max_inline_data) / 2;
                    init.cap = wanted;
                    init.cap.max_inline_data = if inline < 16 { 0 } else { inline };
                }
            }
        };
        // SAFETY: the library filled in the structure.
        let number = unsafe { raw.as_ref().qp_num };
        Ok(QueuePair {
            protection: Arc::clone(protection),
            raw,
            number,
            // Some devices grant more than requested, even if nothing was requested.
            inline: if wanted.max_inline_data == 0 { 0 } else { init.cap.max_inline_data.min(WITHIN as u32) },
            #[cfg(test)]
            refuses: false.into(),
            _completions: Arc::clone(completions),
            _receives: receives.cloned(),
        })
    }

    /// Returns its number, which identifies it to peers and in completions.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the largest inline data.
    pub(crate) fn inline(&self) -> usize {
        self.inline as usize
    }

    /// Connects it to its peer. Earlier messages of the peer are lost and sent again.
    ///
    /// # Errors
    /// The peer is unreachable, or the device refuses the attributes.
    pub(crate) fn connect(&self, remote: &Remote, first_packet: u32) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attributes.path_mtu = remote.mtu.into();
        attributes.dest_qp_num = remote.number;
        attributes.rq_psn = remote.first_packet;
        attributes.max_dest_rd_atomic = remote.reads;
        attributes.min_rnr_timer = remote.patience.rnr_timer;
        attributes.ah_attr = remote.path.attributes();
        self.modify(&mut attributes, STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER)?;
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attributes.timeout = remote.patience.timeout;
        attributes.retry_cnt = remote.patience.retries;
        attributes.rnr_retry = FOR_EVER;
        attributes.sq_psn = first_packet;
        attributes.max_rd_atomic = remote.reads;
        self.modify(&mut attributes, STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC)
    }

    /// Connects it with the connection manager's path, at either end of a request with this `id`, and with the priority of
    /// this process: each end sets its own. On iWARP the kernel does this itself.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub(crate) fn connect_by(&self, id: &Id, reads: u8, patience: &Patience, priority: Priority) -> io::Result<()> {
        if self.protection.context.is_iwarp() {
            return Ok(());
        }
        let (mut attributes, mask) = id.attributes(ibv_qp_state::IBV_QPS_RTR)?;
        attributes.max_dest_rd_atomic = reads;
        attributes.min_rnr_timer = patience.rnr_timer;
        priority.overrule(&mut attributes.ah_attr);
        self.modify(&mut attributes, mask)?;
        let (mut attributes, mask) = id.attributes(ibv_qp_state::IBV_QPS_RTS)?;
        attributes.timeout = patience.timeout;
        attributes.retry_cnt = patience.retries;
        attributes.rnr_retry = FOR_EVER;
        attributes.max_rd_atomic = reads;
        self.modify(&mut attributes, mask)
    }

    /// Ends all work in flight, which then completes in error. Nothing arrives after that.
    ///
    /// # Errors
    /// The device was removed.
    pub(crate) fn fail(&self) -> io::Result<()> {
        self.enter(ibv_qp_state::IBV_QPS_ERR)
    }

    /// Resets the queue pair. The device forgets all work and reports none of it.
    ///
    /// # Errors
    /// The device was removed.
    pub(crate) fn reset(&self) -> io::Result<()> {
        self.enter(ibv_qp_state::IBV_QPS_RESET)
    }

    /// Changes to a state that needs no attributes.
    fn enter(&self, state: ibv_qp_state::Type) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = state;
        self.modify(&mut attributes, STATE)
    }

    /// Returns the traffic class of sent packets.
    #[cfg(test)]
    pub(crate) fn traffic_class(&self) -> io::Result<u8> {
        Ok(self.query(AV)?.ah_attr.grh.traffic_class)
    }

    fn query(&self, mask: c_int) -> io::Result<ibv_qp_attr> {
        let mut attributes = no_attributes();
        // SAFETY: a structure of integers and null pointers.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let library = self.protection.context.library;
        // SAFETY: a live queue pair; the function fills both structures.
        answer(unsafe { (library.ibv_query_qp)(self.raw.as_ptr(), &raw mut attributes, mask, &raw mut init) })?;
        Ok(attributes)
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: c_int) -> io::Result<()> {
        // SAFETY: a live queue pair; the function reads the attributes that the mask names.
        answer(unsafe { (self.protection.context.library.ibv_modify_qp)(self.raw.as_ptr(), attributes, mask) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made by us; its events were acknowledged when they were got.
        unsafe { (self.protection.context.library.ibv_destroy_qp)(self.raw.as_ptr()) };
    }
}

fn blank(completions: &Arc<CompletionQueue>) -> ibv_qp_init_attr {
    // SAFETY: a structure of integers and null pointers.
    let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    init.send_cq = completions.raw.as_ptr();
    init.recv_cq = completions.raw.as_ptr();
    init
}

fn no_attributes() -> ibv_qp_attr {
    // SAFETY: a structure of integers, and of unions of bytes.
    unsafe { std::mem::zeroed() }
}
