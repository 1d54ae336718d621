use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;

use super::*;

/// Runs `child` in a forked child, which answers whether all was as it should be there.
fn in_forked_child(child: impl FnOnce() -> bool) {
    // SAFETY: the child makes system calls only, or calls what this module says that a child may.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        // SAFETY: ends the child without the test runner's handlers.
        0 => unsafe { libc::_exit(if child() { 0 } else { 1 }) },
        pid => {
            let mut status = 0;
            // SAFETY: waits for the child of above.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert_eq!(status, 0, "the child's status");
        }
    }
}

/// Two ends of a connection, of which forked children do not have the second: those of other tests neither.
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
    // SAFETY: the child waits by a system call, and ends.
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
    // Would wait for the child if it had a copy.
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    release.write_all(&[0]).unwrap();
    // SAFETY: waits for the child of above.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

#[test]
fn what_a_child_does_to_a_descriptor_reaches_nobody() {
    let (mut peer, ours) = connection();
    let number = ours.as_raw_fd();
    let mut ours = Some(ours);
    in_forked_child(|| {
        // SAFETY: one byte is read from memory that holds it.
        let sent = unsafe { libc::send(number, b"x".as_ptr().cast(), 1, libc::MSG_NOSIGNAL) };
        // The number stays taken until the copy is dropped.
        // SAFETY: asks, and no more.
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
fn a_child_writes_to_memory_of_its_own() {
    let len = 1 << 16;
    // SAFETY: a new mapping at an address of the system's choice.
    let base = unsafe {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    let base = NonNull::new(base.cast::<u8>()).unwrap();
    // SAFETY: within the mapping, which nobody else uses.
    unsafe { base.write(1) };
    // SAFETY: it is that mapping, and is dropped before it ends.
    let registered = unsafe { Registered::mapping(base, len) };
    in_forked_child(|| {
        // SAFETY: within what lies there now.
        unsafe {
            let before = base.read();
            base.write(2);
            before == 0 && base.read() == 2
        }
    });
    drop(registered);
    in_forked_child(|| {
        // SAFETY: within the mapping, which is shared again.
        unsafe {
            base.add(1).write(3);
            base.read() == 1
        }
    });
    // SAFETY: as above; nobody uses the mapping after it.
    unsafe {
        assert_eq!((base.read(), base.add(1).read()), (1, 3));
        libc::munmap(base.as_ptr().cast(), len);
    }
}

#[test]
fn a_child_knows_that_it_is_another_process() {
    static CALLED: AtomicBool = AtomicBool::new(false);
    let origin = Origin::here();
    // SAFETY: touches an atomic.
    unsafe { in_child(|| CALLED.store(true, Ordering::Relaxed)) };
    in_forked_child(|| CALLED.load(Ordering::Relaxed) && !origin.is_here() && Origin::here().is_here());
    assert!(origin.is_here() && !CALLED.load(Ordering::Relaxed));
}

#[test]
fn forks_and_changes_of_the_table_do_not_mix() {
    // The handlers are there before the first fork: one that overlaps their installation is not covered.
    let _ = Origin::here();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The threads stop after a failure, too.
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
                // The lock is free in the child, whoever had it in the parent.
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
