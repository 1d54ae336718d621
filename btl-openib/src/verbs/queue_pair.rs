//! Queue pairs: connected ones, and those for datagrams.

use std::ffi::{c_int, c_uint};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::{
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wr_opcode, rdma_t, ud_t, wr_t,
};

use super::objects::{answer, made};
use super::{AddressHandle, CompletionQueue, Id, Protection, SharedReceiveQueue};

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

// Bits of `enum ibv_send_flags`.
const SIGNALED: c_uint = 1 << 1;
const INLINE: c_uint = 1 << 3;

/// Most bytes that go within one work.
const WITHIN: usize = 1024;

/// Remote access to a connected queue pair: writes and reads, as far as memory is registered for them.
const REMOTE_ACCESS: c_uint = 2 | 4;

/// A peer that computes answers that it is not ready, and is not dead.
pub(super) const FOR_EVER: u8 = 7;

/// The way to a peer's port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) port: u8,
    /// The sender's own entry in its table of GIDs.
    pub(crate) gid_index: u8,
    /// The peer's; none within an InfiniBand subnet.
    pub(crate) gid: Option<[u8; 16]>,
    pub(crate) lid: u16,
    pub(crate) priority: Priority,
}

/// What a network goes by that does not treat all alike. 0 is what it has where nobody says otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Priority {
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
}

impl Priority {
    /// As far as it says anything, it goes before what the connection manager found out.
    fn overrule(&self, way: &mut ibv_ah_attr) {
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

/// What a connected queue pair is to be like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePairOptions {
    pub(crate) port: u8,
    pub(crate) pkey_index: u16,
    /// Work under way at a time.
    pub(crate) depth: u32,
    /// Data within the work itself: as much of it as the device has.
    pub(crate) inline: u32,
    /// Buffers of its own for what arrives.
    pub(crate) receives: u32,
}

/// The other end of a connected queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) number: u32,
    pub(crate) first_packet: u32,
    pub(crate) path: Path,
    /// As verbs number them.
    pub(crate) mtu: u8,
    /// Reads under way at a time, in either direction.
    pub(crate) reads: u8,
    pub(crate) patience: Patience,
}

/// How long a device waits for a peer's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Before it sends again: exponent of 4.096 us.
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    /// Before it sends again what found no buffer, as verbs number it.
    pub(crate) rnr_timer: u8,
}

/// A queue pair. Destroyed when dropped: its work under way comes to nothing, and reports nothing.
pub(crate) struct QueuePair {
    protection: Arc<Protection>,
    raw: NonNull<ibv_qp>,
    number: u32,
    inline: u32,
    /// Tests have it take no more work.
    #[cfg(test)]
    pub(crate) refuses: std::sync::atomic::AtomicBool,
    _completions: Arc<CompletionQueue>,
    _receives: Option<Arc<SharedReceiveQueue>>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gather {
    pub(crate) address: *const u8,
    pub(crate) len: usize,
    pub(crate) key: u32,
}

/// What work sends, or where it puts what it fetches.
#[derive(Clone, Copy)]
pub(crate) enum Data<'a> {
    Nothing,
    Registered(Gather),
    /// Two runs, copied into the work itself before it is begun: their memory may be reused at once.
    Within(&'a [u8], &'a [u8]),
}

/// What is to be done.
#[derive(Clone, Copy)]
pub(crate) enum Work<'a> {
    /// To a buffer that the peer posted.
    Send,
    /// The same, with a word beside the data, in the host's byte order.
    SendWithWord(u32),
    /// Into the peer's memory.
    Write { address: u64, key: u32 },
    /// From the peer's memory.
    Read { address: u64, key: u32 },
    /// To whoever is there.
    Datagram { to: &'a AddressHandle, number: u32, key: u32 },
}

/// Whether and how.
#[derive(Clone, Copy)]
pub(crate) struct Post {
    pub(crate) id: u64,
    pub(crate) signalled: bool,
}

impl QueuePair {
    /// A connected one, ready to be told its peer. What arrives goes into buffers of the shared queue, or, where there
    /// is none, into its own, of which `options` says how many.
    ///
    /// # Errors
    /// The device has no more.
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

    /// One for datagrams under `key`, ready to send and receive.
    ///
    /// # Errors
    /// The device has no more.
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

    /// Makes one for datagrams ready.
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

    /// Has one for datagrams, in whatever state it is, begin anew under its number. Its work and its buffers are its
    /// owner's again, once the completions that wait have been taken.
    ///
    /// # Errors
    /// The device is gone.
    pub(crate) fn begin_anew(&self, key: u32, options: &QueuePairOptions) -> io::Result<()> {
        self.reset()?;
        self.begin(key, options)
    }

    /// Whether it sends and receives.
    ///
    /// # Errors
    /// The device is gone.
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
                // Devices have no say in how much they take within the work but to refuse: then half of it.
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
            // Some grant more than they were asked for, also where that was nothing.
            inline: if wanted.max_inline_data == 0 { 0 } else { init.cap.max_inline_data.min(WITHIN as u32) },
            #[cfg(test)]
            refuses: false.into(),
            _completions: Arc::clone(completions),
            _receives: receives.cloned(),
        })
    }

    /// Its number, by which peers and completions name it.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Longest data within the work itself.
    pub(crate) fn inline(&self) -> usize {
        self.inline as usize
    }

    /// Makes it receive from, and send to, its peer. What the peer sends before is lost, and sent again.
    ///
    /// # Errors
    /// The peer cannot be reached, or the device refuses what is asked.
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

    /// The same with what the connection manager found out about the way, at an end that asks or is asked by `id`, and
    /// in the priority that is asked for here: each end says in which it sends. On iWARP the kernel does it as the
    /// connection is made.
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

    /// Ends all work under way, which completes in error; nothing arrives any more.
    ///
    /// # Errors
    /// The device is gone.
    pub(crate) fn fail(&self) -> io::Result<()> {
        self.enter(ibv_qp_state::IBV_QPS_ERR)
    }

    /// Has the device forget all work: none of it is under way any more, nor reported from here on.
    ///
    /// # Errors
    /// The device is gone.
    pub(crate) fn reset(&self) -> io::Result<()> {
        self.enter(ibv_qp_state::IBV_QPS_RESET)
    }

    /// Of the states that take no attributes.
    fn enter(&self, state: ibv_qp_state::Type) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = state;
        self.modify(&mut attributes, STATE)
    }

    /// The traffic class in which it sends.
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

    /// Starts work on `data`. Room for it is the caller's to keep account of.
    ///
    /// # Safety
    /// Of registered data: until a completion of this or of later work, it is valid, and registered under its key for what
    /// the work does; for a read, nobody else touches it. An address handle lives as long.
    ///
    /// # Errors
    /// The queue is full, or the queue pair is unfit.
    #[inline]
    pub(crate) unsafe fn post(&self, work: Work<'_>, data: Data<'_>, post: Post) -> io::Result<()> {
        let mut joined = MaybeUninit::<[u8; WITHIN]>::uninit();
        let (address, len, key, inline) = match data {
            Data::Nothing => (std::ptr::null(), 0, 0, 0),
            Data::Registered(Gather { address, len, key }) => (address, len, key, 0),
            Data::Within(first, []) => (first.as_ptr(), first.len(), 0, INLINE),
            // As one piece: there are drivers that take the first alone of what goes within.
            Data::Within(first, second) => {
                let (len, start) = (first.len() + second.len(), joined.as_mut_ptr().cast::<u8>());
                if len > WITHIN {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                // SAFETY: there is room for both.
                unsafe {
                    start.copy_from_nonoverlapping(first.as_ptr(), first.len());
                    start.add(first.len()).copy_from_nonoverlapping(second.as_ptr(), second.len());
                }
                (start.cast_const(), len, 0, INLINE)
            }
        };
        let mut piece = ibv_sge { addr: address as u64, length: len as u32, lkey: key };
        // SAFETY: a structure of integers, null pointers and unions of them.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = post.id;
        request.sg_list = &raw mut piece;
        request.num_sge = (len != 0).into();
        request.send_flags = if post.signalled { SIGNALED } else { 0 } | inline;
        match work {
            Work::Send => request.opcode = ibv_wr_opcode::IBV_WR_SEND,
            Work::SendWithWord(word) => {
                request.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
                request.imm_data_invalidated_rkey_union.imm_data = word.to_be();
            }
            Work::Write { address, key } => {
                request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                request.wr = wr_t { rdma: rdma_t { remote_addr: address, rkey: key } };
            }
            Work::Read { address, key } => {
                request.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
                request.wr = wr_t { rdma: rdma_t { remote_addr: address, rkey: key } };
            }
            Work::Datagram { to, number, key } => {
                request.opcode = ibv_wr_opcode::IBV_WR_SEND;
                request.wr = wr_t { ud: ud_t { ah: to.raw.as_ptr(), remote_qpn: number, remote_qkey: key } };
            }
        }
        #[cfg(test)]
        if self.refuses.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair, whose context pointer the library filled in.
        let post = unsafe { (*(*self.raw.as_ptr()).context).ops.post_send }.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: one request with at most one piece, both copied before the function returns; so is data that goes within,
        // and other data is the caller's promise.
        answer(unsafe { post(self.raw.as_ptr(), &raw mut request, &raw mut bad) })
    }

    /// Offers a buffer of its own for what arrives; of a datagram's, the first 40 bytes are the network's.
    ///
    /// # Safety
    /// As [`SharedReceiveQueue::post`].
    ///
    /// # Errors
    /// The queue is full.
    pub(crate) unsafe fn post_receive(&self, id: u64, address: *mut u8, len: u32, key: u32) -> io::Result<()> {
        let mut piece = ibv_sge { addr: address as u64, length: len, lkey: key };
        let mut work = ibv_recv_wr { wr_id: id, next: std::ptr::null_mut(), sg_list: &raw mut piece, num_sge: 1 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair, whose context pointer the library filled in.
        let post = unsafe { (*(*self.raw.as_ptr()).context).ops.post_recv }.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: one request with one piece; both are copied before the function returns.
        answer(unsafe { post(self.raw.as_ptr(), &raw mut work, &raw mut bad) })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_overrules_as_far_as_it_says_anything() {
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
