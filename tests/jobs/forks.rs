//! Ranks that fork without executing another program, as PyTorch's DataLoader and Python's multiprocessing do.

use std::error::Error;

use cableway::{Any, EngineError, World};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, setsid, test_kill_process, waitpid};

use crate::faults::{every_transport, kill_myself, others_go_on, survived};
use crate::support::{Role, Test, finish, over, role_job, transports};

pub(crate) const TESTS: &[Test] = &[
    ("forks::a_killed_rank_is_detected_while_its_child_lives", || every_transport("dies_with_child")),
    ("forks::a_killed_rank_is_detected_even_if_its_child_ran_no_handlers", || {
        every_transport("dies_with_cloned_child")
    }),
    ("forks::a_child_that_ends_like_a_rank_harms_no_rank", child_ends_everywhere),
];

pub(crate) const ROLES: &[Role] = &[
    ("dies_with_child", || dies_with_child(fork)),
    ("dies_with_cloned_child", || dies_with_child(clone_process)),
    ("child_ends", child_ends),
];

type Outcome = Result<(), Box<dyn Error>>;

/// Forks; returns the child's process id in the parent, and `None` in the child.
pub(crate) fn fork() -> std::io::Result<Option<Pid>> {
    // SAFETY: the rank has no other thread that could hold a lock, so the child may go on like any program.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Forks as [`fork`] does, without running handlers of `pthread_atfork`.
fn clone_process() -> std::io::Result<Option<Pid>> {
    // SAFETY: without flags and without a stack it does what fork(2) does; the rank has no other thread.
    match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
        -1 => Err(std::io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid as i32)),
    }
}

/// Rank 1 has a child that does nothing, and is killed. The child lives until the others have detected the death.
fn dies_with_child(fork: fn() -> std::io::Result<Option<Pid>>) -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    // All ranks are connected to each other.
    on.barrier()?;
    for peer in (0..3).filter(|&peer| peer != world.rank()) {
        on.sendrecv(&[1_u8], (peer, 1), &mut [0_u8], (peer, 1))?;
    }
    if world.rank() == 1 {
        let Some(child) = fork()? else { stay() };
        for peer in [0, 2] {
            on.send(&[child.as_raw_nonzero().get()], peer, 2)?;
        }
        // Both wait for a message that never comes.
        on.recv(&mut [0_u8], Any, 3)?;
        on.recv(&mut [0_u8], Any, 3)?;
        return kill_myself();
    }
    let mut child = [0];
    on.recv(&mut child, 1, 2)?;
    let child = Pid::from_raw(child[0]).ok_or("rank 1 has no child")?;
    on.send(&[0_u8], 1, 3)?;
    // No time limit on a busy machine: only the child's life counts.
    let received = on.recv(&mut [0_u8; 100], 1, 0).map(drop);
    let lived = test_kill_process(child);
    // The child ends only after both have detected the death.
    let other = 2 - world.rank();
    on.sendrecv(&[1_u8], (other, 4), &mut [0_u8], (other, 4))?;
    if world.rank() == 0 {
        kill_process(child, Signal::KILL)?;
    }
    lived.map_err(|error| format!("the child ended before rank 1's death was noticed: {error}"))?;
    match received.as_ref().map_err(cableway::Error::engine_error) {
        Err(Some(EngineError::PeerFailed { peer: 1, .. })) => {}
        other => return Err(format!("a receive from a dead rank: {other:?}").into()),
    }
    others_go_on(on)?;
    survived()
}

/// The child does nothing with messages. It leaves the process group that the launcher ends.
fn stay() -> ! {
    let _ = setsid();
    // SAFETY: system calls only. The alarm ends it should nobody do so.
    unsafe {
        libc::alarm(60);
        loop {
            libc::pause();
        }
    }
}

fn child_ends_everywhere() {
    for btl in &transports() {
        for threads in ["no", "yes"] {
            let mut options = over(btl);
            options.extend(["--set".to_owned(), format!("progress_thread={threads}")]);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let finished = finish(&mut role_job(3, &options, "child_ends")).assert_success();
            let count = |word: &str| finished.stdout.lines().filter(|line| *line == word).count();
            assert_eq!((count("survived"), count("child ended")), (3, 3), "{btl}, {threads}: {finished:#?}");
        }
    }
}

/// Every rank has a child that continues as if it were the rank: it sends, waits, and returns from `main`.
fn child_ends() -> Outcome {
    let world = World::init()?;
    let on = world.communicator().clone();
    let next = (world.rank() + 1) % 3;
    let before = (world.rank() + 2) % 3;
    let (mut inbox, mut large, ours) = ([0_u8; 8], vec![0_u8; 1 << 20], vec![world.rank() as u8; 1 << 20]);
    on.sendrecv(&[1_u8], (next, 1), &mut [0_u8], (before, 1))?;
    on.barrier()?;
    // Receives are posted and a large message is under way when the child is forked.
    let child = on.scope(|scope| -> Result<Option<Pid>, Box<dyn Error>> {
        let coming = scope.irecv(&mut inbox, before, 2)?;
        let large = scope.irecv(&mut large, before, 3)?;
        let going = scope.isend(&ours, next, 3)?;
        let child = fork()?;
        if child.is_none() {
            let refused = on.send(&[9_u8; 8], next, 2).is_err() && on.send(&[9_u8; 100_000], before, 2).is_err();
            if !refused {
                return Err("the child has sent".into());
            }
            if coming.wait().is_ok() {
                return Err("the child has received".into());
            }
            return Ok(None);
        }
        if let Some(child) = child {
            let Some((_, status)) = waitpid(Some(child), WaitOptions::empty())? else { return Err("no child".into()) };
            if status.exit_status() != Some(0) {
                return Err(format!("the child ended with {status:?}").into());
            }
        }
        // Ranks send only after each of them has a child.
        on.barrier()?;
        on.send(&[7_u8; 8], next, 2)?;
        coming.wait()?;
        large.wait()?;
        going.wait()?;
        Ok(child)
    })?;
    if child.is_none() {
        println!("child ended");
        // Handlers of exit(3) and destructors run.
        drop((on, world));
        return Ok(());
    }
    if inbox != [7; 8] || large.iter().any(|&byte| u32::from(byte) != before) {
        return Err("a message is not the parent's".into());
    }
    for _ in 0..10 {
        on.sendrecv(&ours, (next, 5), &mut large, (before, 5))?;
    }
    on.barrier()?;
    survived()
}
