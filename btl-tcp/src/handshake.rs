//! The handshake that authenticates a new connection: a state machine without sockets or clock.
//!
//! ```text
//! client                                server
//!   Hello  (job, from, to, link, nonce)   ->
//!                                         <-  Challenge (nonce)
//!   Proof  (that the client knows the     ->
//!           server's secret)
//!                                         <-  Verdict (accept, already connected, or closed for good; proof that
//!                                             the server knows the client's secret)
//!   Confirm, if the client's rank is the lower  ->
//! ```
//!
//! The client proves itself first. The server checks the proof with its own data ([`Identity::is_proof`]). Before a
//! valid proof it assigns no number to the client and asks no other process about it.
//!
//! Both ends may connect at once. The lower rank of the two is the arbiter: the first complete connection for a link,
//! from the arbiter's view, carries the link. The arbiter announces its choice as a server by its verdict, and as a
//! client by [`Confirm`](HandshakeEvent::Confirmed). No frame is sent before that. Every message has a fixed size, and
//! the next one is read only after the previous one was checked, so that frames stay in the socket for the reader of
//! frames.

use cableway_base::Rank;
use cableway_btl::Identity;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::VERSION;

/// `CABLEWAY`, as bytes on the wire.
const MAGIC: U64 = U64::from_bytes(*b"CABLEWAY");
/// The largest number of links between two processes.
pub(crate) const MAX_LINKS: usize = 64;

const ACCEPT: U32 = U32::new(u32::from_le_bytes(*b"TAKE"));
const DUPLICATE: U32 = U32::new(u32::from_le_bytes(*b"DUPL"));
const LEFT: U32 = U32::new(u32::from_le_bytes(*b"LEFT"));
const CONFIRM: U32 = U32::new(u32::from_le_bytes(*b"CONF"));

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Hello {
    magic: U64,
    version: U16,
    link: U16,
    /// The names of both ends: within a job, their ranks.
    from: U64,
    to: U64,
    job: [u8; 16],
    nonce: [u8; 20],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireVerdict {
    word: U32,
    proof: [u8; PROOF],
}

const HELLO: usize = size_of::<Hello>();
const CHALLENGE: usize = size_of::<Nonce>();
const PROOF: usize = Identity::PROOF;
const VERDICT: usize = size_of::<WireVerdict>();
/// The role is a part of each proof, so that one end's proof cannot be reflected as the other's.
const SERVER: &[u8] = b"server";
const CLIENT: &[u8] = b"client";
const CONFIRMATION: usize = size_of::<U32>();
/// The longest message.
pub(crate) const LONGEST: usize = 64;

const _: () = {
    use memoffset::offset_of;
    assert!(HELLO == LONGEST && CHALLENGE <= LONGEST && PROOF <= LONGEST && VERDICT <= LONGEST);
    assert!(offset_of!(Hello, magic) == 0);
    assert!(offset_of!(Hello, version) == 8);
    assert!(offset_of!(Hello, link) == 10);
    assert!(offset_of!(Hello, from) == 12);
    assert!(offset_of!(Hello, to) == 20);
    assert!(offset_of!(Hello, job) == 28);
    assert!(offset_of!(Hello, nonce) == 44);
    assert!(offset_of!(WireVerdict, proof) == 4);
};

/// The handshake of one connection, at either end.
pub(crate) struct Handshake {
    state: State,
    /// The peer. A server knows it after a valid proof.
    peer: Rank,
    hello: Hello,
    /// The server's nonce. The client's is in its hello.
    nonce: Nonce,
    inbox: [u8; LONGEST],
    have: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    AwaitHello,
    AwaitProof,
    AwaitConfirm,
    AwaitChallenge,
    AwaitVerdict,
    Over,
}

/// The meaning of a complete message.
#[derive(Debug)]
pub(crate) enum HandshakeEvent {
    /// Send this.
    Reply(Reply),
    /// Server: the client has proved to be this rank. Answer with [`Handshake::judge`].
    Proved { from: Rank, link: usize },
    /// Server: the arbiter has selected this connection.
    Confirmed { from: Rank, link: usize },
    /// Client: the server accepts the connection. The arbiter answers with [`Handshake::confirm`] or closes it.
    Accepted,
    /// Client: another connection carries the link, or will.
    Duplicate,
    /// Client: the server has closed the link.
    Left,
}

/// The server's decision whether a connection carries the link that it was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept,
    /// Another connection carries it.
    Duplicate,
    /// The link was closed here.
    Left,
}

/// A message to send.
pub(crate) struct Reply {
    bytes: [u8; LONGEST],
    len: usize,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({} bytes)", self.len)
    }
}

impl Reply {
    fn new(bytes: &[u8]) -> Self {
        let mut reply = Reply { bytes: [0; LONGEST], len: bytes.len() };
        reply.bytes[..bytes.len()].copy_from_slice(bytes);
        reply
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Why the other end is a foreign process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it does not speak this protocol")]
    NotOurs,
    #[error("it speaks version {0}, this process version {VERSION}")]
    Version(u16),
    #[error("it belongs to another job")]
    Job,
    #[error(
        "it claims to be process {from:#x} and to connect to process {to:#x}, in a job of {size} processes; this is {name:#x}"
    )]
    Name { from: u64, to: u64, name: u64, size: u32 },
    #[error("it requests link {0}; there are at most {MAX_LINKS}")]
    Link(usize),
    #[error("it does not know the job's secret")]
    Secret,
    #[error("its secret is unavailable from the launcher")]
    NoSecret,
}

/// The random bytes for a handshake.
pub(crate) type Nonce = [u8; 32];

impl Handshake {
    /// Creates the client's end. Returns it with the first message to send.
    pub(crate) fn client(identity: &Identity, peer: Rank, link: usize, nonce: Nonce) -> (Self, Reply) {
        let mut hello = Hello {
            magic: MAGIC,
            version: U16::new(VERSION),
            link: U16::new(link as u16),
            from: U64::new(identity.job().own_name()),
            // A process without a name is refused.
            to: U64::new(identity.job().name_of(peer).unwrap_or(u64::MAX)),
            job: identity.digest(),
            nonce: [0; 20],
        };
        hello.nonce.copy_from_slice(&nonce[..20]);
        (Self::new(State::AwaitChallenge, peer, hello, [0; 32]), Reply::new(hello.as_bytes()))
    }

    /// Creates the server's end. `nonce` must never have been used before.
    pub(crate) fn server(nonce: Nonce) -> Self {
        Self::new(State::AwaitHello, Rank::MAX, zerocopy::FromZeros::new_zeroed(), nonce)
    }

    fn new(state: State, peer: Rank, hello: Hello, nonce: Nonce) -> Self {
        Handshake { state, peer, hello, nonce, inbox: [0; LONGEST], have: 0 }
    }

    /// Returns the number of bytes that may be read now: the rest of the awaited message. Returns 0 at the end.
    pub(crate) fn wants(&self) -> usize {
        let length = match self.state {
            State::AwaitHello => HELLO,
            State::AwaitChallenge => CHALLENGE,
            State::AwaitProof => PROOF,
            State::AwaitVerdict => VERDICT,
            State::AwaitConfirm => CONFIRMATION,
            State::Over => 0,
        };
        length.saturating_sub(self.have)
    }

    /// Handles bytes, at most as many as it [`wants`](Self::wants). Returns `None` if the message is incomplete.
    ///
    /// # Errors
    /// The other end is a foreign process. Disconnect it.
    pub(crate) fn receive(&mut self, identity: &Identity, bytes: &[u8]) -> Result<Option<HandshakeEvent>, Refusal> {
        let count = bytes.len().min(self.wants());
        self.inbox[self.have..self.have + count].copy_from_slice(&bytes[..count]);
        self.have += count;
        if self.state == State::AwaitHello && self.have >= 8 && self.inbox[..8] != MAGIC.to_bytes() {
            return Err(Refusal::NotOurs);
        }
        if self.wants() != 0 || self.state == State::Over {
            return Ok(None);
        }
        self.have = 0;
        match self.state {
            State::AwaitHello => self.on_hello(identity).map(Some),
            State::AwaitProof => self.on_proof(identity).map(Some),
            State::AwaitConfirm => self.on_confirm().map(Some),
            State::AwaitChallenge => self.on_challenge(identity).map(Some),
            State::AwaitVerdict => self.on_verdict(identity).map(Some),
            State::Over => Ok(None),
        }
    }

    /// Server, after [`HandshakeEvent::Proved`]: decides whether this connection carries the link.
    ///
    /// # Errors
    /// The client's secret is unavailable, so the client would reject the verdict.
    pub(crate) fn judge(&mut self, identity: &Identity, verdict: Verdict) -> Result<Reply, Refusal> {
        let arbiter = identity.decides(self.peer);
        self.state = if verdict == Verdict::Accept && !arbiter { State::AwaitConfirm } else { State::Over };
        let word = match verdict {
            Verdict::Accept => ACCEPT,
            Verdict::Duplicate => DUPLICATE,
            Verdict::Left => LEFT,
        };
        let words: &[&[u8]] = &[SERVER, self.hello.as_bytes(), &self.nonce, word.as_bytes()];
        let proof = identity.prove(self.peer, words).ok_or(Refusal::NoSecret)?;
        Ok(Reply::new(WireVerdict { word, proof }.as_bytes()))
    }

    /// Client and arbiter, after [`HandshakeEvent::Accepted`]: this connection carries the link.
    pub(crate) fn confirm() -> Reply {
        Reply::new(CONFIRM.as_bytes())
    }

    /// Server: returns the authenticated client.
    pub(crate) fn proved(&self) -> Option<Rank> {
        (!matches!(self.state, State::AwaitHello | State::AwaitProof)).then_some(self.peer)
    }

    /// Returns whether the peer is the arbiter and may select this connection without another message from here. Its
    /// frames may follow already.
    pub(crate) fn may_carry(&self) -> bool {
        match self.state {
            State::AwaitVerdict => self.hello.to.get() < self.hello.from.get(),
            State::AwaitConfirm => true,
            _ => false,
        }
    }

    fn on_hello(&mut self, identity: &Identity) -> Result<HandshakeEvent, Refusal> {
        let hello: Hello = zerocopy::transmute!(self.inbox);
        if hello.magic != MAGIC {
            return Err(Refusal::NotOurs);
        }
        if hello.version.get() != VERSION {
            return Err(Refusal::Version(hello.version.get()));
        }
        // A foreign process is recognized by its name.
        if hello.job != identity.digest() && identity.job().foreign_processes == 0 {
            return Err(Refusal::Job);
        }
        let (from, to, job) = (hello.from.get(), hello.to.get(), identity.job());
        // Processes of this job have fixed numbers. Other processes get one after a valid proof.
        let nobody = job.is_member(from) && job.rank_of(from).is_none();
        if to != job.own_name() || from == to || nobody {
            return Err(Self::unknown(identity, &hello));
        }
        if usize::from(hello.link.get()) >= MAX_LINKS {
            return Err(Refusal::Link(hello.link.get().into()));
        }
        self.hello = hello;
        self.state = State::AwaitProof;
        Ok(HandshakeEvent::Reply(Reply::new(&self.nonce)))
    }

    fn on_challenge(&mut self, identity: &Identity) -> Result<HandshakeEvent, Refusal> {
        self.nonce.copy_from_slice(&self.inbox[..CHALLENGE]);
        self.state = State::AwaitVerdict;
        let proof = identity.prove(self.peer, &[CLIENT, self.hello.as_bytes(), &self.nonce]);
        Ok(HandshakeEvent::Reply(Reply::new(&proof.ok_or(Refusal::NoSecret)?)))
    }

    fn on_proof(&mut self, identity: &Identity) -> Result<HandshakeEvent, Refusal> {
        self.state = State::Over;
        let (from, words): (_, &[&[u8]]) = (self.hello.from.get(), &[CLIENT, self.hello.as_bytes(), &self.nonce]);
        if !identity.is_proof(from, words, &self.inbox[..PROOF]) {
            return Err(Refusal::Secret);
        }
        self.peer = identity.job().rank_of(from).ok_or_else(|| Self::unknown(identity, &self.hello))?;
        Ok(HandshakeEvent::Proved { from: self.peer, link: self.hello.link.get().into() })
    }

    fn unknown(identity: &Identity, hello: &Hello) -> Refusal {
        let (name, size) = (identity.job().own_name(), identity.job().size);
        Refusal::Name { from: hello.from.get(), to: hello.to.get(), name, size }
    }

    fn on_verdict(&mut self, identity: &Identity) -> Result<HandshakeEvent, Refusal> {
        self.state = State::Over;
        let word = self.word();
        let words: &[&[u8]] = &[SERVER, self.hello.as_bytes(), &self.nonce, word.as_bytes()];
        if !identity.is_proof(self.hello.to.get(), words, &self.inbox[size_of::<U32>()..VERDICT]) {
            return Err(Refusal::Secret);
        }
        match word {
            ACCEPT => Ok(HandshakeEvent::Accepted),
            DUPLICATE => Ok(HandshakeEvent::Duplicate),
            LEFT => Ok(HandshakeEvent::Left),
            _ => Err(Refusal::NotOurs),
        }
    }

    fn on_confirm(&mut self) -> Result<HandshakeEvent, Refusal> {
        self.state = State::Over;
        if self.word() != CONFIRM {
            return Err(Refusal::NotOurs);
        }
        Ok(HandshakeEvent::Confirmed { from: self.peer, link: self.hello.link.get().into() })
    }

    fn word(&self) -> U32 {
        let [a, b, c, d, ..] = self.inbox;
        U32::from_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests;
