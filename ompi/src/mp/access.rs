//! Puts and gets that a stream or the host starts, and that the thread of streams makes.

use std::sync::Arc;

use cableway_pml::{Access, Buffer, Change, Error, MessageWatch, StreamJob};
use parking_lot::Mutex;

use super::window::Opened;

/// The memory of this process.
pub(super) enum Memory {
    /// The program's, host or device.
    Program(usize),
    /// A copy of the bytes.
    Copied(Box<[u8]>),
}

/// A put or get that starts at its first poll.
pub(super) struct Move {
    pub(super) window: Arc<Opened>,
    pub(super) target: u32,
    /// Bytes from the beginning of the target's memory.
    pub(super) displacement: i64,
    pub(super) memory: Memory,
    pub(super) len: u64,
    pub(super) store: bool,
    pub(super) started: bool,
    /// The put after which this one ends, until that is over.
    pub(super) after: Option<MessageWatch>,
    pub(super) result: Arc<Mutex<Option<Result<(), Error>>>>,
}

impl Move {
    fn start(&self) -> Result<(), Error> {
        let address = match &self.memory {
            Memory::Program(address) => std::ptr::with_exposed_provenance(*address),
            Memory::Copied(bytes) => bytes.as_ptr(),
        };
        // The stream has passed the program's work on the memory, and may hold up the default stream.
        let mine = Buffer::bytes(address, self.len).settled();
        let access = Access {
            target: self.target,
            displacement: self.displacement,
            reach: Buffer::bytes(std::ptr::null(), self.len),
            change: if self.store { Change::Put(mine) } else { Change::Get(mine) },
        };
        let result = self.result.clone();
        let then = Box::new(move |ended| *result.lock() = Some(ended));
        // SAFETY: the caller of `cableway_mp_post` keeps the memory until the message is over; a copy is the job's own.
        unsafe { self.window.window.start(&access, Some(then)) }
    }
}

impl StreamJob for Move {
    fn poll(&mut self) -> Option<Result<(), Error>> {
        if !std::mem::replace(&mut self.started, true)
            && let Err(error) = self.start()
        {
            return Some(Err(error));
        }
        if self.after.as_ref().is_none_or(MessageWatch::is_over) {
            self.after = None;
            let ended = self.result.lock().take();
            if ended.is_some() {
                return ended;
            }
        }
        self.window.check().err().map(Err)
    }
}
