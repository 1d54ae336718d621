//! An operation on another process's registered memory, from its start to its completion.
//!
//! It is complete when its target has answered and its buffer is not used any more. These are its parts.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cableway_base::Rank;
use cableway_common_cuda::Devices;
use parking_lot::{Mutex, MutexGuard};

use super::caller::Caller;
use super::local::Local;
use super::registry::Span;
use super::wire::{ASK, Answer, Ask, BLOCKS_IN_ASK, GIVEN, SHAPE, Wish};
use crate::am::Arrival;
use crate::buffer::Buffer;
use crate::core::{Active, Completion, Done, Hook};
use crate::error::Error;
use crate::shapes::{Described, Elements, Form, post_shapes};
use crate::status::Status;

/// See the module.
pub(super) struct Operation {
    pub(super) to: Rank,
    pub(super) ask: Ask,
    /// What the span reaches, if it is not one run of bytes.
    pub(super) elements: Option<Box<Elements>>,
    pub(super) local: Local,
    /// Whether the target's memory is on a device, as its key tells.
    pub(super) remote_on_device: bool,
    pub(super) moving: Moving,
    state: Mutex<State>,
}

struct State {
    /// Parts that have not ended.
    left: u32,
    /// The last answer came, or the operation has failed.
    answered: bool,
    /// The bytes have moved, or the data of a get is landing: only the signal is missing.
    moved: bool,
    error: Option<Error>,
    /// A part was dropped: active messages were closed.
    dropped: bool,
    /// `None` once the operation is complete.
    user: Option<Active>,
}

impl Operation {
    /// Makes an operation that has not started.
    ///
    /// # Safety
    /// The local memory is valid, and for a get or an atomic operation exclusive to it, until `user` is completed.
    pub(super) unsafe fn new(
        to: Rank,
        ask: Ask,
        (local, elements): (Local, Option<Box<Elements>>),
        remote_on_device: bool,
        user: Active,
    ) -> Self {
        let state = State { left: 1, answered: false, moved: false, error: None, dropped: false, user: Some(user) };
        let (moving, state) = (Moving::default(), Mutex::new(state));
        Operation { to, ask, elements, local, remote_on_device, moving, state }
    }

    /// Returns whether both memories are single runs of bytes, so that the operation owns nothing but itself.
    pub(super) fn is_plain(&self) -> bool {
        let run = match &self.local {
            Local::Put(memory) | Local::Get(memory) => memory.run().is_some(),
            Local::Atomic(_) => true,
        };
        run && self.elements.is_none()
    }

    /// Starts the operation, directly or by the owner, unless it has failed already.
    pub(super) fn start(self: &Arc<Self>, caller: &Arc<Caller>) {
        let Some(part) = self.begin_part(caller) else { return };
        // A direct move ends the part later.
        if let Some(part) = self.start_directly(caller, part) {
            self.start_by_owner(caller);
            part.end(Ok(()));
        }
    }

    /// Gives the signal of bytes that this process has moved, or asks for it. Returns whether the operation is answered.
    fn signalled(self: &Arc<Self>, caller: &Arc<Caller>) -> bool {
        let (Wish::Put(Some(signal)) | Wish::Get(Some(signal))) = &self.ask.wish else { return true };
        if self.state.lock().answered {
            return false;
        }
        let given = caller.give_mapped_signal(self.to, signal);
        if !given {
            caller.note_moved();
            self.state.lock().moved = true;
            self.ask_for_signal(caller);
        }
        given
    }

    /// Asks the owner for the signal once the bytes have moved, unless the operation has failed.
    fn ask_for_signal(self: &Arc<Self>, caller: &Arc<Caller>) {
        if self.state.lock().answered {
            return;
        }
        let ask = Ask { span: Span { len: 0, ..self.ask.span }, ..self.ask };
        // SAFETY: there is no data.
        let posted = unsafe { caller.poster.post_inline(self.to, ASK, &ask.to_bytes(), Buffer::EMPTY) };
        if let Err(error) = posted {
            self.fail(caller, error.clone());
            caller.lose(self.to, &error);
        }
    }

    /// Sends the ask, and the data of a put.
    fn start_by_owner(self: &Arc<Self>, caller: &Arc<Caller>) {
        let ask = self.ask_of_owner(caller.poster.engine().devices());
        let posted = match &self.elements {
            None => self.post(caller, &ask.to_bytes()),
            Some(elements) => self.post_with(caller, ask, elements),
        };
        if let Err(error) = posted {
            // A post fails only if no later one can succeed.
            self.fail(caller, error.clone());
            caller.lose(self.to, &error);
        }
    }

    /// Posts an ask, and the data of a put.
    fn post(self: &Arc<Self>, caller: &Arc<Caller>, header: &[u8]) -> Result<(), Error> {
        let poster = &caller.poster;
        let data = match &self.local {
            Local::Put(memory) => memory.buffer(),
            Local::Get(_) | Local::Atomic(_) => Buffer::EMPTY,
        };
        // SAFETY: the source is valid until the operation is complete.
        if unsafe { poster.post_inline(self.to, ASK, header, data)? } {
            return Ok(());
        }
        self.state.lock().left += 1;
        let part = Part { operation: self.clone(), caller: caller.clone(), open: true };
        // SAFETY: as above; the operation is not complete before this part has ended.
        unsafe { poster.post_then(self.to, ASK, header, data, move |sent| part.end(sent)) }
    }

    /// Posts an ask for elements, and before it the blocks for which it has no room.
    fn post_with(self: &Arc<Self>, caller: &Arc<Caller>, ask: Ask, elements: &Elements) -> Result<(), Error> {
        // Blocks count from the span.
        let Described { blocks, count, extent } = elements.describe(elements.low().wrapping_neg())?;
        let form = Form { blocks: blocks.len() as u32, count, extent };
        if blocks.len() <= BLOCKS_IN_ASK {
            return self.post(caller, &ask.to_bytes_with(form, &blocks));
        }
        let _posting = caller.posting.lock();
        post_shapes(&caller.poster, self.to, SHAPE, &blocks)?;
        self.post(caller, &ask.to_bytes_with(form, &[]))
    }

    /// Returns what the owner is asked for. A device may fail while the data of a get lands there, so the owner must not
    /// give the signal by itself.
    fn ask_of_owner(&self, devices: &Devices) -> Ask {
        match (&self.ask.wish, &self.local) {
            (Wish::Get(Some(_)), Local::Get(memory)) if memory.is_on_device(devices) => {
                Ask { wish: Wish::Get(None), ..self.ask }
            }
            _ => self.ask,
        }
    }

    /// Handles an answer of the target. Only the first one counts, and one more after the data of a get whose signal the
    /// owner has not given.
    pub(super) fn answered(self: &Arc<Self>, caller: &Arc<Caller>, arrival: Arrival<'_>, answer: &Answer) {
        let (room, last) = {
            let mut state = self.state.lock();
            if state.answered {
                return;
            }
            // Where the data of this answer goes.
            let room = match &self.local {
                Local::Get(memory) if !state.moved => Some(memory),
                _ => None,
            };
            let landing = answer.result.is_ok() && room.is_some_and(|memory| memory.len == arrival.len());
            let last = !landing || !matches!(self.ask.wish, Wish::Get(Some(_))) || answer.value == GIVEN;
            (state.answered, state.moved) = (last, state.moved || landing);
            state.left += u32::from(!last);
            (room, last)
        };
        let part = Part { operation: self.clone(), caller: caller.clone(), open: true };
        let (peer, span) = (self.to, &self.ask.span);
        if let Err(refusal) = answer.result {
            return part.end(Err(Error::Refused { peer, offset: span.offset, len: span.len, refusal }));
        }
        match &self.local {
            Local::Put(_) => part.end(Ok(())),
            &Local::Atomic(old) => {
                let bytes = answer.value.to_le_bytes();
                let old = std::ptr::with_exposed_provenance_mut::<u8>(old);
                // SAFETY: the place has as many bytes as the word, and is exclusive to the operation.
                unsafe { old.copy_from_nonoverlapping(bytes.as_ptr(), span.len as usize) };
                part.end(Ok(()));
            }
            Local::Get(_) => match room {
                Some(memory) if arrival.len() == memory.len => {
                    // SAFETY: the destination is valid and exclusive until the operation is complete, which it is not
                    // before this part has ended.
                    unsafe { arrival.receive(memory.buffer(), move |landed| part.landed(landed.map(drop), last)) };
                }
                None if arrival.len() == 0 => part.end(Ok(())),
                room => {
                    let expected = room.map_or(0, |memory| memory.len);
                    part.end(Err(Error::BadAnswer { peer, sent: arrival.len(), expected }));
                }
            },
        }
    }

    /// Ends the operation with an error, unless the target has answered. Its buffer may be used for a while.
    pub(super) fn fail(self: &Arc<Self>, caller: &Arc<Caller>, error: Error) {
        if !std::mem::replace(&mut self.state.lock().answered, true) {
            self.end_part(caller, Err(error));
        }
    }

    /// Begins a part, which the operation waits for. Returns `None` if the operation was answered or has failed: then
    /// its buffer must not be used.
    fn begin_part(self: &Arc<Self>, caller: &Arc<Caller>) -> Option<Part> {
        let mut state = self.state.lock();
        if state.answered {
            return None;
        }
        state.left += 1;
        Some(Part { operation: self.clone(), caller: caller.clone(), open: true })
    }

    fn end_part(self: &Arc<Self>, caller: &Arc<Caller>, result: Result<(), Error>) {
        self.end_parts(caller, self.state.lock(), 1, result);
    }

    /// Ends as many parts, and the operation if these were the last.
    fn end_parts(&self, caller: &Arc<Caller>, mut state: MutexGuard<'_, State>, parts: u32, result: Result<(), Error>) {
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
        state.left -= parts;
        if state.left > 0 {
            return;
        }
        let dropped = state.dropped.then_some(Error::Finalized);
        let (user, error) = (state.user.take(), state.error.take().or(dropped));
        drop(state);
        let Some(user) = user else { return };
        let status = Status { source: self.to as i32, tag: 0, len: self.ask.span.len, cancelled: false };
        let mut done = Done::default();
        user.complete(status, error, &mut done);
        done.run();
        caller.ended(self.to, self.ask.number);
    }
}

/// A part of an operation that is under way. It ends even if active messages drop it.
pub(super) struct Part {
    operation: Arc<Operation>,
    caller: Arc<Caller>,
    open: bool,
}

impl Part {
    pub(super) fn operation(&self) -> &Arc<Operation> {
        &self.operation
    }

    /// Returns the operations of this process.
    pub(super) fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// Handles the end of a direct move: goes by the owner if the link refused it, and gives the signal or asks for it.
    pub(super) fn moved(mut self, result: Result<(), Error>) {
        let Part { operation, caller, .. } = &self;
        let answered = match result {
            Ok(()) => operation.signalled(caller),
            Err(_) if operation.state.lock().answered => false,
            Err(Error::Btl(cableway_btl::Error::Unavailable { .. })) => {
                operation.start_by_owner(caller);
                false
            }
            Err(error) => {
                operation.fail(caller, error);
                false
            }
        };
        self.open = false;
        let (operation, caller) = (&self.operation, &self.caller);
        let mut state = operation.state.lock();
        let first = answered && !std::mem::replace(&mut state.answered, true);
        if first {
            caller.note_moved();
        }
        operation.end_parts(caller, state, 1 + u32::from(first), Ok(()));
    }

    /// Ends the landing of a get's data, and asks for the signal if that is missing.
    fn landed(self, result: Result<(), Error>, last: bool) {
        match &result {
            Ok(()) if !last => self.operation.ask_for_signal(&self.caller),
            Err(error) if !last => self.operation.fail(&self.caller, error.clone()),
            _ => {}
        }
        self.end(result);
    }

    pub(super) fn end(mut self, result: Result<(), Error>) {
        self.open = false;
        self.operation.end_part(&self.caller, result);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.open {
            self.operation.state.lock().dropped = true;
            self.operation.end_part(&self.caller, Ok(()));
        }
    }
}

/// The direct move of an operation, which makes one at most.
pub(super) struct Moving {
    completion: Completion,
    /// While the move is under way, the part that it ends.
    part: UnsafeCell<Option<Part>>,
}

// SAFETY: only two access the part: whoever begins the move, before it is under way, and its hook, once after it. The rest is
// shared by the engine's own protocol.
unsafe impl Sync for Moving {}

impl Default for Moving {
    fn default() -> Self {
        Moving { completion: Completion::new(), part: UnsafeCell::new(None) }
    }
}

impl Moving {
    /// Begins the move that ends `part`. The part keeps the operation alive, and so this value, until the hook takes the
    /// part.
    ///
    /// # Safety
    /// This is of the part's operation, and was not begun before. The hook calls [`end`](Self::end) with its argument.
    pub(super) unsafe fn begin(&self, part: Part, hook: Hook) -> Active {
        let place = NonNull::from(&self.completion);
        // SAFETY: nobody else accesses the part before the move is under way. The completion is inactive, and stays valid as
        // long as the part.
        unsafe {
            *self.part.get() = Some(part);
            self.completion.set_hook(Some((hook, std::ptr::from_ref(self).cast_mut().cast())));
            Active::new(place)
        }
    }

    /// Returns the part, and how the move has ended.
    ///
    /// # Safety
    /// `user` is the argument of the hook of a move that has ended, and this is called once.
    pub(super) unsafe fn end(user: *mut c_void) -> Option<(Part, Result<(), Error>)> {
        // SAFETY: the caller's promise; the part keeps the memory.
        let moving = unsafe { &*user.cast::<Moving>() };
        // SAFETY: the move has ended, and this alone is told.
        let (part, outcome) = unsafe { ((*moving.part.get()).take()?, moving.completion.outcome_mut()) };
        Some((part, outcome.error.take().map_or(Ok(()), |error| Err(*error))))
    }
}
