//! Buffers that a stream uses.

use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::rc::Rc;

use cableway_pml::Buffer;

use crate::{Error, ErrorKind};

/// A buffer that is lent to a stream until its [`StreamScope`](super::StreamScope) ends. The stream's calls use it in
/// their order, so that one buffer serves any number of them: received into, changed by a kernel, sent.
///
/// The program gets its address for kernels, and no other access.
pub struct Lent<'scope> {
    buffer: Buffer<'scope>,
    uses: Uses,
    writable: bool,
    lent: PhantomData<&'scope mut ()>,
}

/// The nonblocking messages of a buffer that the stream has not waited for: the number of sends, or -1 for a receive.
#[derive(Clone, Default)]
pub(super) struct Uses(Rc<Cell<isize>>);

/// How a call uses a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    Write,
}

impl<'scope> Lent<'scope> {
    pub(super) fn new(buffer: Buffer<'scope>, writable: bool) -> Self {
        Lent { buffer, uses: Uses::default(), writable, lent: PhantomData }
    }

    pub(super) fn buffer(&self) -> Buffer<'scope> {
        self.buffer
    }

    /// Returns the address of the memory, for kernels and copies that the program adds to the stream.
    pub fn as_ptr(&self) -> *mut c_void {
        self.buffer.address().cast()
    }

    /// Checks that a call may use the buffer after the stream's earlier calls.
    pub(super) fn check(&self, kind: Use) -> Result<(), Error> {
        self.check_kind(kind)?;
        self.uses.check(kind)
    }

    /// Checks that the buffer was lent for this.
    pub(super) fn check_kind(&self, kind: Use) -> Result<(), Error> {
        match kind == Use::Write && !self.writable {
            true => Err(bad("was lent for sending only: lend it by StreamScope::lend to receive into it")),
            false => Ok(()),
        }
    }

    pub(super) fn uses(&self) -> Uses {
        self.uses.clone()
    }

    /// Notes a message that uses the buffer until [`Uses::end`].
    pub(super) fn begin(&self, kind: Use) -> Uses {
        self.uses.0.set(if kind == Use::Read { self.uses.0.get() + 1 } else { -1 });
        self.uses.clone()
    }
}

impl Uses {
    /// Checks that no message under way conflicts.
    pub(super) fn check(&self, kind: Use) -> Result<(), Error> {
        match (kind, self.0.get()) {
            (_, 0) | (Use::Read, 1..) => Ok(()),
            _ => Err(bad("is in use by a message that the stream has not waited for: wait for its request first")),
        }
    }

    /// Notes that one of the messages is over for all later calls of the stream.
    pub(super) fn end(&self) {
        self.0.set((self.0.get() - 1).max(0));
    }
}

fn bad(what: &str) -> Error {
    ErrorKind::BadBuffer(format!("it {what}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_under_way_is_read_by_many_and_written_by_one() {
        let lent = Lent::new(Buffer::EMPTY, true);
        let (first, second) = (lent.begin(Use::Read), lent.begin(Use::Read));
        assert!(lent.check(Use::Read).is_ok() && lent.check(Use::Write).is_err());
        first.end();
        assert!(lent.check(Use::Write).is_err());
        second.end();
        assert!(lent.check(Use::Write).is_ok());
        let writer = lent.begin(Use::Write);
        assert!(lent.check(Use::Read).is_err() && lent.check(Use::Write).is_err());
        writer.end();
        assert!(lent.check(Use::Read).is_ok());
    }

    #[test]
    fn nothing_is_received_into_a_buffer_that_is_lent_for_sending() {
        let lent = Lent::new(Buffer::EMPTY, false);
        assert!(lent.check(Use::Read).is_ok());
        assert!(lent.check(Use::Write).unwrap_err().to_string().contains("StreamScope::lend"));
    }
}
