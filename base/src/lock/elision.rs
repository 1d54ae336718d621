//! The end of elision, for the whole process.
//!
//! Elided locks move and are not listed, so that nothing can visit them. Instead each looks at one flag when it is
//! taken. While the flag is down, an elided lock admits every thread. Once it is up, an elided lock admits none as its
//! owner, so that every thread takes the ordinary lock behind it.
//!
//! That is safe because the caller promises that no thread is inside an elided lock when the flag rises, and that every
//! thread that uses one later sees the flag up. So no thread is inside as an owner beside one that holds the ordinary
//! lock.

use std::sync::atomic::{AtomicBool, Ordering};

static ENDED: AtomicBool = AtomicBool::new(false);

/// Makes all elided locks of this process real, for good. Locks that are made later are real, too.
///
/// # Safety
/// No thread holds an elided lock. All uses of elided locks until now happen before this call, and all later ones happen
/// after it: they are the calling thread's own, those of threads that start later, or ordered by the program.
pub unsafe fn end_elision() {
    ENDED.store(true, Ordering::Release);
}

/// Returns whether no lock excludes no thread any more.
#[inline(always)]
pub(super) fn has_ended() -> bool {
    // The caller of `end_elision` promises the order, so that this need not make one.
    ENDED.load(Ordering::Relaxed)
}
