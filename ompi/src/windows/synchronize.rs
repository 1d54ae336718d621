//! The synchronization calls of windows.

use std::ffi::c_int;

use cableway_pml::Window;

use super::with;

/// Copies ranks, which Open MPI has checked.
///
/// # Safety
/// The array has so many entries.
unsafe fn ranks_of(ranks: *const c_int, count: usize) -> Vec<u32> {
    // SAFETY: the caller's promise.
    (0..count).map(|at| unsafe { *ranks.add(at) } as u32).collect()
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_fence(window: *const Window, followed: bool) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, |window| window.fence(followed)) }
}

/// # Safety
/// As [`with`] and [`ranks_of`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_begin(window: *const Window, ranks: *const c_int, count: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, |window| window.begin(ranks_of(ranks, count))) }
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_end(window: *const Window) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, Window::end) }
}

/// # Safety
/// As [`with`] and [`ranks_of`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_post(window: *const Window, ranks: *const c_int, count: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, |window| window.post(ranks_of(ranks, count))) }
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_wait(window: *const Window) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, Window::wait) }
}

/// # Safety
/// As [`with`]. `over` is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_test(window: *const Window, over: *mut bool) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(window, |window| {
            *over = window.test()?;
            Ok(())
        })
    }
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_lock(window: *const Window, target: u32, exclusive: bool) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, |window| window.lock(target, exclusive)) }
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_unlock(window: *const Window, target: u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, |window| window.unlock(target)) }
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_lock_all(window: *const Window) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, Window::lock_all) }
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_unlock_all(window: *const Window) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, Window::unlock_all) }
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_flush(window: *const Window, target: u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, |window| window.flush(Some(target))) }
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_flush_all(window: *const Window) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, |window| window.flush(None)) }
}

/// # Safety
/// As [`with`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_exposed_finish(window: *const Window) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(window, Window::finish) }
}
