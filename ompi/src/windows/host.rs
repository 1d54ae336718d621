//! What windows leave to Open MPI: waiting, and reductions.

use std::ffi::{c_int, c_void};

use cableway_coll::{Element, ReduceOperation, combine_on_host};
use cableway_pml::{Engine, KernelReduction, WindowHost};

use crate::boundary::shim_host_progress;
use crate::fault::{self, Point};
use crate::state;
use crate::waiting::POLLS_PER_HOST_PROGRESS;

unsafe extern "C" {
    fn shim_window_element_size(operation: u32, element: u32) -> usize;
    fn shim_window_kernel(operation: u32, element: u32, of_kernel: *mut c_int, element_of_kernel: *mut c_int) -> bool;
    fn shim_window_reduce(operation: u32, element: u32, into: *mut c_void, from: *const c_void, count: usize) -> bool;
}

pub(crate) struct Host;

impl WindowHost for Host {
    fn wait_until(&self, engine: &Engine, done: &mut dyn FnMut() -> bool) {
        let mut idle: u32 = 0;
        // A nested call may have stopped the engine.
        while !done() && state::engine().is_some() && !engine.is_forked() {
            fault::point(Point::Wait);
            if engine.progress() != 0 {
                idle = 0;
                continue;
            }
            idle = idle.wrapping_add(1);
            if idle.is_multiple_of(POLLS_PER_HOST_PROGRESS) {
                engine.waited(u64::from(idle));
                // SAFETY: Open MPI is initialized while it calls this component.
                unsafe { shim_host_progress() };
                std::thread::yield_now();
            }
        }
    }

    fn element_size(&self, operation: u32, element: u32) -> Option<usize> {
        // SAFETY: it takes any numbers.
        let size = unsafe { shim_window_element_size(operation, element) };
        (size != 0).then_some(size)
    }

    fn kernel(&self, operation: u32, element: u32) -> Option<KernelReduction> {
        let (mut of_kernel, mut element_of_kernel) = (0, 0);
        // SAFETY: it takes any numbers, and both places are valid.
        let known = unsafe { shim_window_kernel(operation, element, &raw mut of_kernel, &raw mut element_of_kernel) };
        let number = |number: c_int| usize::try_from(number).ok().filter(|_| known);
        let operation = number(of_kernel).and_then(|at| ReduceOperation::ALL.get(at));
        let element = number(element_of_kernel).and_then(|at| Element::ALL.get(at));
        Some(KernelReduction { operation: *operation?, element: *element? })
    }

    unsafe fn reduce(&self, operation: u32, element: u32, into: *mut u8, from: *const u8, count: usize) -> bool {
        if let Some(KernelReduction { operation, element }) = self.kernel(operation, element) {
            // As kernels do it. Open MPI's own functions saturate some sums.
            // SAFETY: the caller's promise.
            unsafe { combine_on_host(operation, element, into, from, count) };
            return true;
        }
        // SAFETY: the caller's promise.
        unsafe { shim_window_reduce(operation, element, into.cast(), from.cast(), count) }
    }
}
