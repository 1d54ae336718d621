//! Copies by copy engines: issued to the stream of their direction, an event behind them. They take every copy.
//!
//! Small copies to page-locked host memory are polled in memory first ([`Landing`]), and the event is recorded only when
//! that takes long.

use super::gathered::Gathered;
use super::landing::Landing;
use super::mechanism::{Entry, Mechanism, Progress};
use super::workspace::Workspace;
use crate::copy::Direction;
use crate::driver::{Event, Failure, Piece};
use crate::order::destroy_event;

/// The copy engines' part of one operation.
#[derive(Default)]
pub(super) struct ByEngines {
    pieces: Vec<Piece>,
    /// Made when it is first of use, and kept for later operations.
    event: Option<Event>,
    state: State,
}

#[derive(Default)]
enum State {
    /// Nothing is under way.
    #[default]
    Idle,
    /// The bytes are polled; no event is recorded.
    Landing(Landing),
    /// Copies are issued. A capture forbids to record the event now.
    Unrecorded,
    /// The event is recorded, with its number in the stream of the direction. It has no number if it only follows the
    /// program's work in the default stream.
    Recorded(Option<u64>),
}

impl Mechanism for ByEngines {
    fn suits(&self, _: &Workspace, _: &Gathered) -> bool {
        true
    }

    fn begin(&mut self, workspace: &Workspace, copies: &mut Gathered, entry: &mut Entry<'_>) -> Result<(), Failure> {
        entry.enter()?;
        let direction = copies.direction;
        // Copies that replace a kernel's are begun later, behind the others in the stream.
        let first = matches!(self.state, State::Idle);
        let begun = self.pieces.len();
        if begun == 0 {
            std::mem::swap(&mut self.pieces, &mut copies.pieces);
        } else {
            self.pieces.append(&mut copies.pieces);
        }
        let patient = !workspace.settings.landing.is_zero();
        let landing = first && copies.page_locked && direction == Direction::DeviceToHost && patient;
        // SAFETY: valid for as long as the copies are under way, and nobody else's until then, by the promise of
        // the caller that added them; page-locked memory is host memory.
        let landing = (landing && Landing::suits(&self.pieces)).then(|| unsafe { Landing::prepare(&self.pieces) });
        let stream = copies.ordered_stream(workspace)?;
        let together = copies.page_locked || direction == Direction::DeviceToDevice;
        // SAFETY: the caller that added the pieces promises that their ranges are valid until the operation is done.
        let issued = unsafe { workspace.streams.issue(direction, &self.pieces[begun..], together) };
        let followed = issued.and_then(|once| match landing {
            Some(landing) if once => {
                self.state = State::Landing(landing);
                Ok(())
            }
            // Bytes that are seen may be written again where some were issued twice.
            _ => self.mark(workspace, direction),
        });
        if followed.is_err() {
            // Some may be under way; their memory must be the caller's again when it hears of the failure.
            let _ = workspace.context.driver.synchronise(stream);
            self.state = State::Idle;
        }
        followed
    }

    #[inline]
    fn poll(&mut self, workspace: &Workspace, copies: &mut Gathered) -> Result<Progress, Failure> {
        if let State::Landing(landing) = &mut self.state {
            // SAFETY: the pieces that it was made for, whose destinations only the device touches.
            if unsafe { landing.look(&self.pieces) } {
                return Ok(Progress::Done);
            }
            if landing.since.elapsed() <= workspace.settings.landing {
                return Ok(Progress::Pending);
            }
            self.state = State::Unrecorded;
        }
        if let State::Unrecorded = self.state {
            let _scope = workspace.context.enter()?;
            self.mark(workspace, copies.direction)?;
            if let State::Unrecorded = self.state {
                return Ok(Progress::Pending);
            }
        }
        let (State::Recorded(number), Some(event)) = (&self.state, &self.event) else { return Ok(Progress::Done) };
        let streams = &workspace.streams;
        if number.is_some_and(|number| streams.is_done(copies.direction, number)) {
            return Ok(Progress::Done);
        }
        if !workspace.context.is_over(event)? {
            return Ok(Progress::Pending);
        }
        if let Some(number) = *number {
            streams.found_done(copies.direction, number);
        }
        Ok(Progress::Done)
    }

    fn abandon(&mut self, workspace: &Workspace, direction: Direction) {
        if !matches!(self.state, State::Idle) {
            workspace.streams.synchronise(direction);
            self.state = State::Idle;
        }
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.state = State::Idle;
    }
}

impl ByEngines {
    fn event(&mut self, workspace: &Workspace) -> Result<&Event, Failure> {
        if self.event.is_none() {
            self.event = Some(workspace.context.driver.new_event()?);
        }
        self.event.as_ref().ok_or(Failure::missing("new_event"))
    }

    /// Records the event behind the issued copies, unless a capture forbids it now. The context is current.
    fn mark(&mut self, workspace: &Workspace, direction: Direction) -> Result<(), Failure> {
        let number = workspace.streams.record(direction, self.event(workspace)?)?;
        self.state = number.map_or(State::Unrecorded, |number| State::Recorded(Some(number)));
        Ok(())
    }

    /// Has the event follow what the default stream holds now; false where a capture forbids it. The context is current.
    pub(super) fn follow_default_stream(&mut self, workspace: &Workspace) -> Result<bool, Failure> {
        let recorded = workspace.default_stream.record(self.event(workspace)?)?;
        if recorded {
            self.state = State::Recorded(None);
        }
        Ok(recorded)
    }

    /// Destroys what it keeps in the context, which is current.
    pub(super) fn destroy(&mut self, workspace: &Workspace) {
        if let Some(event) = self.event.take() {
            destroy_event(&workspace.context, event);
        }
    }
}
