//! The queue of bytes to be written to a connection.
//!
//! Messages keep their order. A `put` is not ordered with messages, so it is divided into pieces, of which only a few
//! are queued at a time. So a message waits only for those.

use std::collections::{HashMap, VecDeque};
use std::io;

use crate::sys::Socket;
use cableway_btl::Token;
use smallvec::SmallVec;

use crate::pool::Buffer;
use crate::sys::{self, Slice};
use crate::wire::{self, HEADER, MAX_PUT};

/// The number of bytes written in one call, so that one connection does not delay the others.
const BUDGET: usize = 4 << 20;
/// The number of bytes in queued pieces of puts, enough for an efficient system call.
const PIECES: usize = MAX_PUT;
/// The number of items in one system call.
const GATHERED: usize = 16;
/// Copied messages are joined up to this size.
const JOINED: usize = 16 << 10;

type Head = SmallVec<[u8; 256]>;

struct Item {
    /// The frame header and copied data.
    head: Head,
    body: Body,
    /// The number of bytes of header and body that the kernel has accepted.
    written: usize,
}

enum Body {
    None,
    Fragment {
        buffer: Buffer,
        len: usize,
    },
    /// Memory of the user, readable until the item is complete.
    Memory {
        address: *mut u8,
        len: usize,
        done: Done,
    },
}

enum Done {
    Message(Token),
    PutPiece { last: bool },
}

struct Put {
    address: *mut u8,
    len: usize,
    /// The number of bytes already divided into pieces.
    cut: usize,
    key: u64,
    offset: u64,
    token: Token,
    /// Set if the peer must confirm that it has stored everything.
    confirmation: Option<u64>,
}

/// A range of the user's memory, and the object that reports its release.
pub(crate) struct Source {
    pub(crate) address: *mut u8,
    pub(crate) len: usize,
    pub(crate) token: Token,
}

#[derive(Default)]
pub(crate) struct Outbox {
    items: VecDeque<Item>,
    /// The bytes of `items` that are copies.
    copied: usize,
    puts: VecDeque<Put>,
    /// The number of `puts`, from the first, whose pieces are all queued.
    cut: usize,
    /// The bytes in queued pieces.
    pieces: usize,
    unconfirmed: HashMap<u64, Token>,
    next_confirmation: u64,
    finished: Vec<Token>,
}

// SAFETY: the raw pointers are users' memory, which their owners promised to keep readable until their tokens are
// reported, from whatever thread that happens.
unsafe impl Send for Outbox {}

impl Item {
    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

impl Body {
    fn len(&self) -> usize {
        match self {
            Body::None => 0,
            Body::Fragment { len, .. } | Body::Memory { len, .. } => *len,
        }
    }

    fn address(&self) -> *mut u8 {
        match self {
            Body::None => std::ptr::NonNull::dangling().as_ptr(),
            Body::Fragment { buffer, .. } => buffer.as_ptr().cast_mut(),
            Body::Memory { address, .. } => *address,
        }
    }
}

impl Outbox {
    /// Returns whether nothing is queued.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.puts.is_empty()
    }

    /// Returns the number of queued copied bytes.
    #[inline]
    pub(crate) fn copied(&self) -> usize {
        self.copied
    }

    /// Returns the number of queued messages and pieces.
    pub(crate) fn waiting(&self) -> usize {
        self.items.len() + self.puts.len()
    }

    /// Queues a copy of `parts` without the first `skip` bytes, which are already written.
    pub(crate) fn push_copy(&mut self, parts: &[&[u8]], mut skip: usize) {
        let joined = self.items.back_mut().filter(|item| matches!(item.body, Body::None) && item.head.len() < JOINED);
        let item = match joined {
            Some(item) => item,
            None => {
                self.items.push_back(Item { head: Head::new(), body: Body::None, written: 0 });
                let last = self.items.len() - 1;
                &mut self.items[last]
            }
        };
        for part in parts {
            let rest = &part[skip.min(part.len())..];
            skip -= part.len() - rest.len();
            item.head.extend_from_slice(rest);
            self.copied += rest.len();
        }
    }

    /// Queues a message whose bytes are in a fragment.
    pub(crate) fn push_fragment(&mut self, buffer: Buffer, len: usize, written: usize) {
        self.push(&wire::message(len), Body::Fragment { buffer, len }, written);
    }

    /// Queues a message of `header` and memory.
    pub(crate) fn push_in_place(&mut self, header: &[u8], source: Source, written: usize) {
        let mut head = Head::from_slice(&wire::message(header.len() + source.len));
        head.extend_from_slice(header);
        let Source { address, len, token } = source;
        self.push(&head, Body::Memory { address, len, done: Done::Message(token) }, written);
    }

    /// Queues a `put`.
    pub(crate) fn push_put(&mut self, source: Source, key: u64, offset: u64, confirm: bool) {
        let confirmation = confirm.then_some(self.next_confirmation);
        self.next_confirmation += u64::from(confirm);
        let Source { address, len, token } = source;
        self.puts.push_back(Put { address, len, cut: 0, key, offset, token, confirmation });
    }

    fn push(&mut self, head: &[u8], body: Body, written: usize) {
        self.copied += head.len();
        self.items.push_back(Item { head: Head::from_slice(head), body, written });
    }

    /// Records that the peer has stored a `put`. Returns false if there is no such put, or it was confirmed before.
    pub(crate) fn confirmed(&mut self, confirmation: u64) -> bool {
        let token = self.unconfirmed.remove(&confirmation);
        self.finished.extend(token);
        token.is_some()
    }

    /// Takes the tokens of operations that completed since the last call.
    pub(crate) fn take_finished(&mut self) -> Vec<Token> {
        std::mem::take(&mut self.finished)
    }

    /// Returns whether `token` completed since the last [`take_finished`](Self::take_finished), and removes it.
    pub(crate) fn take_finished_one(&mut self, token: Token) -> bool {
        let found = self.finished.iter().position(|&finished| finished == token);
        found.map(|index| self.finished.swap_remove(index)).is_some()
    }

    /// Drops everything queued. Returns the tokens of incomplete operations.
    pub(crate) fn abandon(&mut self) -> Vec<Token> {
        let mut tokens: Vec<Token> = self.unconfirmed.drain().map(|(_, token)| token).collect();
        for item in self.items.drain(..) {
            if let Body::Memory { done: Done::Message(token), .. } = item.body {
                tokens.push(token);
            }
        }
        tokens.extend(self.puts.drain(..).map(|put| put.token));
        self.cut = 0;
        self.pieces = 0;
        self.copied = 0;
        tokens
    }

    /// Writes until nothing is queued, the socket is full, or the budget is used up.
    ///
    /// # Errors
    /// The connection is broken.
    pub(crate) fn write(&mut self, socket: &Socket) -> io::Result<()> {
        let mut budget = BUDGET;
        loop {
            self.cut_pieces();
            if self.items.is_empty() || budget == 0 {
                return Ok(());
            }
            let mut slices = [Slice::of(&[]); 2 * GATHERED];
            let mut count = 0;
            let mut total = 0;
            for item in self.items.iter().take(GATHERED) {
                let in_head = item.written.min(item.head.len());
                let in_body = item.written - in_head;
                slices[count] = Slice::of(&item.head[in_head..]);
                // SAFETY: `written` never exceeds the item's length, so the offset lies within the body.
                let rest = unsafe { item.body.address().add(in_body) };
                slices[count + 1] = Slice::new(rest, item.body.len() - in_body);
                total += slices[count].len() + slices[count + 1].len();
                count += 2;
            }
            // SAFETY: heads and fragments are ours while queued; users' memory is readable until its token is reported.
            match unsafe { sys::send_vectored(socket, &slices[..count]) } {
                Ok(sent) => {
                    self.advance(sent);
                    budget = budget.saturating_sub(sent);
                    if sent < total {
                        return Ok(());
                    }
                }
                Err(error) if is_transient(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Queues the next pieces of puts, unless enough are queued.
    fn cut_pieces(&mut self) {
        while self.pieces < PIECES {
            let Some(put) = self.puts.get_mut(self.cut) else { return };
            let len = MAX_PUT.min(put.len - put.cut);
            let last = put.cut + len == put.len;
            let head = wire::put(put.key, put.offset + put.cut as u64, len, put.confirmation.filter(|_| last));
            // SAFETY: `cut` is at most the length of the source.
            let address = unsafe { put.address.add(put.cut) };
            put.cut += len;
            self.cut += usize::from(last);
            self.pieces += len;
            self.push(&head, Body::Memory { address, len, done: Done::PutPiece { last } }, 0);
        }
    }

    /// Records that the kernel has accepted `sent` bytes.
    fn advance(&mut self, mut sent: usize) {
        while let Some(item) = self.items.front_mut() {
            let count = sent.min(item.len() - item.written);
            sent -= count;
            item.written += count;
            if item.written < item.len() {
                return;
            }
            let Some(item) = self.items.pop_front() else { return };
            self.copied = self.copied.saturating_sub(item.head.len());
            match item.body {
                Body::Memory { done: Done::Message(token), .. } => self.finished.push(token),
                Body::Memory { done: Done::PutPiece { last }, len, .. } => {
                    self.pieces -= len;
                    if last {
                        self.put_written();
                    }
                }
                Body::None | Body::Fragment { .. } => {}
            }
        }
    }

    /// Handles the end of the first `put`: pieces are written in the order of their puts.
    fn put_written(&mut self) {
        let Some(put) = self.puts.pop_front() else { return };
        self.cut -= 1;
        match put.confirmation {
            Some(confirmation) => {
                self.unconfirmed.insert(confirmation, put.token);
            }
            None => self.finished.push(put.token),
        }
    }
}

/// Returns whether the socket may accept more later.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// The bytes of a message's frame before its payload.
pub(crate) const fn overhead(header: usize) -> usize {
    HEADER + header
}
