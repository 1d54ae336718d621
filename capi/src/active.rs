//! Active messages.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use cableway::{ActiveMessage, Poster, RawBuffer};

use crate::arguments::{self, Out, rank};
use crate::code::{Code, Failure};
use crate::handle::{Handle, Named};
use crate::memory::Memory;
use crate::outcome::guard;
use crate::world::World;

/// An active message, in the call of its handler. Without a value once its data was asked for.
pub(crate) struct Arrived<'a>(RefCell<Option<ActiveMessage<'a>>>);

impl Named for Arrived<'_> {
    const TAG: u64 = 0x7b4f_c1d6_ac71_3e55;
    const NAME: &'static str = "message of a handler";
}

/// `cableway_am`. The library shortens the lifetime to that of the handler's call.
pub(crate) type Message = Handle<Arrived<'static>>;

/// `cableway_am_handler`.
pub(crate) type Handler = Option<unsafe extern "C" fn(message: *mut Message, context: *mut c_void)>;

/// `cableway_am_completion`.
pub(crate) type Completion = Option<unsafe extern "C" fn(error: c_int, bytes: u64, context: *mut c_void)>;

/// `cableway_condition`.
pub(crate) type Condition = Option<unsafe extern "C" fn(context: *mut c_void) -> c_int>;

/// `cableway_am_info`.
#[repr(C)]
pub(crate) struct Info {
    pub(crate) source: c_int,
    pub(crate) id: u32,
    pub(crate) header: *const c_void,
    pub(crate) header_bytes: usize,
    pub(crate) data: *const c_void,
    pub(crate) bytes: u64,
}

/// What a program passes to be given back to its own function.
struct Context(*mut c_void);

// SAFETY: the header says that functions of the program are called on any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Returns the address. A method, so that closures take the whole value.
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Calls a program's completion, if it has one, with the code of the result and the number of bytes.
fn complete(then: Completion, context: &Context, result: Result<u64, cableway::Error>) {
    let mut bytes = 0;
    let code = guard(|| {
        bytes = result?;
        Ok(())
    });
    if let Some(then) = then {
        // SAFETY: the program passed the function and what it is given.
        unsafe { then(code, bytes, context.get()) };
    }
}

/// Registers a handler.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_am_register(
    world: *mut Handle<World>,
    id: u32,
    handler: Handler,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let world = Handle::get(world)?;
        let (handler, context) = (handler.ok_or_else(|| arguments::null("the handler"))?, Context(context));
        world.world().am_handler(id, move |message| {
            let mut arrived = Handle::new(Arrived(RefCell::new(Some(message))));
            // The lifetime is not part of the layout. The program uses the handle during the call only.
            let handle = (&raw mut *arrived).cast::<Message>();
            handler(handle, context.get());
        })?;
        Ok(())
    })
}

/// Removes a handler.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_am_unregister(world: *mut Handle<World>, id: u32) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        match Handle::get(world)?.world().remove_am_handler(id) {
            true => Ok(()),
            false => Err(Failure::argument(format!("there is no handler of active messages with id {id}"))),
        }
    })
}

/// Describes a message to its handler.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_am_describe(message: *mut Message, info: *mut Info) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(info, "the place for the description")?;
        let arrived = Handle::get(message)?.0.borrow();
        let message = arrived.as_ref().ok_or_else(received)?;
        let (header, data) = (message.header(), message.data());
        place.set(Info {
            source: message.source().cast_signed(),
            id: message.id(),
            header: header.as_ptr().cast(),
            header_bytes: header.len(),
            data: data.map_or(std::ptr::null(), |data| data.as_ptr().cast()),
            bytes: message.len(),
        });
        Ok(())
    })
}

#[cold]
fn received() -> Failure {
    Failure::new(Code::ErrHandle, "the active message was received already: use it before")
}

/// Receives the data of a message.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_am_receive(
    message: *mut Message,
    buffer: *mut c_void,
    bytes: usize,
    then: Completion,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let arrived = &Handle::get(message)?.0;
        let buffer: RawBuffer<'static> = memory(buffer, bytes).buffer()?;
        let message = arrived.take().ok_or_else(received)?;
        let context = Context(context);
        message.receive(buffer, move |_, result| complete(then, &context, result));
        Ok(())
    })
}

fn memory(address: *const c_void, bytes: usize) -> Memory {
    Memory { address, count: bytes, datatype: std::ptr::null() }
}

/// A message to post, as a function's arguments describe it.
struct Post {
    id: u32,
    header: *const c_void,
    header_bytes: usize,
    data: *const c_void,
    bytes: usize,
    then: Completion,
    context: *mut c_void,
}

impl Post {
    /// # Safety
    /// The header is there during the call, and the data until the completion is called.
    unsafe fn send(self, poster: &Poster, to: c_int) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        let header = unsafe { arguments::array(self.header.cast::<u8>(), self.header_bytes, "the header")? };
        // SAFETY: as above.
        let data: RawBuffer<'static> = unsafe { memory(self.data, self.bytes).buffer()? };
        let (then, context, bytes) = (self.then, Context(self.context), self.bytes as u64);
        if then.is_none() {
            return Ok(poster.post(rank(to)?, self.id, header, data)?);
        }
        let done = move |_: RawBuffer<'static>, result: Result<(), cableway::Error>| {
            complete(then, &context, result.map(|()| bytes));
        };
        Ok(poster.post_then(rank(to)?, self.id, header, data, done)?)
    }
}

/// Posts a message.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_am_post(
    world: *mut Handle<World>,
    to: c_int,
    id: u32,
    header: *const c_void,
    header_bytes: usize,
    data: *const c_void,
    bytes: usize,
    then: Completion,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let poster = Handle::get(world)?.world().poster();
        Post { id, header, header_bytes, data, bytes, then, context }.send(&poster, to)
    })
}

/// Posts a message to the sender of another.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_am_reply(
    message: *mut Message,
    id: u32,
    header: *const c_void,
    header_bytes: usize,
    data: *const c_void,
    bytes: usize,
    then: Completion,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let arrived = Handle::get(message)?.0.borrow();
        let message = arrived.as_ref().ok_or_else(received)?;
        let (poster, to) = (message.poster(), message.source().cast_signed());
        Post { id, header, header_bytes, data, bytes, then, context }.send(&poster, to)
    })
}

/// Waits until all messages that were posted before have left.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_am_flush(world: *mut Handle<World>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        Handle::get(world)?.world().flush_am();
        Ok(())
    })
}

/// The numbers of messages that were handled, and of those without a handler.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_am_counts(world: *mut Handle<World>, handled: *mut u64, unknown: *mut u64) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let handled = Out::new(handled, "the place for the number of messages")?;
        let counts = Handle::get(world)?.world().am_counts();
        handled.set(counts.handled);
        if !unknown.is_null() {
            unknown.write(counts.unknown);
        }
        Ok(())
    })
}

/// Moves messages until a condition holds.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_progress_until(
    world: *mut Handle<World>,
    over: Condition,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let over = over.ok_or_else(|| arguments::null("the condition"))?;
        Handle::get(world)?.world().progress_until(|| over(context) != 0);
        Ok(())
    })
}
