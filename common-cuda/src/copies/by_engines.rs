//! Copies by copy engines: issued to the stream of their direction, with an event after them. Every copy suits them.
//!
//! Small copies to page-locked host memory are polled in memory first ([`Landing`]). The event is recorded only if that
//! takes long.

use std::sync::atomic::Ordering::Relaxed;

use super::gathered::Gathered;
use super::landing::Landing;
use super::mechanism::{Entry, Mechanism, Progress};
use super::workspace::Workspace;
use crate::copy::{Direction, RowCopy};
use crate::driver::{Event, Failure};
use crate::order::destroy_event;
use crate::turns::Watch;

/// The copy engines' part of one operation.
#[derive(Default)]
pub(super) struct ByEngines {
    pieces: Vec<RowCopy>,
    /// The event is created at first use and kept for later operations.
    event: Option<Event>,
    state: State,
    /// Set if the time of the copies shows whether contexts take turns.
    watch: Option<Watch>,
}

#[derive(Default)]
enum State {
    /// No copies are under way.
    #[default]
    Idle,
    /// The bytes are polled; no event is recorded.
    Landing(Landing),
    /// Copies are issued. A capture prevents recording the event now.
    Unrecorded,
    /// The event is recorded. The number is its position in the stream of the direction; an event that only follows the
    /// program's work in the default stream has none.
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
        // Its time shows nothing if other work may precede it.
        let alone = first && workspace.under_way.load(Relaxed) == 0 && !workspace.waits(copies.order);
        let is_run = matches!(&self.pieces[..], [piece] if piece.rows == 1);
        let shows = alone && is_run && workspace.streams.shows_turns(direction, copies.bytes);
        self.watch = shows.then(Watch::begin);
        let patient = !workspace.settings.landing.is_zero();
        let landing = first && copies.page_locked && direction == Direction::DeviceToHost && patient;
        // SAFETY: valid for as long as the copies are under way, and nobody else's until then, by the promise of
        // the caller that added them; page-locked memory is host memory.
        let landing = (landing && Landing::suits(&self.pieces)).then(|| unsafe { Landing::prepare(&self.pieces) });
        copies.ordered_stream(workspace)?;
        let together = copies.page_locked || direction.is_on_devices();
        // SAFETY: the caller that added the pieces promises that their ranges are valid until the operation is done.
        let issued = unsafe { workspace.streams.issue(direction, &self.pieces[begun..], together) };
        let followed = issued.and_then(|once| match landing {
            Some(landing) if once => {
                self.state = State::Landing(landing);
                Ok(())
            }
            // Do not rely on bytes in memory if some copies were issued twice: the second copy may still write them.
            _ => self.mark(workspace, direction),
        });
        if followed.is_err() {
            // Some copies may be under way. Their memory must belong to the caller again when it receives the error.
            workspace.streams.synchronise(direction);
            self.state = State::Idle;
        }
        followed
    }

    #[inline]
    fn poll(&mut self, workspace: &Workspace, copies: &mut Gathered) -> Result<Progress, Failure> {
        let progress = self.look(workspace, copies)?;
        match (progress, &mut self.watch) {
            (Progress::Pending, Some(watch)) => watch.see(),
            (Progress::Done, watch) => {
                if let Some(watch) = watch.take() {
                    workspace.streams.turns.note(&watch);
                }
            }
            _ => {}
        }
        Ok(progress)
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
        self.watch = None;
    }
}

impl ByEngines {
    #[inline]
    fn look(&mut self, workspace: &Workspace, copies: &Gathered) -> Result<Progress, Failure> {
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

    fn event(&mut self, workspace: &Workspace) -> Result<&Event, Failure> {
        if self.event.is_none() {
            self.event = Some(workspace.context.driver.new_event()?);
        }
        self.event.as_ref().ok_or(Failure::missing("new_event"))
    }

    /// Records the event after the issued copies. Does nothing while a capture prevents it. The context is current.
    fn mark(&mut self, workspace: &Workspace, direction: Direction) -> Result<(), Failure> {
        let number = workspace.streams.record(direction, self.event(workspace)?)?;
        self.state = number.map_or(State::Unrecorded, |number| State::Recorded(Some(number)));
        Ok(())
    }

    /// Records the event after the present work of the default stream. Returns false if a capture prevents it. The
    /// context is current.
    pub(super) fn follow_default_stream(&mut self, workspace: &Workspace) -> Result<bool, Failure> {
        let recorded = workspace.default_stream.record(self.event(workspace)?)?;
        if recorded {
            self.state = State::Recorded(None);
        }
        Ok(recorded)
    }

    /// Destroys the event in its context, which is current.
    pub(super) fn destroy(&mut self, workspace: &Workspace) {
        if let Some(event) = self.event.take() {
            destroy_event(&workspace.context, event);
        }
    }
}
