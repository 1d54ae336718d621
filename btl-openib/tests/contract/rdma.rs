//! Tests `put`, `get`, and registered memory.

use crate::common::{Pair, has_device, is_iwarp, pair, pattern, region, send, transfer, until};
use cableway_btl::{Access, Flags, Remote, RemoteHandle, Token};

#[test]
fn puts_and_gets_move_the_named_bytes() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
    let nodes = [&a, &b];
    assert!(to_b.capabilities().flags.contains(Flags::PUT | Flags::GET));
    let len = 3 << 20;
    let mut there = vec![0; len + 100];
    let mut here = pattern(len, 1);
    // SAFETY: the memory outlives the registration and is only looked at after the transfers.
    let registration = unsafe { to_a.register(region(&mut there), Access::RemoteWrite) }.unwrap().unwrap();
    let handle = *registration.handle();
    transfer(&nodes, &a, 1, |token| {
        // SAFETY: the source outlives the put and is not written to.
        unsafe { to_b.put(&region(&mut here).into(), &Remote::at(&handle, 50), token) }
    });
    // The data is visible after the put completes here and a later message arrives there.
    send(&nodes, &mut *to_b, b"done", b"");
    until(&nodes, "the message arrives", || b.received() == 1);
    drop(registration);
    assert!(there[50..50 + len] == here);
    assert!(there[..50].iter().chain(&there[50 + len..]).all(|&byte| byte == 0));

    // SAFETY: as above.
    let registration = unsafe { to_a.register(region(&mut there), Access::RemoteRead) }.unwrap().unwrap();
    let handle = *registration.handle();
    let mut fetched = vec![0; len];
    transfer(&nodes, &a, 2, |token| {
        // SAFETY: the destination outlives the get, and no code reads it before completion.
        unsafe { to_b.get(&region(&mut fetched).into(), &Remote::at(&handle, 50), token) }
    });
    assert!(fetched == here);
    assert!(a.seen.completed.lock().iter().all(|(_, result)| result.is_ok()));
    assert_eq!((a.failures(), b.failures()), (0, 0));
}

/// An address that was unmapped and mapped again, or discarded, is different memory. A stale registration would move
/// the old pages.
#[test]
fn transfers_use_memory_that_was_mapped_again() {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
    let nodes = [&a, &b];
    let len = 1 << 20;
    // A fixed mapping replaces the old one in one step, so no other thread can map memory in between.
    let map = |at: *mut std::ffi::c_void| {
        let flags = if at.is_null() { MapFlags::PRIVATE } else { MapFlags::PRIVATE | MapFlags::FIXED };
        // SAFETY: at an address that the kernel chooses, or in place of a mapping of this test without references.
        unsafe { mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, flags) }.unwrap()
    };
    let (source, target) = (map(std::ptr::null_mut()), map(std::ptr::null_mut()));
    for round in 0..9 {
        // SAFETY: both mappings belong to this test, have `len` bytes, and have no other references.
        let (from, to) = unsafe {
            (std::slice::from_raw_parts_mut(source.cast(), len), std::slice::from_raw_parts_mut(target.cast(), len))
        };
        from.copy_from_slice(&pattern(len, round));
        // SAFETY: the memory outlives the registration.
        let registration = unsafe { to_a.register(region(from), Access::RemoteRead) }.unwrap().unwrap();
        let handle = *registration.handle();
        transfer(&nodes, &a, round, |token| {
            // SAFETY: no code reads it before completion.
            unsafe { to_b.get(&region(to).into(), &Remote::at(&handle, 0), token) }
        });
        drop(registration);
        assert!(to == pattern(len, round), "round {round}");
        // The same memory; different memory; different pages of the same mapping.
        for at in [source, target] {
            match round % 3 {
                0 => {}
                1 => assert_eq!(map(at), at),
                // SAFETY: a mapping of this test without references.
                _ => unsafe { madvise(at, len, Advice::LinuxDontNeed) }.unwrap(),
            }
        }
    }
    for at in [source, target] {
        // SAFETY: a mapping of this test, whose slices are no longer used.
        unsafe { munmap(at, len) }.unwrap();
    }
}

#[test]
fn ranges_beyond_a_registration_are_refused_locally() {
    if !has_device() {
        return;
    }
    let Pair { mut to_b, mut to_a, a, b } = pair(&[]);
    send(&[&a, &b], &mut *to_b, b"first", b"");
    let (mut target, mut source) = (vec![0; 100], vec![1; 101]);
    // SAFETY: the target outlives the registration and is not touched.
    let registration = unsafe { to_a.register(region(&mut target), Access::RemoteWrite) }.unwrap().unwrap();
    for (len, offset) in [(101, 0), (1, 100), (2, u64::MAX)] {
        // SAFETY: nothing is started.
        let result = unsafe {
            to_b.put(&region(&mut source[..len]).into(), &Remote::at(registration.handle(), offset), Token(0))
        };
        assert!(result.is_err(), "{len} bytes at {offset}");
    }
    let alien = RemoteHandle::new(b"of another transport").unwrap();
    // SAFETY: nothing is started.
    assert!(unsafe { to_b.put(&region(&mut source).into(), &Remote::at(&alien, 0), Token(0)) }.is_err());
}

#[test]
fn access_to_unregistered_memory_breaks_the_connection() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
    let nodes = [&a, &b];
    send(&nodes, &mut *to_b, b"first", b"");
    let (mut target, mut source) = (vec![0; 1000], vec![1; 1000]);
    // SAFETY: the target outlives the registration, which ends before the put.
    let registration = unsafe { to_a.register(region(&mut target), Access::RemoteWrite) }.unwrap().unwrap();
    let handle = *registration.handle();
    drop(registration);
    // SAFETY: the source outlives the pair and is not written to.
    transfer(&nodes, &a, 1, |token| unsafe { to_b.put(&region(&mut source).into(), &Remote::at(&handle, 0), token) });
    // Over iWARP a write completes when the source may be reused.
    assert!(is_iwarp() || a.seen.completed.lock()[0].1.is_err());
    until(&nodes, "both know", || a.failures() == 1 && b.failures() == 1);
    assert!(target.iter().all(|&byte| byte == 0));
    assert!(to_b.send_inline(b"x", b"").is_err());
    for _ in 0..1000 {
        a.progress();
        b.progress();
    }
    assert_eq!((a.failures(), b.failures()), (1, 1), "said once");
}
