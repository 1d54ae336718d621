//! Loops over many blocks. Common block lengths have their own loops, in which a block is a few loads and stores. Other
//! lengths use a short copy or `memcpy`.
//!
//! For all functions: `PACK` is the direction. The user's and the packed bytes are valid for every block, the
//! destination exclusively, and do not overlap.

use crate::node::Piece;

/// A regular distance: the number of blocks, and the bytes from one to the next.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) count: u64,
    pub(super) stride: i64,
}

/// Calls a function that is generic in the block length with the constant that equals `$len`. Returns `None` for a
/// length without its own loop.
macro_rules! with_constant {
    ($len:expr, loops::$function:ident::<$pack:ident>($($argument:expr),*)) => {
        with_constant!(@ $len, $function, $pack, ($($argument),*); 1 2 3 4 6 8 12 16 20 24 32 40 48 64 96 128)
    };
    (@ $len:expr, $function:ident, $pack:ident, $arguments:tt; $($constant:literal)+) => {
        match $len { $( $constant => Some(with_constant!(call $function, $constant, $pack, $arguments)), )+ _ => None }
    };
    (call $function:ident, $constant:literal, $pack:ident, ($($argument:expr),*)) => {
        loops::$function::<$constant, $pack>($($argument),*)
    };
}
pub(super) use with_constant;

/// Moves `len` adjacent bytes.
///
/// # Safety
/// See the module.
#[inline(always)]
pub(super) unsafe fn move_bytes<const PACK: bool>(user: *mut u8, packed: *mut u8, len: usize) {
    let (from, to) = if PACK { (user, packed) } else { (packed, user) };
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(from, len) }
}

/// Like [`move_bytes`], but moves short runs as two overlapping pieces of fixed size, which is faster than a call of
/// `memcpy`.
///
/// # Safety
/// See the module.
#[inline(always)]
pub(super) unsafe fn move_short<const PACK: bool>(user: *mut u8, packed: *mut u8, len: usize) {
    // SAFETY: the caller's promise: both pieces lie within the `len` bytes.
    unsafe {
        match len {
            16..=32 => move_ends::<16, PACK>(user, packed, len),
            8..16 => move_ends::<8, PACK>(user, packed, len),
            4..8 => move_ends::<4, PACK>(user, packed, len),
            2..4 => move_ends::<2, PACK>(user, packed, len),
            1 => move_bytes::<PACK>(user, packed, 1),
            _ => move_bytes::<PACK>(user, packed, len),
        }
    }
}

/// Moves the first and the last `N` of `len` bytes.
///
/// # Safety
/// See the module; `len` is at least `N`.
#[inline(always)]
unsafe fn move_ends<const N: usize, const PACK: bool>(user: *mut u8, packed: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        move_bytes::<PACK>(user, packed, N);
        move_bytes::<PACK>(user.add(len - N), packed.add(len - N), N);
    }
}

/// Moves blocks of `N` bytes at two levels of regular distances. Returns the end of the packed side.
///
/// # Safety
/// See the module.
pub(super) unsafe fn move_rows<const N: usize, const PACK: bool>(
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
                move_bytes::<PACK>(row, packed, N);
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
/// See the module.
pub(super) unsafe fn move_any_rows<const PACK: bool>(
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
                move_short::<PACK>(row, packed, len);
                packed = packed.add(len);
            }
            row = row.wrapping_offset(inner.stride as isize);
        }
        plane = plane.wrapping_offset(outer.stride as isize);
    }
    packed
}

/// Moves blocks of `N` bytes that are at a regular distance on the packed side too, `step` bytes.
///
/// # Safety
/// See the module.
pub(super) unsafe fn move_column<const N: usize, const PACK: bool>(
    user: *mut u8,
    packed: *mut u8,
    rows: Rows,
    step: u64,
) {
    let (mut user, mut packed) = (user, packed);
    for _ in 0..rows.count {
        // SAFETY: the caller's promise for this block. Addresses beyond the last block are never used.
        unsafe { move_bytes::<PACK>(user, packed, N) };
        user = user.wrapping_offset(rows.stride as isize);
        packed = packed.wrapping_add(step as usize);
    }
}

/// As [`move_column`], for any length.
///
/// # Safety
/// See the module.
pub(super) unsafe fn move_any_column<const PACK: bool>(
    user: *mut u8,
    packed: *mut u8,
    len: u64,
    rows: Rows,
    step: u64,
) {
    let (mut user, mut packed) = (user, packed);
    for _ in 0..rows.count {
        // SAFETY: as in `move_column`.
        unsafe { move_short::<PACK>(user, packed, len as usize) };
        user = user.wrapping_offset(rows.stride as isize);
        packed = packed.wrapping_add(step as usize);
    }
}

/// Moves blocks of `N` bytes at listed offsets; returns the packed side's end.
///
/// # Safety
/// See the module.
pub(super) unsafe fn move_list<const N: usize, const PACK: bool>(
    user: *mut u8,
    mut packed: *mut u8,
    pieces: &[Piece],
) -> *mut u8 {
    for piece in &pieces[..pieces.len() - 1] {
        // SAFETY: the caller's promise for this block.
        unsafe {
            move_bytes::<PACK>(user.wrapping_offset(piece.offset as isize), packed, N);
            packed = packed.add(N);
        }
    }
    packed
}

/// As [`move_list`], for blocks of any length.
///
/// # Safety
/// See the module.
pub(super) unsafe fn move_any_list<const PACK: bool>(user: *mut u8, mut packed: *mut u8, pieces: &[Piece]) -> *mut u8 {
    for pair in pieces.windows(2) {
        let len = (pair[1].start - pair[0].start) as usize;
        // SAFETY: as in `move_list`.
        unsafe {
            move_short::<PACK>(user.wrapping_offset(pair[0].offset as isize), packed, len);
            packed = packed.add(len);
        }
    }
    packed
}
