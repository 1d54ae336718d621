use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;

use super::*;

/// Runs `child` in a forked child and asserts that it returns true.
fn in_forked_child(child: impl FnOnce() -> bool) {
    // SAFETY: the child only makes system calls, or calls functions that this module allows in a child.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        // SAFETY: ends the child without the test runner's handlers.
        0 => unsafe { libc::_exit(if child() { 0 } else { 1 }) },
        pid => {
            let mut status = 0;
            // SAFETY: waits for the child forked above.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert_eq!(status, 0, "the child's status");
        }
    }
}

/// Opens a connection whose second socket forked children do not have, including the children of other tests.
fn connection() -> (UnixStream, Unshared<UnixStream>) {
    let mut peer = None;
    let ours = Unshared::open(|| {
        UnixStream::pair().map(|(one, other)| {
            peer = Some(one);
            other
        })
    });
    (peer.unwrap(), ours.unwrap())
}

#[test]
fn a_connection_ends_with_its_process_though_a_child_lives() {
    let (mut peer, ours) = connection();
    let (mut release, held) = UnixStream::pair().unwrap();
    // SAFETY: the child waits by a system call, then ends.
    let child = match unsafe { libc::fork() } {
        // SAFETY: as above.
        0 => unsafe {
            let mut byte = 0_u8;
            let number = held.as_raw_fd();
            libc::read(number, (&raw mut byte).cast(), 1);
            libc::_exit(0)
        },
        child => child,
    };
    assert!(child > 0);
    drop(ours);
    // This would wait for the child if the child had a copy.
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    release.write_all(&[0]).unwrap();
    // SAFETY: waits for the child forked above.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

#[test]
fn a_childs_use_of_a_descriptor_does_not_reach_the_peer() {
    let (mut peer, ours) = connection();
    let number = ours.as_raw_fd();
    let mut ours = Some(ours);
    in_forked_child(|| {
        // SAFETY: one byte is read from memory that holds it.
        let sent = unsafe { libc::send(number, b"x".as_ptr().cast(), 1, libc::MSG_NOSIGNAL) };
        // The number stays taken until the copy is dropped.
        // SAFETY: only reads the descriptor's flags.
        let taken = || unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
        let before = taken();
        drop(ours.take());
        sent == -1 && before && !taken()
    });
    peer.set_nonblocking(true).unwrap();
    let nothing = peer.read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_child_writes_to_private_memory() {
    let len = 1 << 16;
    // SAFETY: the system chooses the address of the new mapping.
    let base = unsafe {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    let base = NonNull::new(base.cast::<u8>()).unwrap();
    // SAFETY: within the mapping, which no other code uses.
    unsafe { base.write(1) };
    // SAFETY: the value is dropped before the mapping ends.
    let registered = unsafe { Registered::mapping(base, len) };
    in_forked_child(|| {
        // SAFETY: within the private mapping that replaced the shared one.
        unsafe {
            let before = base.read();
            base.write(2);
            before == 0 && base.read() == 2
        }
    });
    drop(registered);
    in_forked_child(|| {
        // SAFETY: within the mapping, which is the shared one here.
        unsafe {
            base.add(1).write(3);
            base.read() == 1
        }
    });
    // SAFETY: no code uses the mapping after this.
    unsafe {
        assert_eq!((base.read(), base.add(1).read()), (1, 3));
        libc::munmap(base.as_ptr().cast(), len);
    }
}

#[test]
fn a_child_knows_that_it_is_another_process() {
    static CALLED: AtomicBool = AtomicBool::new(false);
    let origin = Origin::here();
    // SAFETY: the function only accesses an atomic.
    unsafe { in_child(|| CALLED.store(true, Ordering::Relaxed)) };
    in_forked_child(|| CALLED.load(Ordering::Relaxed) && !origin.is_here() && Origin::here().is_here());
    assert!(origin.is_here() && !CALLED.load(Ordering::Relaxed));
}

#[test]
fn forks_exclude_changes_of_the_table() {
    // Install the handlers before the first fork: a fork during their installation is not covered.
    let _ = Origin::here();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The threads stop after a failure as well.
        let _stop = Stop(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let (one, other) = UnixStream::pair().unwrap();
                    drop((Unshared::new(one), Unshared::new(other), connection()));
                }
            });
        }
        for _ in 0..50 {
            in_forked_child(|| {
                // The lock is free in the child, whichever thread held it in the parent.
                drop(table::lock());
                true
            });
        }
    });
}

/// Sets a flag when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
