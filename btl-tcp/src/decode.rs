//! Divides a stream of bytes into frames. It uses no sockets, no clock, and no memory except for a frame's header.

use zerocopy::{FromZeros, IntoBytes};

use crate::wire::{self, FrameHeader, HEADER, Head, MAX_PUT, PUT_DONE_FIELDS, PUT_FIELDS};

/// The decoder of one connection.
pub(crate) struct Decoder {
    /// The longest accepted message.
    max_message: usize,
    head: Head,
    /// The number of bytes in `head`.
    have: usize,
    /// The number of data bytes of the current frame that have not arrived.
    body: usize,
}

/// The next decoded item.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<'b> {
    /// All bytes were consumed, and no frame is complete.
    Starved,
    /// A complete message.
    Message(&'b [u8]),
    /// A message that is incomplete, or a piece of a `put`. The caller stores its data, starting with the rest of the
    /// bytes, and calls [`Decoder::placed`].
    Begin(Body),
    /// The peer has stored all data of a `put`.
    PutDone(u64),
    /// The peer says goodbye.
    Goodbye,
}

/// The frame whose data follows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Message { length: usize },
    Put { key: u64, offset: u64, length: usize, confirmation: Option<u64> },
}

/// Why the framing is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("a message of {length} bytes; at most {limit} are accepted")]
    LongMessage { length: usize, limit: usize },
    #[error("a piece of a put of {length} bytes; at most {MAX_PUT} are accepted")]
    LongPut { length: usize },
    #[error("a frame of kind {kind} that is {length} bytes long")]
    BadLength { kind: u8, length: usize },
    #[error("a frame of unknown kind {kind}, flags {flags}, reserved field {reserved}")]
    BadHeader { kind: u8, flags: u8, reserved: u16 },
}

impl Decoder {
    pub(crate) fn new(max_message: usize) -> Self {
        Decoder { max_message, head: Head::new_zeroed(), have: 0, body: 0 }
    }

    /// Returns the number of data bytes of the current frame that the caller must still store.
    pub(crate) fn missing(&self) -> usize {
        self.body
    }

    /// Records that the caller has stored `count` bytes, at most [`missing`](Self::missing).
    pub(crate) fn placed(&mut self, count: usize) {
        debug_assert!(count <= self.body);
        self.body = self.body.saturating_sub(count);
    }

    /// Decodes the next frame, or a part of it, from the front of `bytes`. Do not call it while data is
    /// [`missing`](Self::missing).
    ///
    /// # Errors
    /// The bytes are no frame. The decoder is unusable from now on.
    pub(crate) fn step<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Step<'b>, Violation> {
        debug_assert_eq!(self.body, 0, "the data of the frame before is to be placed first");
        if !self.fill(bytes, HEADER) {
            return Ok(Step::Starved);
        }
        let header = self.head.header;
        let length = header.length.get() as usize;
        self.check(&header, length)?;
        let length_of_fields = match header.kind {
            wire::PUT => PUT_FIELDS,
            wire::PUT_DONE => PUT_DONE_FIELDS,
            _ => 0,
        };
        if !self.fill(bytes, HEADER + length_of_fields) {
            return Ok(Step::Starved);
        }
        self.have = 0;
        let fields = self.head.fields;
        Ok(match header.kind {
            wire::MESSAGE => match bytes.split_at_checked(length) {
                Some((message, rest)) => {
                    *bytes = rest;
                    Step::Message(message)
                }
                None => {
                    self.body = length;
                    Step::Begin(Body::Message { length })
                }
            },
            wire::PUT => {
                let length = length - PUT_FIELDS;
                self.body = length;
                Step::Begin(Body::Put {
                    key: fields.key.get(),
                    offset: fields.offset.get(),
                    length,
                    confirmation: (header.flags & wire::CONFIRM != 0).then(|| fields.confirmation.get()),
                })
            }
            wire::PUT_DONE => Step::PutDone(fields.confirmation.get()),
            _ => Step::Goodbye,
        })
    }

    /// Fills the header up to `need` bytes from the front of `bytes`, as far as there are any.
    #[inline]
    fn fill(&mut self, bytes: &mut &[u8], need: usize) -> bool {
        let count = need.saturating_sub(self.have).min(bytes.len());
        let (taken, rest) = bytes.split_at(count);
        self.head.as_mut_bytes()[self.have..self.have + count].copy_from_slice(taken);
        self.have += count;
        *bytes = rest;
        self.have >= need
    }

    fn check(&self, header: &FrameHeader, length: usize) -> Result<(), Violation> {
        let known_flags = if header.kind == wire::PUT { wire::CONFIRM } else { 0 };
        if header.reserved.get() != 0
            || header.flags & !known_flags != 0
            || !(wire::MESSAGE..=wire::GOODBYE).contains(&header.kind)
        {
            return Err(Violation::BadHeader {
                kind: header.kind,
                flags: header.flags,
                reserved: header.reserved.get(),
            });
        }
        match header.kind {
            wire::MESSAGE if length > self.max_message => {
                Err(Violation::LongMessage { length, limit: self.max_message })
            }
            wire::PUT if length > PUT_FIELDS + MAX_PUT => Err(Violation::LongPut { length: length - PUT_FIELDS }),
            wire::PUT if length < PUT_FIELDS => Err(Violation::BadLength { kind: header.kind, length }),
            wire::PUT_DONE if length != PUT_DONE_FIELDS => Err(Violation::BadLength { kind: header.kind, length }),
            wire::GOODBYE if length != 0 => Err(Violation::BadLength { kind: header.kind, length }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Frame {
        Message(Vec<u8>),
        Put { key: u64, offset: u64, data: Vec<u8>, confirmation: Option<u64> },
        PutDone(u64),
        Goodbye,
    }

    impl Frame {
        fn encode(&self) -> Vec<u8> {
            match self {
                Frame::Message(data) => [&wire::message(data.len())[..], data].concat(),
                Frame::Put { key, offset, data, confirmation } => {
                    [&wire::put(*key, *offset, data.len(), *confirmation)[..], data].concat()
                }
                Frame::PutDone(confirmation) => wire::put_done(*confirmation).to_vec(),
                Frame::Goodbye => wire::goodbye().to_vec(),
            }
        }
    }

    /// Decodes pieces as they would arrive on a connection.
    fn decode(pieces: &[&[u8]]) -> Result<Vec<Frame>, Violation> {
        let mut decoder = Decoder::new(4096);
        let mut frames = Vec::new();
        let mut open: Option<(Body, Vec<u8>)> = None;
        for mut bytes in pieces.iter().copied() {
            loop {
                if let Some((body, data)) = &mut open {
                    let count = decoder.missing().min(bytes.len());
                    data.extend_from_slice(&bytes[..count]);
                    bytes = &bytes[count..];
                    decoder.placed(count);
                    if decoder.missing() != 0 {
                        break;
                    }
                    let data = std::mem::take(data);
                    frames.push(match *body {
                        Body::Message { .. } => Frame::Message(data),
                        Body::Put { key, offset, confirmation, .. } => Frame::Put { key, offset, data, confirmation },
                    });
                    open = None;
                }
                match decoder.step(&mut bytes)? {
                    Step::Starved => break,
                    Step::Message(data) => frames.push(Frame::Message(data.to_vec())),
                    Step::Begin(body) => open = Some((body, Vec::new())),
                    Step::PutDone(confirmation) => frames.push(Frame::PutDone(confirmation)),
                    Step::Goodbye => frames.push(Frame::Goodbye),
                }
            }
        }
        Ok(frames)
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let data = proptest::collection::vec(any::<u8>(), 0..300);
        prop_oneof![
            data.clone().prop_map(Frame::Message),
            (any::<u64>(), any::<u64>(), data, any::<Option<u64>>())
                .prop_map(|(key, offset, data, confirmation)| Frame::Put { key, offset, data, confirmation }),
            any::<u64>().prop_map(Frame::PutDone),
            Just(Frame::Goodbye),
        ]
    }

    proptest! {
        #[test]
        fn frames_survive_any_split(frames in proptest::collection::vec(frame(), 0..12), cuts in proptest::collection::vec(any::<u16>(), 0..24)) {
            let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut) % (bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(decode(&pieces), Ok(frames));
        }

        #[test]
        fn any_bytes_are_frames_or_a_violation(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _ = decode(&[&bytes]);
        }
    }

    #[test]
    fn lengths_and_kinds_are_checked() {
        let violation = |bytes: &[u8]| decode(&[bytes]).unwrap_err();
        assert_eq!(violation(&wire::message(4097)), Violation::LongMessage { length: 4097, limit: 4096 });
        assert_eq!(violation(&wire::put(0, 0, MAX_PUT + 1, None)), Violation::LongPut { length: MAX_PUT + 1 });
        assert_eq!(violation(&[23, 0, 0, 0, wire::PUT, 0, 0, 0]), Violation::BadLength { kind: wire::PUT, length: 23 });
        assert_eq!(
            violation(&[0, 0, 0, 0, wire::PUT_DONE, 0, 0, 0]),
            Violation::BadLength { kind: wire::PUT_DONE, length: 0 }
        );
        assert_eq!(
            violation(&[1, 0, 0, 0, wire::GOODBYE, 0, 0, 0]),
            Violation::BadLength { kind: wire::GOODBYE, length: 1 }
        );
        for header in
            [[0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 5, 0, 0, 0], [0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0, 0, 1]]
        {
            assert!(matches!(violation(&header), Violation::BadHeader { .. }), "{header:?}");
        }
    }
}
