//! Messages that a peer may not have consumed. After a failure another transport can deliver them.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::memory::Buffer;

/// The longest message that is kept without an allocation. By default, this is the longest inline message.
pub(crate) const SMALL: usize = 64;

/// A message as it was sent.
pub(crate) enum Message {
    /// Its memory may be reused at once.
    Copied(SmallVec<[u8; SMALL]>),
    /// The device may read it until this work on that queue pair completes.
    Buffer { buffer: Buffer, len: usize, qp: u8, work: u32 },
}

/// The last messages sent to a peer. The peer reports consumption, so there are at most as many as its window.
#[derive(Default)]
pub(crate) struct Kept {
    /// The number of messages before these.
    before: u64,
    messages: VecDeque<Message>,
}

impl Kept {
    pub(crate) fn push(&mut self, message: Message) {
        self.messages.push_back(message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Releases memory beyond the need of that many messages.
    pub(crate) fn shrink_to(&mut self, messages: usize) {
        self.messages.shrink_to(messages);
    }

    /// Returns the number of messages ever sent.
    pub(crate) fn sent(&self) -> u64 {
        self.before + self.messages.len() as u64
    }

    /// Drops those among the first `consumed` messages that no work of a queue pair reads.
    #[inline]
    pub(crate) fn release(&mut self, consumed: u64, is_under_way: impl Fn(usize, u32) -> bool) {
        while self.before < consumed {
            match self.messages.front() {
                Some(&Message::Buffer { qp, work, .. }) if is_under_way(qp.into(), work) => return,
                Some(_) => drop(self.messages.pop_front()),
                None => return,
            }
            self.before += 1;
        }
    }

    /// Returns the messages after the first `consumed` that no work reads.
    pub(crate) fn take(&mut self, consumed: u64) -> VecDeque<Box<[u8]>> {
        let known = consumed.saturating_sub(self.before) as usize;
        let messages = std::mem::take(&mut self.messages);
        self.before += messages.len() as u64;
        messages.into_iter().skip(known).map(Message::into_bytes).collect()
    }
}

impl Message {
    /// Copies two runs into one message.
    #[inline]
    pub(crate) fn copied(header: &[u8], payload: &[u8]) -> Self {
        let total = header.len() + payload.len();
        if total > SMALL {
            return Message::Copied(SmallVec::from_vec([header, payload].concat()));
        }
        let mut small = [0; SMALL];
        small[..header.len()].copy_from_slice(header);
        small[header.len()..total].copy_from_slice(payload);
        Message::Copied(SmallVec::from_buf_and_len(small, total))
    }

    fn into_bytes(self) -> Box<[u8]> {
        match self {
            Message::Copied(bytes) => bytes.into_vec().into(),
            Message::Buffer { buffer, len, .. } => {
                let mut bytes = vec![0; len].into_boxed_slice();
                // SAFETY: the buffer belongs to this value, is at least `len` bytes long, and is not written now.
                unsafe { buffer.address().as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
                bytes
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Kept {
        let mut kept = Kept::default();
        (0..3).for_each(|number| kept.push(Message::Copied([number].into_iter().collect())));
        kept
    }

    #[test]
    fn consumed_messages_are_released() {
        let mut kept = three();
        kept.release(2, |_, _| false);
        assert_eq!((kept.sent(), kept.messages.len()), (3, 1));
        kept.release(1, |_, _| false);
        assert_eq!((kept.sent(), kept.messages.len()), (3, 1), "an older count changes nothing");
        assert_eq!(kept.take(2), [Box::from([2])]);
        assert_eq!(kept.sent(), 3);
    }

    #[test]
    fn two_runs_are_one_message() {
        let bytes: Vec<u8> = (0..2 * SMALL as u8).collect();
        for (first, second) in [(1, 0), (24, 8), (SMALL - 1, 1), (SMALL, 0), (SMALL, 1), (1, SMALL), (SMALL, SMALL)] {
            let (header, payload) = bytes[..first + second].split_at(first);
            assert_eq!(*Message::copied(header, payload).into_bytes(), bytes[..first + second], "{first} and {second}");
        }
    }

    #[test]
    fn unconsumed_messages_are_returned_in_order() {
        assert_eq!(three().take(0), [[0], [1], [2]].map(Box::from));
        assert!(three().take(3).is_empty());
    }
}
