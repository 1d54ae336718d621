//! Queues messages from this process to itself, and owns their memory.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_btl::FragmentOwner;
use parking_lot::Mutex;

/// The number of buffers that are kept for later messages. Further messages in flight allocate and free theirs.
const KEPT: usize = 64;

/// The memory of one message.
#[derive(Default)]
pub(crate) struct Message {
    memory: Vec<u8>,
    len: usize,
}

impl Message {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

/// Messages in order, and spare buffers.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// The number of waiting messages, so that an idle poll takes no lock.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct State {
    messages: VecDeque<Message>,
    spare: Vec<Vec<u8>>,
    /// Buffers lent out as fragments, by key; their memory does not move while lent.
    lent: slab::Slab<Vec<u8>>,
}

impl State {
    fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut memory = self.spare.pop().unwrap_or_default();
        if memory.len() < len {
            memory.resize(len, 0);
        }
        memory
    }

    fn keep(&mut self, memory: Vec<u8>) {
        if self.spare.len() < KEPT {
            self.spare.push(memory);
        }
    }
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    pub(crate) fn push(&self, header: &[u8], payload: &[u8]) {
        let mut state = self.state.lock();
        let len = header.len() + payload.len();
        let mut memory = state.buffer(len);
        memory[..header.len()].copy_from_slice(header);
        memory[header.len()..len].copy_from_slice(payload);
        state.messages.push_back(Message { memory, len });
        self.waiting.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn pop(&self) -> Option<Message> {
        let message = self.state.lock().messages.pop_front()?;
        self.waiting.fetch_sub(1, Ordering::Release);
        Some(message)
    }

    /// Keeps the memory of a delivered message for reuse.
    pub(crate) fn recycle(&self, message: Message) {
        self.state.lock().keep(message.memory);
    }

    /// Lends memory for a fragment. Returns it with its key.
    pub(crate) fn lend(&self, len: usize) -> (NonNull<u8>, u64) {
        let mut state = self.state.lock();
        let memory = state.buffer(len.max(1));
        let key = state.lent.insert(memory);
        // A vector of at least one byte has no null pointer, so `NonNull::dangling` is never used.
        let address = NonNull::new(state.lent[key].as_mut_ptr()).unwrap_or(NonNull::dangling());
        (address, key as u64)
    }

    /// Queues the first `len` bytes of a fragment.
    pub(crate) fn push_lent(&self, key: u64, len: usize) {
        let mut state = self.state.lock();
        let memory = state.lent.remove(key as usize);
        let len = len.min(memory.len());
        state.messages.push_back(Message { memory, len });
        self.waiting.fetch_add(1, Ordering::Release);
    }
}

impl FragmentOwner for Queue {
    fn give_back(&self, _memory: NonNull<u8>, key: u64) {
        let mut state = self.state.lock();
        let memory = state.lent.remove(key as usize);
        state.keep(memory);
    }
}
