//! Who is at the other end of a fresh connection: a state machine without sockets or clock.
//!
//! ```text
//! client                                server
//!   Hello  (job, from, to, link, nonce)   ->
//!                                         <-  Challenge (nonce, proof that the server knows the job's secret)
//!   Proof  (that the client knows it)     ->
//!                                         <-  Verdict (accept, already connected, or closed for good)
//!   Confirm, if the client's rank is the lower  ->
//! ```
//!
//! Both ends may connect at once. Of two ranks the lower one is the arbiter: of the connections for one link, the
//! first that is complete in its eyes carries the link. It says so as a server by its verdict, as a client by
//! [`Confirm`](Told::Confirmed); no frame travels on a connection before. Every message has a fixed size and the next
//! one is only read when the one before was judged, so that frames stay in the socket for the frames' reader.

use cableway_base::Rank;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::VERSION;

/// `CABLEWAY`, as bytes on the wire.
const MAGIC: U64 = U64::from_bytes(*b"CABLEWAY");
/// Links between two processes, at most.
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
    from: U32,
    to: U32,
    reserved: U32,
    job: [u8; 16],
    nonce: [u8; 24],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Challenge {
    nonce: [u8; 32],
    proof: [u8; 32],
}

const HELLO: usize = size_of::<Hello>();
const CHALLENGE: usize = size_of::<Challenge>();
const PROOF: usize = 32;
const WORD: usize = size_of::<U32>();
/// The longest message.
pub(crate) const LONGEST: usize = 64;

const _: () = {
    use memoffset::offset_of;
    assert!(HELLO == LONGEST && CHALLENGE == LONGEST);
    assert!(offset_of!(Hello, magic) == 0);
    assert!(offset_of!(Hello, version) == 8);
    assert!(offset_of!(Hello, link) == 10);
    assert!(offset_of!(Hello, from) == 12);
    assert!(offset_of!(Hello, to) == 16);
    assert!(offset_of!(Hello, reserved) == 20);
    assert!(offset_of!(Hello, job) == 24);
    assert!(offset_of!(Hello, nonce) == 40);
    assert!(offset_of!(Challenge, proof) == 32);
};

/// This process, as handshakes need to know it.
pub(crate) struct Identity {
    job: [u8; 16],
    secret: [u8; 32],
    pub(crate) rank: Rank,
    size: u32,
}

impl Identity {
    pub(crate) fn new(job: &cableway_btl::Job) -> Self {
        let mut name = [0; 16];
        name.copy_from_slice(&Sha256::digest(job.id.as_bytes())[..16]);
        Identity { job: name, secret: job.secret, rank: job.rank, size: job.size }
    }

    /// A proof for one role, over both sides' words of this connection.
    fn mac(&self, role: &[u8; 6], hello: &Hello, nonce: &[u8; 32]) -> Hmac<Sha256> {
        // An HMAC key may have any length; a longer or shorter one than the block is no error.
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.secret)
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of every length"));
        mac.update(role);
        mac.update(hello.as_bytes());
        mac.update(nonce);
        mac
    }
}

/// One connection's handshake, either end's.
pub(crate) struct Handshake {
    state: State,
    hello: Hello,
    nonce: [u8; 32],
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

/// What a completed message means.
#[derive(Debug)]
pub(crate) enum Told {
    /// Send this.
    Reply(Reply),
    /// Server: the client has proved to be this rank. Answer with [`Handshake::judge`].
    Proved { from: Rank, link: usize },
    /// Server: the arbiter has chosen this connection.
    Confirmed { from: Rank, link: usize },
    /// Client: the server takes the connection. The arbiter answers with [`Handshake::confirm`] or closes it.
    Accepted,
    /// Client: the link is connected otherwise, or about to be.
    Duplicate,
    /// Client: the server has closed the link in good order.
    Left,
}

/// Whether a server lets a connection carry the link that it was made for.
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

/// Why the other end is not one of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it does not speak this protocol")]
    NotOurs,
    #[error("it speaks version {0}, this process version {VERSION}")]
    Version(u16),
    #[error("it belongs to another job")]
    Job,
    #[error(
        "it says to be rank {from} and to look for rank {to}, in a job of {size} processes of which this is rank {rank}"
    )]
    Rank { from: Rank, to: Rank, rank: Rank, size: u32 },
    #[error("it asks for link {0} where there are at most {MAX_LINKS}")]
    Link(usize),
    #[error("it does not know the job's secret")]
    Secret,
}

/// Random bytes that a handshake is started with.
pub(crate) type Nonce = [u8; 32];

impl Handshake {
    /// The client's end, and the first message to send.
    pub(crate) fn client(identity: &Identity, peer: Rank, link: usize, nonce: Nonce) -> (Self, Reply) {
        let mut hello = Hello {
            magic: MAGIC,
            version: U16::new(VERSION),
            link: U16::new(link as u16),
            from: U32::new(identity.rank),
            to: U32::new(peer),
            reserved: U32::ZERO,
            job: identity.job,
            nonce: [0; 24],
        };
        hello.nonce.copy_from_slice(&nonce[..24]);
        (Self::new(State::AwaitChallenge, hello, [0; 32]), Reply::new(hello.as_bytes()))
    }

    /// The server's end. `nonce` must never have been used before.
    pub(crate) fn server(nonce: Nonce) -> Self {
        Self::new(State::AwaitHello, zerocopy::FromZeros::new_zeroed(), nonce)
    }

    fn new(state: State, hello: Hello, nonce: Nonce) -> Self {
        Handshake { state, hello, nonce, inbox: [0; LONGEST], have: 0 }
    }

    /// Bytes that may be read now: to the end of the message awaited, and none of what follows. 0 once it is over.
    pub(crate) fn wants(&self) -> usize {
        let length = match self.state {
            State::AwaitHello => HELLO,
            State::AwaitChallenge => CHALLENGE,
            State::AwaitProof => PROOF,
            State::AwaitVerdict | State::AwaitConfirm => WORD,
            State::Over => 0,
        };
        length.saturating_sub(self.have)
    }

    /// Takes bytes, at most as many as it [`wants`](Self::wants). None: the message is not complete yet.
    ///
    /// # Errors
    /// The other end is none of ours; to be disconnected.
    pub(crate) fn receive(&mut self, identity: &Identity, bytes: &[u8]) -> Result<Option<Told>, Refusal> {
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
            State::AwaitVerdict => self.on_verdict().map(Some),
            State::Over => Ok(None),
        }
    }

    /// Server, once [`Told::Proved`]: whether the link is to be carried by this connection.
    pub(crate) fn judge(&mut self, identity: &Identity, verdict: Verdict) -> Reply {
        let arbiter = identity.rank < self.hello.from.get();
        self.state = if verdict == Verdict::Accept && !arbiter { State::AwaitConfirm } else { State::Over };
        let word = match verdict {
            Verdict::Accept => ACCEPT,
            Verdict::Duplicate => DUPLICATE,
            Verdict::Left => LEFT,
        };
        Reply::new(word.as_bytes())
    }

    /// Client that is the arbiter, once [`Told::Accepted`]: this connection carries the link.
    pub(crate) fn confirm() -> Reply {
        Reply::new(CONFIRM.as_bytes())
    }

    /// Server: who the client says to be, if it has come so far.
    pub(crate) fn claimed(&self) -> Option<Rank> {
        (self.state != State::AwaitHello).then(|| self.hello.from.get())
    }

    /// Whether the other end is the arbiter and needs no further word of ours to choose this connection: frames of its
    /// may follow already.
    pub(crate) fn may_carry(&self) -> bool {
        match self.state {
            State::AwaitVerdict => self.hello.to.get() < self.hello.from.get(),
            State::AwaitConfirm => true,
            _ => false,
        }
    }

    fn on_hello(&mut self, identity: &Identity) -> Result<Told, Refusal> {
        let hello: Hello = zerocopy::transmute!(self.inbox);
        if hello.magic != MAGIC || hello.reserved != U32::ZERO {
            return Err(Refusal::NotOurs);
        }
        if hello.version.get() != VERSION {
            return Err(Refusal::Version(hello.version.get()));
        }
        if hello.job != identity.job {
            return Err(Refusal::Job);
        }
        let (from, to) = (hello.from.get(), hello.to.get());
        if to != identity.rank || from == identity.rank || from >= identity.size {
            return Err(Refusal::Rank { from, to, rank: identity.rank, size: identity.size });
        }
        if usize::from(hello.link.get()) >= MAX_LINKS {
            return Err(Refusal::Link(hello.link.get().into()));
        }
        self.hello = hello;
        self.state = State::AwaitProof;
        let proof = identity.mac(b"server", &hello, &self.nonce).finalize().into_bytes();
        Ok(Told::Reply(Reply::new(Challenge { nonce: self.nonce, proof: proof.into() }.as_bytes())))
    }

    fn on_challenge(&mut self, identity: &Identity) -> Result<Told, Refusal> {
        let challenge: Challenge = zerocopy::transmute!(self.inbox);
        identity
            .mac(b"server", &self.hello, &challenge.nonce)
            .verify_slice(&challenge.proof)
            .map_err(|_| Refusal::Secret)?;
        self.state = State::AwaitVerdict;
        let proof = identity.mac(b"client", &self.hello, &challenge.nonce).finalize().into_bytes();
        Ok(Told::Reply(Reply::new(&proof)))
    }

    fn on_proof(&mut self, identity: &Identity) -> Result<Told, Refusal> {
        self.state = State::Over;
        identity
            .mac(b"client", &self.hello, &self.nonce)
            .verify_slice(&self.inbox[..PROOF])
            .map_err(|_| Refusal::Secret)?;
        Ok(Told::Proved { from: self.hello.from.get(), link: self.hello.link.get().into() })
    }

    fn on_verdict(&mut self) -> Result<Told, Refusal> {
        self.state = State::Over;
        match self.word() {
            ACCEPT => Ok(Told::Accepted),
            DUPLICATE => Ok(Told::Duplicate),
            LEFT => Ok(Told::Left),
            _ => Err(Refusal::NotOurs),
        }
    }

    fn on_confirm(&mut self) -> Result<Told, Refusal> {
        self.state = State::Over;
        if self.word() != CONFIRM {
            return Err(Refusal::NotOurs);
        }
        Ok(Told::Confirmed { from: self.hello.from.get(), link: self.hello.link.get().into() })
    }

    fn word(&self) -> U32 {
        let [a, b, c, d, ..] = self.inbox;
        U32::from_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests;
