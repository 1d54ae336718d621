//! Packing and unpacking by the CPU.
//!
//! The packed side is one run of bytes; the user's side is what a walk visits. Block lengths that occur in practice
//! have loops of their own, in which a block is a few loads and stores; others go through `memcpy`.

use std::ops::{ControlFlow, Range};

use super::message::{Message, at};
use crate::node::{Node, Piece};
use crate::walk::{Visitor, nth};

/// Moves the packed bytes `range` of a message; packed, they are at `packed`.
///
/// # Safety
/// The range lies within the message, whose bytes are valid host memory, writable if not `PACK`; so are the packed
/// ones, the other way round; the two do not overlap.
pub(super) unsafe fn move_range<const PACK: bool>(message: &Message<'_>, range: Range<u64>, packed: *mut u8) {
    let mut mover = Mover::<PACK> { base: message.base, packed };
    let _whole = message.walk(range, &mut mover);
}

/// Moves `len` adjacent bytes.
///
/// # Safety
/// Both sides are valid for `len` bytes and do not overlap.
#[inline(always)]
pub(super) unsafe fn move_bytes<const PACK: bool>(user: *mut u8, packed: *mut u8, len: usize) {
    let (from, to) = if PACK { (user, packed) } else { (packed, user) };
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(from, len) }
}

struct Mover<const PACK: bool> {
    base: *mut u8,
    packed: *mut u8,
}

/// Calls a function generic in the block length with the constant that equals `$len`; `None` for a length without a
/// loop of its own.
macro_rules! with_constant {
    ($len:expr, $function:ident::<$pack:ident>($($argument:expr),*)) => {
        with_constant!(@ $len, $function, $pack, ($($argument),*); 1 2 3 4 6 8 12 16 20 24 32 40 48 64 96 128)
    };
    (@ $len:expr, $function:ident, $pack:ident, $arguments:tt; $($constant:literal)+) => {
        match $len { $( $constant => Some(with_constant!(call $function, $constant, $pack, $arguments)), )+ _ => None }
    };
    (call $function:ident, $constant:literal, $pack:ident, ($($argument:expr),*)) => {
        $function::<$constant, $pack>($($argument),*)
    };
}

impl<const PACK: bool> Visitor for Mover<PACK> {
    #[inline]
    fn block(&mut self, offset: i64, len: u64) -> ControlFlow<()> {
        // SAFETY: a walk visits only bytes of the message, in packing order, and `move_range` promises both sides.
        unsafe {
            move_bytes::<PACK>(at(self.base, offset), self.packed, len as usize);
            self.packed = self.packed.add(len as usize);
        }
        ControlFlow::Continue(())
    }

    fn repeat(&mut self, offset: i64, count: u64, stride: i64, body: &Node) -> ControlFlow<()> {
        let rows = |count, stride| Rows { count, stride };
        let (len, inner) = match body {
            Node::Block(len) => (*len, rows(1, 0)),
            Node::Repeat(inner) => match *inner.body {
                Node::Block(len) => (len, rows(inner.count, inner.stride)),
                _ => return self.each(offset, count, stride, body),
            },
            _ => return self.each(offset, count, stride, body),
        };
        let (inner, outer) =
            if inner.count == 1 { (rows(count, stride), rows(1, 0)) } else { (inner, rows(count, stride)) };
        let user = at(self.base, offset);
        // SAFETY: as in `block`, for every row of the repetition.
        unsafe {
            let moved = with_constant!(len, move_rows::<PACK>(user, self.packed, inner, outer));
            self.packed = moved.unwrap_or_else(|| move_any_rows::<PACK>(user, self.packed, len, inner, outer));
        }
        ControlFlow::Continue(())
    }

    fn list(&mut self, offset: i64, pieces: &[Piece], uniform: u64) -> ControlFlow<()> {
        let user = at(self.base, offset);
        // SAFETY: as in `block`, for every block of the list.
        unsafe {
            let moved = with_constant!(uniform, move_list::<PACK>(user, self.packed, pieces));
            self.packed = moved.unwrap_or_else(|| move_any_list::<PACK>(user, self.packed, pieces));
        }
        ControlFlow::Continue(())
    }
}

impl<const PACK: bool> Mover<PACK> {
    fn each(&mut self, offset: i64, count: u64, stride: i64, body: &Node) -> ControlFlow<()> {
        for i in 0..count {
            crate::walk::walk_node(body, nth(offset, i, stride), self)?;
        }
        ControlFlow::Continue(())
    }
}

#[derive(Clone, Copy)]
struct Rows {
    count: u64,
    stride: i64,
}

/// Moves `N` bytes by loads and stores of fixed size.
///
/// # Safety
/// As [`move_bytes`].
#[inline(always)]
unsafe fn move_fixed<const N: usize, const PACK: bool>(user: *mut u8, packed: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { move_bytes::<PACK>(user, packed, N) }
}

/// Moves blocks of `N` bytes at two levels of regular distances; returns the packed side's end.
///
/// # Safety
/// As [`move_bytes`], for every block.
unsafe fn move_rows<const N: usize, const PACK: bool>(
    user: *mut u8,
    mut packed: *mut u8,
    inner: Rows,
    outer: Rows,
) -> *mut u8 {
    let mut plane = user;
    for _ in 0..outer.count {
        let mut row = plane;
        for _ in 0..inner.count {
            // SAFETY: the caller's promise for this block. Addresses beyond the last block are never used.
            unsafe {
                move_fixed::<N, PACK>(row, packed);
                packed = packed.add(N);
            }
            row = row.wrapping_offset(inner.stride as isize);
        }
        plane = plane.wrapping_offset(outer.stride as isize);
    }
    packed
}

/// As [`move_rows`], for any length.
///
/// # Safety
/// As there.
unsafe fn move_any_rows<const PACK: bool>(
    user: *mut u8,
    mut packed: *mut u8,
    len: u64,
    inner: Rows,
    outer: Rows,
) -> *mut u8 {
    let len = len as usize;
    let mut plane = user;
    for _ in 0..outer.count {
        let mut row = plane;
        for _ in 0..inner.count {
            // SAFETY: as in `move_rows`.
            unsafe {
                move_bytes::<PACK>(row, packed, len);
                packed = packed.add(len);
            }
            row = row.wrapping_offset(inner.stride as isize);
        }
        plane = plane.wrapping_offset(outer.stride as isize);
    }
    packed
}

/// Moves blocks of `N` bytes at listed offsets; returns the packed side's end.
///
/// # Safety
/// As [`move_bytes`], for every block.
unsafe fn move_list<const N: usize, const PACK: bool>(user: *mut u8, mut packed: *mut u8, pieces: &[Piece]) -> *mut u8 {
    for piece in &pieces[..pieces.len() - 1] {
        // SAFETY: the caller's promise for this block.
        unsafe {
            move_fixed::<N, PACK>(user.wrapping_offset(piece.offset as isize), packed);
            packed = packed.add(N);
        }
    }
    packed
}

/// As [`move_list`], for blocks of any length.
///
/// # Safety
/// As there.
unsafe fn move_any_list<const PACK: bool>(user: *mut u8, mut packed: *mut u8, pieces: &[Piece]) -> *mut u8 {
    for pair in pieces.windows(2) {
        let len = (pair[1].start - pair[0].start) as usize;
        // SAFETY: as in `move_list`.
        unsafe {
            move_bytes::<PACK>(user.wrapping_offset(pair[0].offset as isize), packed, len);
            packed = packed.add(len);
        }
    }
    packed
}
