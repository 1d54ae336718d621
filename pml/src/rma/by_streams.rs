//! Puts that streams make by themselves, to memory that their devices have mapped.
//!
//! The owner exposes the memory as for other direct accesses. An access of a stream counts until the stream has passed it
//! (`passing`), and the owner's revocation waits for that. This module neither maps nor copies: the layer of streams does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cableway_base::Rank;
use cableway_btl::Access;
use cableway_common_cuda::Exported;

use super::OneSided;
use super::caller::Caller;
use super::exposures::{Begin, Ticket, Wanted};
use super::gates::Reach;
use super::key::{Name, Place, RemoteKey};
use super::passing::{DeviceMemory, Passing};
use super::registry::Span;
use crate::buffer::Buffer;
use crate::core::Done;
use crate::error::Error;
use crate::status::Outcome;
use crate::tag::Request;

/// How long an owner is asked again whose default stream has work, which may wait for the caller.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two of these questions.
const PAUSE: Duration = Duration::from_millis(1);

/// The owner's answer to a caller that wants to map its memory.
pub(crate) enum Exposable {
    /// It can be mapped.
    Exposed(Exposure),
    /// No device maps it by a handle.
    Never,
    /// Its owner has work that an access would have to wait for, or ends the registration.
    NotNow,
}

/// Memory of a peer that its devices may map. The owner keeps it until this is dropped, and longer if streams access it.
pub(crate) struct Exposure {
    caller: Arc<Caller>,
    owner: Rank,
    ticket: Ticket,
    reach: Arc<Reach>,
    /// The allocation.
    pub(crate) exported: Exported,
    /// The offset of the registered memory in it.
    pub(crate) first: u64,
}

/// A put as a stream makes it.
pub(crate) struct StreamPut<'k> {
    pub(crate) to: Place<'k>,
    pub(crate) len: u64,
    /// The word that is set, and its value.
    pub(crate) signal: Option<(Place<'k>, u64)>,
    /// The id of the stream's context.
    pub(crate) context: u64,
}

/// Where a stream writes, by the addresses of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Targets {
    pub(crate) data: u64,
    pub(crate) word: Option<u64>,
}

impl OneSided {
    /// Asks the owner of memory of another process to expose it, and waits for the answer.
    ///
    /// # Errors
    /// The owner is gone.
    pub(crate) fn expose_to_streams(&self, key: &RemoteKey) -> Result<Exposable, Error> {
        let (mut asked, mut result) = (None, None);
        self.engine.wait_until(|| {
            result = self.look_at(key.rank(), &key.name(), &mut asked);
            result.is_some()
        });
        result.unwrap_or(Err(Error::Forked))
    }

    /// Has the owner check a key. Returns whether the owner is another process.
    ///
    /// # Errors
    /// The key is not valid or not valid any more, or the owner is gone.
    pub(crate) fn check_key(&self, key: &RemoteKey) -> Result<bool, Error> {
        if self.engine.is_forked() {
            return Err(Error::Forked);
        }
        let request = Request::new();
        // SAFETY: there is no data, and the request lives until it is complete.
        if unsafe { self.put(Buffer::EMPTY, key.at(0), None, &raw const request) }? == Outcome::Started {
            self.engine.wait(&[&request]);
            request.result()?;
        }
        Ok(key.rank() != self.me)
    }

    /// Looks for the owner's answer. `asked` has the times of the first and the last question.
    fn look_at(
        &self,
        owner: Rank,
        name: &Name,
        asked: &mut Option<(Instant, Instant)>,
    ) -> Option<Result<Exposable, Error>> {
        if let Err(error) = self.caller.check(owner) {
            return Some(Err(error));
        }
        match self.caller.exposures_of(owner, |exposures| exposures.want(name))? {
            Wanted::Use(reach, len) => Some(Ok(self.exposure(owner, name, reach, len))),
            Wanted::Asked => None,
            Wanted::Never => Some(Ok(Exposable::Never)),
            Wanted::Ending => Some(Ok(Exposable::NotNow)),
            Wanted::Unknown => {
                let now = Instant::now();
                let (first, last) = asked.unwrap_or((now, now));
                if now.duration_since(first) > PATIENCE {
                    return Some(Ok(Exposable::NotNow));
                }
                let due = asked.is_none() || now.duration_since(last) > PAUSE;
                if due && matches!(self.caller.exposures_of(owner, |exposures| exposures.ask(name)), Some(Begin::Ask)) {
                    *asked = Some((first, now));
                    self.caller.ask_to_expose(owner, name);
                }
                None
            }
        }
    }

    /// Takes over a use of memory.
    fn exposure(&self, owner: Rank, name: &Name, reach: Arc<Reach>, len: u64) -> Exposable {
        let described = self.describe(owner, &reach, len);
        let ticket = Ticket::from(name);
        match described {
            Some((exported, first)) => {
                Exposable::Exposed(Exposure { caller: self.caller.clone(), owner, ticket, reach, exported, first })
            }
            None => {
                self.caller.end_use(owner, ticket);
                Exposable::Never
            }
        }
    }

    /// Has the link describe exposed memory.
    fn describe(&self, owner: Rank, reach: &Reach, len: u64) -> Option<(Exported, u64)> {
        let (way, slot) = (reach.ways.write.as_ref()?, self.engine.known(owner)?);
        let len = usize::try_from(len).ok()?;
        let mut done = Done::default();
        let described = self.engine.protocols.with(slot, &mut done, |_, channel| {
            let names = (way.btl, way.ordinal);
            let link = channel.links.active.iter().find(|link| (link.tag, link.ordinal) == names)?;
            link.endpoint.exported(&way.handle, Access::RemoteWrite, len)
        });
        done.run();
        described
    }

    /// Returns where a stream writes, if its context has mapped the memory and no fence orders the put. With an access, the
    /// owner keeps the memory until the stream has passed the number.
    pub(crate) fn targets(&self, put: &StreamPut<'_>, access: Option<(&Arc<dyn Passing>, u64)>) -> Option<Targets> {
        let lane = self.caller.known(put.to.key.rank())?;
        let span = |place: &Place<'_>, len| Span { name: place.key.name(), offset: place.offset, len };
        let exposures = lane.exposures.lock();
        if !lane.is_free() {
            return None;
        }
        let find = |span: &Span| {
            let reach = exposures.held(span)?;
            let streams = reach.streams.lock();
            let memory = streams.mapped.iter().find(|memory| memory.context == put.context)?;
            Some((reach, memory.address + span.offset))
        };
        let (reach, data) = find(&span(&put.to, put.len))?;
        let word = match &put.signal {
            Some((place, _)) => Some(find(&span(place, 8))?),
            None => None,
        };
        if let Some((stream, number)) = access {
            reach.streams.lock().accesses.add(stream, number);
            if let Some((reach, _)) = word {
                reach.streams.lock().accesses.add(stream, number);
            }
        }
        Some(Targets { data, word: word.map(|(_, address)| address) })
    }

    /// Counts a put that a stream makes. Makes progress from time to time, so that a program which makes no other calls
    /// hears that an owner revokes its memory, or that it died. No lock is held.
    pub fn note_stream_put(&self) {
        self.caller.note_direct();
    }
}

impl Exposure {
    /// Returns whether a context has mapped the memory.
    pub(crate) fn is_mapped(&self, context: u64) -> bool {
        self.reach.streams.lock().mapped.iter().any(|memory| memory.context == context)
    }

    /// Lets streams of a context write the memory.
    pub(crate) fn set_mapped(&self, memory: DeviceMemory) {
        self.reach.streams.lock().mapped.push(memory);
    }
}

impl Drop for Exposure {
    fn drop(&mut self) {
        self.caller.end_use(self.owner, self.ticket);
    }
}
