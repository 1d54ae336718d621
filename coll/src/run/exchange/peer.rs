//! One other rank in an exchange.

use cableway_base::Rank;
use cableway_pml::{DeviceMapping, Engine, PeerHandle, SendMode};
use smallvec::SmallVec;

use super::fetch::Fetch;
use super::lent::Lent;
use super::scene::{Scene, Uses};
use super::settled::Settled;
use super::wire::{ANSWER, ANSWER_LEN, INPUT, OFFER, OFFER_LEN, Offer, RESULT, Wanted};
use crate::error::Error;
use crate::placing::Working;
use crate::plan::exchange::{Exchange, Reduction};
use crate::plan::{Block as PlanBlock, Place};
use crate::run::memory::Block;
use crate::run::note::{Note, Received};
use crate::run::site::{Message, failed_member, outcome};

/// One other rank.
pub(super) struct Peer {
    pub(super) rank: u32,
    /// Both ranks reduce everything, each for itself. Known once the peer's offer has come.
    pub(super) whole: bool,
    /// The peer's offer has come.
    has_begun: bool,
    lent: Lent,
    borrowed: Borrowed,
}

/// The peer's memory, which this rank accesses.
struct Borrowed {
    /// `None` once it has come.
    offer: Option<Note<OFFER_LEN>>,
    input: Input,
    output: Output,
    answers: SmallVec<[Note<ANSWER_LEN>; 2]>,
    /// The last answer after a failure. Nobody waits for its end: the peer may have given up.
    failure: Option<Note<ANSWER_LEN>>,
    /// The last answer was sent.
    given_back: bool,
    data: SmallVec<[Message; 2]>,
}

enum Input {
    /// It is not known, or not used.
    Unknown,
    Mapped(DeviceMapping),
    /// It is mapped, and this rank copies its block from there.
    Fetched(Fetch),
    /// A message brings it to scratch memory, once there is some.
    Slot {
        block: Block,
        address: Option<usize>,
    },
    /// A message brings it to where it belongs.
    Direct,
}

enum Output {
    /// The peer gets no result, or it is not known how.
    None,
    Mapped(DeviceMapping),
    ByMessage,
}

impl Peer {
    /// Posts the receives.
    pub(super) fn new(scene: &Scene<'_>, rank: u32) -> Result<Peer, Error> {
        let by = (&*scene.shared.engine, scene.on);
        // A rank that takes an offer must not refuse the answer that may follow.
        let answer = Note::receive(by, (rank, scene.tag(ANSWER)))?;
        let offer = match Note::receive(by, (rank, scene.tag(OFFER))) {
            Ok(offer) => Some(offer),
            Err(error) => {
                answer.cancel(by.0);
                return Err(error.into());
            }
        };
        let lent = Lent::new(Some(answer));
        let (input, output) = (Input::Unknown, Output::None);
        let (answers, data) = (SmallVec::new(), SmallVec::new());
        let borrowed = Borrowed { offer, input, output, answers, failure: None, given_back: false, data };
        Ok(Peer { rank, whole: false, has_begun: false, lent, borrowed })
    }

    /// Makes progress.
    pub(super) fn advance(&mut self, scene: &Scene<'_>, settled: &mut Settled, failed: bool) -> Result<(), Error> {
        if !failed {
            self.offer(scene, settled)?;
        }
        self.take_offer(scene, failed)?;
        self.take_answers(scene, failed)?;
        if !failed {
            self.receive_input(scene)?;
            // Failures of messages count once.
            outcome(&self.lent.data)?;
            outcome(&self.borrowed.data)?;
        }
        Ok(())
    }

    /// Exposes this rank's memory to the peer, and tells it.
    fn offer(&mut self, scene: &Scene<'_>, settled: &mut Settled) -> Result<(), Error> {
        if self.lent.offer.is_some() {
            return Ok(());
        }
        let Some(offer) = self.lent.expose(scene, self.rank, settled)? else { return Ok(()) };
        self.lent.offer = Some(self.send(scene, OFFER, Some(offer.to_bytes()), &SendMode::Standard)?);
        Ok(())
    }

    /// Maps what the peer offers, or asks for messages.
    fn take_offer(&mut self, scene: &Scene<'_>, failed: bool) -> Result<(), Error> {
        let Some(note) = &self.borrowed.offer else { return Ok(()) };
        let bytes = match note.received() {
            Received::Nothing => return Ok(()),
            Received::Bytes(bytes) => bytes,
            Received::Failure => {
                self.borrowed.offer = None;
                return Err(self.failed(OFFER_LEN));
            }
            Received::Gone(error) => {
                self.borrowed.offer = None;
                return Err(error.into());
            }
        };
        self.borrowed.offer = None;
        self.has_begun = true;
        let offer = Offer::parse(&bytes);
        self.whole = offer.whole && scene.offers_whole();
        let uses = scene.uses(self.rank, self.whole);
        if failed || uses.input == 0 {
            return Ok(());
        }
        self.borrowed.input = match scene.exchange {
            Exchange::Reduce(reduction) => self.place_operands(scene, reduction, &offer, uses)?,
            Exchange::Move(moves) => self.place_block(scene, moves.receives[self.rank as usize], &offer)?,
        };
        let output = if uses.output == 0 { None } else { self.map(scene, offer.output, true)? };
        let output = output.filter(|mapping| fits(mapping, uses.output, uses.alignment));
        let mapped = matches!(self.borrowed.input, Input::Mapped(_) | Input::Fetched(_));
        let wanted = Wanted { input: !mapped, result: uses.output != 0 && output.is_none() };
        self.borrowed.output = match output {
            Some(mapping) => Output::Mapped(mapping),
            None if wanted.result => Output::ByMessage,
            None => Output::None,
        };
        if !wanted.is_nothing() {
            self.answer(scene, wanted)?;
        }
        Ok(())
    }

    /// Decides how the operands of a reduction get to where they are used.
    fn place_operands(
        &self,
        scene: &Scene<'_>,
        reduction: &Reduction,
        offer: &Offer,
        uses: Uses,
    ) -> Result<Input, Error> {
        if let Some(mapping) = self.map(scene, offer.input, false)?
            && fits(&mapping, uses.input, uses.alignment)
        {
            return Ok(Input::Mapped(mapping));
        }
        let share = reduction.part(scene.me(), self.whole);
        let bytes = reduction.operands.bytes(share.end - share.start);
        let block = Block::take(&scene.shared.pools, &scene.site.working, bytes)?;
        Ok(Input::Slot { block, address: None })
    }

    /// Decides how this rank's block of an exchange gets to its place.
    fn place_block(&mut self, scene: &Scene<'_>, to: PlanBlock, offer: &Offer) -> Result<Input, Error> {
        if let Some(here) = scene.here(&to)
            && let Some(mapping) = self.map(scene, offer.input, false)?
            && let Some(fetch) = Fetch::new(&scene.shared.pools.devices, mapping, offer.blocks, &here)
        {
            return Ok(Input::Fetched(fetch));
        }
        scene.receive((self.rank, INPUT), Some(to), &mut self.borrowed.data)?;
        Ok(Input::Direct)
    }

    /// Maps memory of the peer, if this rank's kernels can access it.
    fn map(&self, scene: &Scene<'_>, handle: Option<PeerHandle>, write: bool) -> Result<Option<DeviceMapping>, Error> {
        let (Some(handle), Working::Device(at)) = (handle, &scene.site.working) else { return Ok(None) };
        let process = scene.on.group()[self.rank as usize];
        Ok(scene.shared.engine.map_exposed(process, &handle, write, at)?)
    }

    /// Begins to receive the input once there is memory for it.
    fn receive_input(&mut self, scene: &Scene<'_>) -> Result<(), Error> {
        let Input::Slot { block, address: address @ None } = &mut self.borrowed.input else { return Ok(()) };
        *address = block.address(&scene.shared.pools)?;
        let Some(at) = *address else { return Ok(()) };
        let Exchange::Reduce(reduction) = scene.exchange else { return Ok(()) };
        let share = reduction.part(scene.me(), self.whole);
        let memory = reduction.operands.block(Place::User(at), share.end - share.start);
        scene.receive((self.rank, INPUT), Some(memory), &mut self.borrowed.data)
    }

    /// Does what the peer asks for.
    fn take_answers(&mut self, scene: &Scene<'_>, failed: bool) -> Result<(), Error> {
        if self.borrowed.offer.is_some() && scene.offers_whole() {
            // What the peer asks for depends on its offer.
            return Ok(());
        }
        while let Some(note) = &self.lent.answer {
            let wanted = match note.received() {
                Received::Nothing => return Ok(()),
                Received::Bytes(bytes) => Wanted::parse(bytes),
                Received::Failure => None,
                Received::Gone(error) => {
                    self.lent.answer = None;
                    return Err(error.into());
                }
            };
            self.lent.answer = None;
            let Some(wanted) = wanted else { return Err(self.failed(ANSWER_LEN)) };
            if wanted.is_nothing() {
                return Ok(());
            }
            self.lent.answer = Some(Note::receive((&scene.shared.engine, scene.on), (self.rank, scene.tag(ANSWER)))?);
            let [input, result] = scene.instead_of(self.rank, self.whole).map(|block| block.filter(|_| !failed));
            if wanted.input {
                scene.send((self.rank, INPUT), input, &mut self.lent.data)?;
            }
            if wanted.result {
                scene.receive((self.rank, RESULT), result, &mut self.lent.data)?;
            }
        }
        Ok(())
    }

    /// Checks whether the peer's input can be read.
    pub(super) fn has_input(&self) -> bool {
        self.borrowed.offer.is_none()
            && match &self.borrowed.input {
                Input::Unknown | Input::Mapped(_) | Input::Fetched(_) => true,
                Input::Slot { address: None, .. } => false,
                Input::Slot { .. } | Input::Direct => self.borrowed.data.iter().all(Message::is_complete),
            }
    }

    /// Checks whether this rank copies its block from the peer's memory, as far as is known.
    pub(super) fn may_be_fetched(&self) -> bool {
        matches!(self.borrowed.input, Input::Unknown | Input::Fetched(_))
    }

    /// Returns the address of this rank's share of the peer's input, which begins so many bytes into it.
    pub(super) fn source(&self, from: usize) -> *const u8 {
        match &self.borrowed.input {
            Input::Mapped(mapping) => mapping.address().wrapping_add(from).cast_const(),
            Input::Slot { address: Some(address), .. } => std::ptr::with_exposed_provenance(*address),
            _ => std::ptr::null(),
        }
    }

    /// Returns what this rank copies from the peer's memory.
    pub(super) fn fetch(&self) -> Option<&Fetch> {
        if let Input::Fetched(fetch) = &self.borrowed.input { Some(fetch) } else { None }
    }

    /// Returns where the result is stored in the peer's output, if a kernel does that.
    pub(super) fn destination(&self, from: usize) -> Option<*mut u8> {
        match &self.borrowed.output {
            Output::Mapped(mapping) => Some(mapping.address().wrapping_add(from)),
            Output::None | Output::ByMessage => None,
        }
    }

    /// Has the peer receive a result that no kernel could store.
    pub(super) fn send_result_instead(&mut self, scene: &Scene<'_>) -> Result<(), Error> {
        if !matches!(self.borrowed.output, Output::Mapped(_)) {
            return Ok(());
        }
        self.borrowed.output = Output::ByMessage;
        self.answer(scene, Wanted { input: false, result: true })
    }

    /// Sends the result if the peer receives it by a message, and the last answer.
    pub(super) fn give_back(&mut self, scene: &Scene<'_>) -> Result<(), Error> {
        if self.borrowed.given_back || self.borrowed.offer.is_some() {
            return Ok(());
        }
        if matches!(self.borrowed.output, Output::ByMessage) {
            let [_, result] = scene.instead_of(scene.me(), self.whole);
            scene.send((self.rank, RESULT), result, &mut self.borrowed.data)?;
        }
        self.borrowed.given_back = true;
        self.answer(scene, Wanted::default())
    }

    /// After a failure, sends messages without data in place of all that the peer has not got.
    pub(super) fn owe_nothing(&mut self, scene: &Scene<'_>) {
        // An error here means that the peer is gone.
        if self.lent.offer.is_none() {
            self.lent.offer = self.send(scene, OFFER, None, &SendMode::Standard).ok();
        }
        if !self.borrowed.given_back {
            self.borrowed.given_back = true;
            if matches!(self.borrowed.output, Output::ByMessage) {
                let _ = scene.send((self.rank, RESULT), None, &mut self.borrowed.data);
            }
            // The peer was asked for its input, and sends it.
            if let Input::Slot { address: address @ None, .. } = &mut self.borrowed.input {
                *address = Some(0);
                let _ = scene.receive((self.rank, INPUT), None, &mut self.borrowed.data);
            }
            // Only a peer that has begun the operation receives it.
            let mode = if self.lent.is_accessible() { SendMode::Synchronous } else { SendMode::Standard };
            self.borrowed.failure = self.send(scene, ANSWER, None, &mode).ok();
        } else if self.refused().is_some() && self.has_begun && self.lent.answer.is_some() {
            // The peer has not yet posted the receive again after an earlier answer.
            self.borrowed.failure = self.send(scene, ANSWER, None, &SendMode::Synchronous).ok();
        }
    }

    /// Returns the process whose failure made the peer refuse the last answer.
    fn refused(&self) -> Option<Rank> {
        self.borrowed.failure.as_ref().and_then(Note::failure).and_then(|error| failed_member(&error))
    }

    /// Returns the process whose failure made the peer refuse a message.
    pub(super) fn told_of(&self) -> Option<Rank> {
        let data = || self.lent.data.iter().chain(&self.borrowed.data).find_map(Message::told_of);
        self.refused().or_else(data)
    }

    /// Checks whether all messages have ended, and the peer accesses this rank's memory no more.
    pub(super) fn is_over(&self) -> bool {
        let Peer { lent, borrowed, .. } = self;
        borrowed.offer.is_none()
            && borrowed.given_back
            && lent.answer.is_none()
            && lent.offer.as_ref().is_none_or(Note::is_over)
            && borrowed.answers.iter().all(Note::is_over)
            && lent.data.iter().chain(&borrowed.data).all(Message::is_complete)
    }

    /// Checks whether the next step comes after work of a device, of which no message tells.
    pub(super) fn waits_for_device(&self) -> bool {
        self.lent.waits_for_device() || matches!(self.borrowed.input, Input::Slot { address: None, .. })
    }

    /// Gives scratch memory back, after the exchange is over.
    pub(super) fn release(&mut self) {
        if let Input::Slot { .. } = self.borrowed.input {
            self.borrowed.input = Input::Unknown;
        }
    }

    /// Cancels receives that no message has matched. Called again until the exchange is over.
    ///
    /// While the peer may access this rank's memory, its answer is waited for. A peer that has not begun the operation, and
    /// never does after a death, refuses this rank's last answer. A peer that has begun keeps a receive of answers until it
    /// has given everything back. It may be about to post that again, but then its offer has come.
    pub(super) fn cancel(&self, engine: &Engine) {
        self.borrowed.offer.iter().for_each(|note| note.cancel(engine));
        let absent = self.refused().is_some() && !self.has_begun;
        if absent || (self.borrowed.given_back && !self.lent.is_accessible()) {
            self.lent.answer.iter().for_each(|note| note.cancel(engine));
        }
        self.lent.data.iter().chain(&self.borrowed.data).for_each(|message| message.cancel(engine));
    }

    fn answer(&mut self, scene: &Scene<'_>, wanted: Wanted) -> Result<(), Error> {
        let note = self.send(scene, ANSWER, Some(wanted.to_bytes()), &SendMode::Standard)?;
        self.borrowed.answers.push(note);
        Ok(())
    }

    fn send<const N: usize>(
        &self,
        scene: &Scene<'_>,
        message: u32,
        bytes: Option<[u8; N]>,
        mode: &SendMode,
    ) -> Result<Note<N>, Error> {
        Ok(Note::send((&scene.shared.engine, scene.on), (self.rank, scene.tag(message)), bytes, mode)?)
    }

    fn failed(&self, expected: usize) -> Error {
        Error::OtherLength { rank: self.rank, sent: 0, expected: expected as u64 }
    }
}

/// Checks whether mapped memory has all bytes that a kernel accesses, at an address as it needs.
fn fits(mapping: &DeviceMapping, expected: u64, alignment: usize) -> bool {
    mapping.len() as u64 == expected && (mapping.address() as usize).is_multiple_of(alignment)
}
