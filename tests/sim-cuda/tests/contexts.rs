//! Contexts: lazy creation, one current context per thread, reused handles, ids, and the state after a reset.

mod common;

use common::{Session, in_child, is_simulated};

fn state() -> (u32, i32) {
    let (mut flags, mut active) = (0_u32, -1_i32);
    ok!(cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active));
    (flags, active)
}

fn id_of(context: usize) -> (i32, u64) {
    let mut id = 0_u64;
    (cu!(cuCtxGetId(context, &raw mut id)), id)
}

#[test]
fn a_primary_context_is_active_while_it_is_retained() {
    in_child("a_primary_context_is_active_while_it_is_retained", &[], || {
        ok!(cuInit(0_u32));
        assert_eq!(state().1, 0);
        assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), 201);
        let (mut first, mut second) = (0_usize, 0_usize);
        ok!(cuDevicePrimaryCtxRetain(&raw mut first, 0));
        ok!(cuDevicePrimaryCtxRetain(&raw mut second, 0));
        assert_eq!(first, second);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(state().1, 1);
        let (_, old) = id_of(first);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(state().1, 0);
        assert_eq!(id_of(first).0, 709);
        ok!(cuDevicePrimaryCtxRetain(&raw mut second, 0));
        assert_eq!(first, second, "the handle stays");
        assert_ne!(id_of(second).1, old, "the number does not");
        assert_eq!(cu!(cuCtxDestroy_v2(second)), 201);
    });
}

#[test]
fn each_thread_has_its_own_stack_of_contexts() {
    in_child("each_thread_has_its_own_stack_of_contexts", &[], || {
        let session = Session::begin();
        let (mut current, mut other) = (0_usize, 0_usize);
        ok!(cuCtxCreate_v2(&raw mut other, 0_u32, 0));
        ok!(cuCtxGetCurrent(&raw mut current));
        assert_eq!(current, other, "what is created is current");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut current = 1_usize;
                ok!(cuCtxGetCurrent(&raw mut current));
                assert_eq!(current, 0);
                assert_eq!(cu!(cuCtxSynchronize()), 201);
                assert_eq!(cu!(cuCtxPopCurrent_v2(&raw mut current)), 201);
                let mut address = 0_u64;
                assert_eq!(cu!(cuMemAlloc_v2(&raw mut address, 16_usize)), 201);
            });
        });
        ok!(cuCtxSetCurrent(session.context));
        ok!(cuCtxPopCurrent_v2(&raw mut current));
        assert_eq!(current, session.context);
        ok!(cuCtxGetCurrent(&raw mut current));
        assert_eq!(current, session.context, "setting replaced the one created");
        ok!(cuCtxDestroy_v2(other));
        assert_eq!(id_of(other).0, 709);
        let mut again = 0_usize;
        ok!(cuCtxCreate_v2(&raw mut again, 0_u32, 0));
        assert!(again == other || !is_simulated(), "a handle is reused, which a real driver may do");
    });
}

#[test]
fn a_reset_destroys_everything() {
    in_child("a_reset_destroys_everything", &[], || {
        let session = Session::begin();
        let (address, event) = (session.alloc(4096), session.event());
        let pinned = session.pinned(4096).as_mut_ptr() as usize;
        ok!(cuEventRecord(event, 0_usize));
        let mut kind = 0_u32;
        ok!(cuPointerGetAttribute(&raw mut kind, 2, address));
        ok!(cuDevicePrimaryCtxReset_v2(0));
        assert_eq!(state().1, 0);
        assert_eq!(cu!(cuPointerGetAttribute(&raw mut kind, 2, address)), 1);
        assert_eq!(cu!(cuPointerGetAttribute(&raw mut kind, 2, pinned)), 1);
        let mut out = 0_u64;
        for result in [
            cu!(cuEventQuery(event)),
            cu!(cuEventSynchronize(event)),
            cu!(cuEventDestroy_v2(event)),
            cu!(cuMemAlloc_v2(&raw mut out, 16_usize)),
            cu!(cuMemFree_v2(address)),
            cu!(cuCtxSynchronize()),
            id_of(session.context).0,
        ] {
            assert_eq!(result, 709);
        }
        let mut context = 0_usize;
        ok!(cuDevicePrimaryCtxRetain(&raw mut context, 0));
        assert_eq!(context, session.context);
        ok!(cuCtxSynchronize());
        let mut byte = 0_u8;
        assert_eq!(cu!(cuMemcpyDtoH_v2(&raw mut byte, address, 1_usize)), 1);
    });
}

#[test]
fn a_stream_of_a_reset_context_crashes_the_process() {
    const NAME: &str = "a_stream_of_a_reset_context_crashes_the_process";
    let died = common::child_dies(NAME, &[], || {
        let session = Session::begin();
        let stream = session.stream(1);
        ok!(cuDevicePrimaryCtxReset_v2(0));
        cu!(cuStreamQuery(stream));
    });
    assert!(died, "the real driver reads freed memory");
}

#[test]
fn work_of_two_contexts_does_not_mix() {
    in_child("work_of_two_contexts_does_not_mix", &[], || {
        let session = Session::begin();
        let mut other = 0_usize;
        ok!(cuCtxCreate_v2(&raw mut other, 0_u32, 0));
        let (stream, address) = (session.stream(1), session.alloc(4096));
        let mut popped = 0_usize;
        ok!(cuCtxPopCurrent_v2(&raw mut popped));
        let event = session.event();
        assert_eq!(cu!(cuEventRecord(event, stream)), 400, "event and stream of different contexts");
        ok!(cuStreamWaitEvent(stream, event, 0_u32));
        ok!(cuMemcpyDtoDAsync_v2(address, address + 64, 16_usize, stream));
        let mut owner = 0_usize;
        ok!(cuPointerGetAttribute(&raw mut owner, 1, address));
        assert_eq!(owner, other);
        ok!(cuMemFree_v2(address));
    });
}

#[test]
fn a_forked_child_cannot_use_the_driver() {
    in_child("a_forked_child_cannot_use_the_driver", &[], || {
        let session = Session::begin();
        let address = session.alloc(16);
        // Look it up before the fork: the child only calls it.
        let mut kind = 0_u32;
        ok!(cuPointerGetAttribute(&raw mut kind, 2, address));
        // SAFETY: the child calls the driver, which answers at once, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let lost = cu!(cuPointerGetAttribute(&raw mut kind, 2, address)) == 3;
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!lost)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    });
}
