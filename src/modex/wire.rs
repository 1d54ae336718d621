//! Messages between a rank and the built-in launcher, over one stream socket for each rank.
//!
//! ```text
//! frame    | length: u32 | kind: u8 | body: length - 1 bytes |     little-endian; at most MAX_FRAME bytes
//! text     | length: u16 | UTF-8 |
//! ```
//!
//! A rank sends `Join` first. It then sends one request at a time. Every request but `Put` has a reply.

use cableway_base::Rank;

/// The version of the protocol. The launcher refuses ranks with another version.
pub(crate) const VERSION: u32 = 1;

/// Longest frame either side accepts, its length field not counted.
pub(crate) const MAX_FRAME: usize = 16 << 20;

/// A request of a rank.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Join the job: the first request.
    Join { version: u32 },
    /// Publish a value.
    Put { key: String, value: Vec<u8> },
    /// Wait for all ranks.
    Fence,
    /// Read a value that `peer` published.
    Get { peer: Rank, key: String },
}

/// A reply of the launcher.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The reply to `Join`. The secret is sent here, because other users can read arguments and environment.
    Welcome { id: String, secret: [u8; 32], rank: Rank, size: u32 },
    /// The reply to `Fence`.
    AllCame,
    /// The reply to `Get`.
    Value(Option<Vec<u8>>),
    /// The reply to a request that failed, with the reason.
    Refused(String),
}

/// An error in decoding a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a frame has {0} bytes, more than the longest one allowed")]
    TooLong(usize),
    #[error("a frame ends too early")]
    Short,
    #[error("a frame has {0} bytes too many")]
    Trailing(usize),
    #[error("a text is not UTF-8")]
    NotText,
    #[error("frame kind {0} is unknown")]
    Kind(u8),
}

/// Returns the content of the first frame in `bytes` and the bytes that the frame takes, or `None` if it is incomplete.
pub(crate) fn frame(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, Malformed> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_FRAME {
        return Err(Malformed::TooLong(length));
    }
    Ok(rest.get(..length).map(|content| (content, 4 + length)))
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Request::Join { version } => Writer::new(0).u32(*version).finish(),
            Request::Put { key, value } => Writer::new(1).text(key).bytes(value).finish(),
            Request::Fence => Writer::new(2).finish(),
            Request::Get { peer, key } => Writer::new(3).u32(*peer).text(key).finish(),
        }
    }

    pub(crate) fn decode(content: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(content);
        let request = match reader.u8()? {
            0 => Request::Join { version: reader.u32()? },
            1 => Request::Put { key: reader.text()?, value: reader.rest() },
            2 => Request::Fence,
            3 => Request::Get { peer: reader.u32()?, key: reader.text()? },
            kind => return Err(Malformed::Kind(kind)),
        };
        reader.finish(request)
    }
}

impl Reply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Welcome { id, secret, rank, size } => {
                Writer::new(0).text(id).bytes(secret).u32(*rank).u32(*size).finish()
            }
            Reply::AllCame => Writer::new(1).finish(),
            Reply::Value(None) => Writer::new(2).finish(),
            Reply::Value(Some(value)) => Writer::new(3).bytes(value).finish(),
            Reply::Refused(reason) => Writer::new(4).bytes(reason.as_bytes()).finish(),
        }
    }

    pub(crate) fn decode(content: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(content);
        let reply = match reader.u8()? {
            0 => Reply::Welcome {
                id: reader.text()?,
                secret: *reader.chunk()?,
                rank: reader.u32()?,
                size: reader.u32()?,
            },
            1 => Reply::AllCame,
            2 => Reply::Value(None),
            3 => Reply::Value(Some(reader.rest())),
            4 => Reply::Refused(String::from_utf8(reader.rest()).map_err(|_| Malformed::NotText)?),
            kind => return Err(Malformed::Kind(kind)),
        };
        reader.finish(reply)
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Self {
        Writer(vec![0, 0, 0, 0, kind])
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// Cuts a text that is too long for its length field. Keys and job names are far shorter.
    fn text(mut self, text: &str) -> Self {
        let longest = (0..=text.len().min(usize::from(u16::MAX))).rev().find(|&at| text.is_char_boundary(at));
        let text = &text[..longest.unwrap_or(0)];
        self.0.extend((text.len() as u16).to_le_bytes());
        self.bytes(text.as_bytes())
    }

    fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn chunk<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let (chunk, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(chunk)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.chunk::<1>().map(|&[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let length = usize::from(u16::from_le_bytes(*self.chunk()?));
        let (text, rest) = self.0.split_at_checked(length).ok_or(Malformed::Short)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| Malformed::NotText)
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }

    fn finish<T>(self, value: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(value) } else { Err(Malformed::Trailing(self.0.len())) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content(bytes: &[u8]) -> &[u8] {
        let (content, length) = frame(bytes).unwrap().unwrap();
        assert_eq!(length, bytes.len());
        content
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire(key in ".{0,40}", value: Vec<u8>, peer: u32, version: u32) {
            for request in [
                Request::Join { version },
                Request::Put { key: key.clone(), value },
                Request::Fence,
                Request::Get { peer, key },
            ] {
                let bytes = request.encode();
                prop_assert_eq!(Request::decode(content(&bytes)).unwrap(), request);
            }
        }

        #[test]
        fn replies_survive_the_wire(id in ".{0,40}", secret: [u8; 32], rank: u32, size: u32, value: Vec<u8>) {
            for reply in [
                Reply::Welcome { id: id.clone(), secret, rank, size },
                Reply::AllCame,
                Reply::Value(None),
                Reply::Value(Some(value)),
                Reply::Refused(id),
            ] {
                let bytes = reply.encode();
                prop_assert_eq!(Reply::decode(content(&bytes)).unwrap(), reply);
            }
        }

        #[test]
        fn garbage_is_refused_or_read_back_as_itself(bytes: Vec<u8>) {
            if let Ok(request) = Request::decode(&bytes) {
                prop_assert_eq!(&request.encode()[4..], &bytes[..]);
            }
            if let Ok(reply) = Reply::decode(&bytes) {
                prop_assert_eq!(&reply.encode()[4..], &bytes[..]);
            }
        }
    }

    #[test]
    fn frames_wait_for_their_end_and_huge_ones_are_refused() {
        let whole = Request::Fence.encode();
        for cut in 0..whole.len() {
            assert_eq!(frame(&whole[..cut]), Ok(None));
        }
        assert_eq!(frame(&u32::MAX.to_le_bytes()), Err(Malformed::TooLong(u32::MAX as usize)));
    }
}
