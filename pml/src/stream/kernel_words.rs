//! Words of host memory that a running kernel and this process exchange.
//!
//! A message has a line of 128 bytes. Words that the kernel writes, and the one that it reads, are in different cache
//! lines. All of them are 0 at first.
//!
//! | bytes | word | written by |
//! |---|---|---|
//! | 0 to 7 | *start* | the kernel: the message may start |
//! | 8 to 15 | *seen* | the kernel: it has seen the end of the message |
//! | 64 to 71 | *over* | the thread: the message has ended, well or not |

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_common_cuda::{DeviceError, MappingsHeld, ProgramStream, StreamWords};
use parking_lot::Mutex;

use super::operation::Message;
use crate::error::Error;

/// Words of a line.
const LINE: usize = 16;
/// Words in a line.
const START: usize = 0;
const SEEN: usize = 1;
const OVER: usize = 8;
/// Lines of a board: more than most kernels use at a time, because the driver may wait for kernels when it registers
/// another board.
const LINES: usize = 1024;
/// Questions of [`KernelWords::is_settled`] between two whether the kernel's context still works.
const CHECK_EVERY: u64 = 1 << 12;

const _: () = assert!(LINE * 8 == 128 && OVER * 8 == 64);

/// What kernels of an engine use.
#[derive(Default)]
pub(super) struct Kernels {
    /// They stay registered: unregistering may wait for kernels.
    boards: Mutex<Vec<Arc<Board>>>,
    /// By the communicator and the rank to which messages go.
    orders: Mutex<HashMap<(usize, i32), Arc<MessageOrder>>>,
}

struct Board {
    words: StreamWords,
    used: Mutex<Vec<bool>>,
    /// Why no kernel writes to the words any more.
    over: OnceLock<DeviceError>,
}

/// The words of one message.
///
/// While the value lives, no memory of a peer is mapped, because the driver would wait for the kernel.
pub struct KernelWords {
    board: Arc<Board>,
    line: usize,
    /// The kernel waits for the message's end.
    awaited: AtomicBool,
    /// How often [`is_settled`](Self::is_settled) was asked.
    asked: AtomicU64,
    _held: MappingsHeld,
}

/// The order in which messages to one rank start. The thread looks at the first one only.
pub(super) struct Order<M> {
    inner: Mutex<Waiting<M>>,
}

pub(super) type MessageOrder = Order<Arc<Message>>;

struct Waiting<M> {
    /// The thread looks at a message.
    has_first: bool,
    behind: VecDeque<M>,
}

impl Kernels {
    /// Takes words that kernels in the context of a stream reach. May register memory with the driver.
    pub(super) fn take(&self, program: &ProgramStream, held: MappingsHeld) -> Result<KernelWords, DeviceError> {
        let taken = self
            .boards
            .lock()
            .iter()
            .filter(|board| program.shares_context(&board.words))
            .find_map(|board| Some((board.clone(), board.take()?)));
        let (board, line) = match taken {
            Some(taken) => taken,
            None => {
                // Without the lock, which the thread takes as well: the driver may wait for a kernel that waits for it.
                let (words, mut used) = (program.words(LINES * LINE)?, vec![false; LINES]);
                used[0] = true;
                let board = Arc::new(Board { words, used: Mutex::new(used), over: OnceLock::new() });
                self.boards.lock().push(board.clone());
                (board, 0)
            }
        };
        let words = KernelWords { board, line, awaited: AtomicBool::new(false), asked: AtomicU64::new(0), _held: held };
        [START, SEEN, OVER].into_iter().for_each(|word| words.store(word, 0));
        Ok(words)
    }

    /// Returns the order of messages to a rank.
    pub(super) fn order(&self, communicator: usize, dest: i32) -> Arc<MessageOrder> {
        self.orders.lock().entry((communicator, dest)).or_default().clone()
    }

    /// Notes in which contexts no kernel writes to words any more.
    pub(super) fn check(&self) {
        let boards = self.boards.lock().clone();
        boards.iter().for_each(|board| board.check());
    }

    /// Ends what waits for other messages, and lets kernels pass every wait for a message that has not ended: nobody looks at
    /// it any more.
    pub(super) fn give_up(&self) {
        let waiting: Vec<_> =
            self.orders.lock().values().flat_map(|order| std::iter::from_fn(|| order.pass())).collect();
        waiting.iter().for_each(|message| message.end(Err(Error::StreamsEnded)));
        for board in &*self.boards.lock() {
            let used = board.used.lock();
            let lines = used.iter().enumerate().filter(|(_, used)| **used).map(|(line, _)| line * LINE + OVER);
            lines.for_each(|over| {
                if board.words.load(over) == 0 {
                    board.words.store(over, KernelWords::FAILED);
                }
            });
        }
    }
}

impl Board {
    /// Notes that the context is destroyed, or that a kernel has faulted there.
    fn check(&self) {
        if self.over.get().is_none()
            && let Err(error) = self.words.check()
        {
            let _ = self.over.set(error);
        }
    }

    fn take(&self) -> Option<usize> {
        let mut used = self.used.lock();
        let line = used.iter().position(|used| !used)?;
        used[line] = true;
        Some(line)
    }
}

impl<M> Default for Order<M> {
    fn default() -> Self {
        Order { inner: Mutex::new(Waiting { has_first: false, behind: VecDeque::new() }) }
    }
}

impl<M> Order<M> {
    /// Adds a message. Returns it if it is the first one.
    pub(super) fn add(&self, message: M) -> Option<M> {
        let mut inner = self.inner.lock();
        if std::mem::replace(&mut inner.has_first, true) {
            inner.behind.push_back(message);
            return None;
        }
        Some(message)
    }

    /// Notes that the first message has started. Returns the next one, which is the first one now.
    pub(super) fn pass(&self) -> Option<M> {
        let mut inner = self.inner.lock();
        let next = inner.behind.pop_front();
        inner.has_first = next.is_some();
        next
    }
}

impl KernelWords {
    /// What a kernel stores to *start* and to *seen*, and finds in *over* after a message that ended well.
    pub const SET: u64 = 1;
    /// What a kernel finds in *over* after a message that failed.
    pub const FAILED: u64 = 2;

    /// Returns the address of *start* as a kernel sees it.
    pub fn start_address(&self) -> u64 {
        self.board.words.device_address(self.line * LINE + START)
    }

    /// Returns the address of *seen* as a kernel sees it.
    pub fn seen_address(&self) -> u64 {
        self.board.words.device_address(self.line * LINE + SEEN)
    }

    /// Returns the address of *over* as a kernel sees it.
    pub fn over_address(&self) -> u64 {
        self.board.words.device_address(self.line * LINE + OVER)
    }

    /// Returns whether the kernel has started the message. What it wrote before is visible after that.
    ///
    /// # Errors
    /// No kernel will start it any more.
    pub(super) fn is_started(&self) -> Result<bool, Error> {
        // First: what a kernel stored before it faulted counts.
        let over = self.board.over.get();
        match (self.load(START) != 0, over) {
            (false, Some(error)) => Err(Error::StreamContext(error.clone())),
            (started, _) => Ok(started),
        }
    }

    /// Returns whether no kernel needs the words any more: the kernel has said that it saw the end of the message, or its
    /// context does no more work. To be asked again and again.
    pub fn is_settled(&self) -> bool {
        if self.is_seen() {
            return true;
        }
        if (self.asked.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(CHECK_EVERY) {
            self.board.check();
        }
        self.board.over.get().is_some()
    }

    /// Returns whether the kernel has said that it saw the end of the message.
    fn is_seen(&self) -> bool {
        self.load(SEEN) != 0
    }

    /// Notes that the kernel waits for the message's end. The words are used again only after it has said that it saw it.
    pub(super) fn note_wait(&self) {
        self.awaited.store(true, Ordering::Relaxed);
    }

    /// Tells the kernel that the message is over.
    pub(super) fn tell_end(&self, well: bool) {
        self.store(OVER, if well { Self::SET } else { Self::FAILED });
    }

    fn load(&self, word: usize) -> u64 {
        self.board.words.load(self.line * LINE + word)
    }

    fn store(&self, word: usize, value: u64) {
        self.board.words.store(self.line * LINE + word, value);
    }
}

impl Drop for KernelWords {
    /// Gives the words back, unless a kernel may still read them.
    fn drop(&mut self) {
        if !self.awaited.load(Ordering::Relaxed) || self.is_seen() {
            self.board.used.lock()[self.line] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_is_looked_at() {
        let order = Order::default();
        assert_eq!((order.add(1), order.add(2), order.add(3)), (Some(1), None, None));
        assert_eq!(order.pass(), Some(2));
        assert_eq!(order.add(4), None);
        assert_eq!((order.pass(), order.pass(), order.pass()), (Some(3), Some(4), None));
        assert_eq!(order.add(5), Some(5));
    }

    #[test]
    fn each_rank_of_each_communicator_has_an_order() {
        let kernels = Kernels::default();
        assert!(Arc::ptr_eq(&kernels.order(1, 0), &kernels.order(1, 0)));
        assert!(!Arc::ptr_eq(&kernels.order(1, 0), &kernels.order(1, 1)));
        assert!(!Arc::ptr_eq(&kernels.order(1, 0), &kernels.order(2, 0)));
    }
}
