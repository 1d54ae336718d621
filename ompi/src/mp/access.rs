//! Puts and gets that a stream or the host starts, and that the thread of streams makes.

use std::sync::Arc;

use cableway_pml::{Access, Buffer, Change, Error, StreamJob};
use parking_lot::Mutex;

use super::order::Put;
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
    /// Its place among others, if it is a put.
    pub(super) put: Option<Put>,
    pub(super) started: bool,
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
            change: if self.put.is_some() { Change::Put(mine) } else { Change::Get(mine) },
        };
        let result = self.result.clone();
        let then = Box::new(move |ended| *result.lock() = Some(ended));
        // SAFETY: the caller of `cableway_mp_post` keeps the memory until the message is over; a copy is the job's own.
        unsafe { self.window.window.start(&access, Some(then)) }
    }
}

impl StreamJob for Move {
    fn poll(&mut self) -> Option<Result<(), Error>> {
        if !std::mem::replace(&mut self.started, true) {
            if let Err(error) = self.start() {
                *self.result.lock() = Some(Err(error));
            }
            if let Some(put) = &self.put {
                put.note_started();
            }
        }
        if self.put.as_ref().is_none_or(Put::may_end)
            && let Some(ended) = self.result.lock().take()
        {
            if let Some(put) = &self.put {
                put.note_over();
            }
            return Some(ended);
        }
        let error = self.window.check().err()?;
        // The engine may still read the bytes.
        if let Memory::Copied(bytes) = std::mem::replace(&mut self.memory, Memory::Program(0)) {
            Box::leak(bytes);
        }
        Some(Err(error))
    }

    fn let_go(&mut self) {
        if let Some(put) = &mut self.put {
            put.let_go();
            if !self.started {
                // It never will, so nothing waits for its end.
                put.note_over();
            }
        }
    }
}
