//! Work requests, and how they are posted.

use std::ffi::c_uint;
use std::io;
use std::mem::MaybeUninit;

use rdma_mummy_sys::{ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wr_opcode, rdma_t, ud_t, wr_t};

use super::{QueuePair, WITHIN};
use crate::verbs::AddressHandle;
use crate::verbs::results::answer;

// Bits of `enum ibv_send_flags`.
const SIGNALED: c_uint = 1 << 1;
const INLINE: c_uint = 1 << 3;

/// A piece of registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gather {
    pub(crate) address: *const u8,
    pub(crate) len: usize,
    pub(crate) key: u32,
}

/// The data that work sends, or the destination of data that it fetches.
#[derive(Clone, Copy)]
pub(crate) enum Data<'a> {
    Nothing,
    Registered(Gather),
    /// Two runs, copied into the work request before it starts. Their memory may be reused at once.
    Within(&'a [u8], &'a [u8]),
}

/// The kind of work.
#[derive(Clone, Copy)]
pub(crate) enum Work<'a> {
    /// Sends to a posted buffer of the peer.
    Send,
    /// A send with immediate data, given in the host's byte order.
    SendWithImmediate(u32),
    /// Writes into the peer's memory.
    Write { address: u64, key: u32 },
    /// Reads from the peer's memory.
    Read { address: u64, key: u32 },
    /// Sends to an address handle.
    Datagram { to: &'a AddressHandle, number: u32, key: u32 },
}

/// The options of a work request.
#[derive(Clone, Copy)]
pub(crate) struct Post {
    pub(crate) id: u64,
    pub(crate) signalled: bool,
}

impl QueuePair {
    /// Starts work on `data`. The caller ensures that there is room.
    ///
    /// # Safety
    /// Registered data stays valid until a completion of this or of later work, and is registered under its key for
    /// this kind of work. No other code accesses the destination of a read. An address handle lives as long.
    ///
    /// # Errors
    /// The queue is full, or the queue pair is not connected.
    #[inline]
    pub(crate) unsafe fn post(&self, work: Work<'_>, data: Data<'_>, post: Post) -> io::Result<()> {
        let mut joined = MaybeUninit::<[u8; WITHIN]>::uninit();
        let (address, len, key, inline) = match data {
            Data::Nothing => (std::ptr::null(), 0, 0, 0),
            Data::Registered(Gather { address, len, key }) => (address, len, key, 0),
            Data::Within(first, []) => (first.as_ptr(), first.len(), 0, INLINE),
            // Use one piece: some drivers send only the first piece of inline data.
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
            Work::SendWithImmediate(immediate) => {
                request.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
                request.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
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

    /// Posts one of its own receive buffers. The first 40 bytes of a datagram's buffer belong to the network.
    ///
    /// # Safety
    /// As [`SharedReceiveQueue::post`](crate::verbs::SharedReceiveQueue::post).
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
