//! The client of the built-in launcher: one inherited socket, questions and answers.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use cableway_base::Rank;
use cableway_base::fork::Unshared;
use cableway_btl::{Job, Modex, ModexError};
use parking_lot::Mutex;
use rustix::io::FdFlags;

use super::support::modex_error;
use super::wire::{MAX_FRAME, Reply, Request, VERSION, frame};

/// `FD:INODE` of the socket to the launcher. The inode tells the socket from a stranger that got its number after a
/// wrapper closed what it did not know.
pub(crate) const SOCKET_VARIABLE: &str = "CABLEWAY_JOB_SOCKET";
/// For scripts: this process's rank.
pub(crate) const RANK_VARIABLE: &str = "CABLEWAY_JOB_RANK";
/// For scripts: how many ranks there are.
pub(crate) const SIZE_VARIABLE: &str = "CABLEWAY_JOB_SIZE";
/// For scripts: this process's place among the ranks of its node.
pub(crate) const LOCAL_RANK_VARIABLE: &str = "CABLEWAY_JOB_LOCAL_RANK";

/// The value of [`SOCKET_VARIABLE`] for `socket`.
pub(crate) fn announce(socket: BorrowedFd<'_>) -> std::io::Result<String> {
    use std::os::fd::AsRawFd;
    Ok(format!("{}:{}", socket.as_raw_fd(), rustix::fs::fstat(socket)?.st_ino))
}

pub(super) struct BuiltIn {
    job: Job,
    launcher: Mutex<Unshared<UnixStream>>,
}

impl BuiltIn {
    pub(super) fn join() -> Result<Self, ModexError> {
        let socket = inherited_socket().map_err(|reason| modex_error("joining the job", reason))?;
        // The launcher is to see it close when this process ends, whatever children it has.
        let launcher = Unshared::new(UnixStream::from(socket));
        let asked = ask(&launcher, &Request::Join { version: VERSION });
        let job = match asked.map_err(|reason| modex_error("joining the job", reason))? {
            Reply::Welcome { id, secret, rank, size } => Job::new(id, secret, rank, size, size),
            other => return Err(unexpected("joining the job", other)),
        };
        Ok(BuiltIn { job, launcher: Mutex::new(launcher) })
    }

    fn ask(&self, what: impl Fn() -> String, request: &Request) -> Result<Reply, ModexError> {
        ask(&self.launcher.lock(), request).map_err(|reason| modex_error(what(), reason))
    }
}

impl Modex for BuiltIn {
    fn job(&self) -> &Job {
        &self.job
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), ModexError> {
        let bytes = Request::Put { key: key.to_owned(), value: value.to_owned() }.encode();
        let sent = if bytes.len() - 4 > MAX_FRAME {
            Err(format!("{} bytes are more than the launcher takes", value.len()))
        } else {
            (&**self.launcher.lock()).write_all(&bytes).map_err(lost)
        };
        sent.map_err(|reason| modex_error(format!("publishing '{key}'"), reason))
    }

    fn fence(&self) -> Result<(), ModexError> {
        let what = || "waiting for all ranks".to_owned();
        match self.ask(what, &Request::Fence)? {
            Reply::AllCame => Ok(()),
            other => Err(unexpected(what(), other)),
        }
    }

    fn get(&self, peer: Rank, key: &str) -> Result<Option<Vec<u8>>, ModexError> {
        let what = || format!("reading '{key}' of rank {peer}");
        match self.ask(what, &Request::Get { peer, key: key.to_owned() })? {
            Reply::Value(value) => Ok(value),
            other => Err(unexpected(what(), other)),
        }
    }
}

/// Takes over the socket that the launcher left open in this process; children of this process do not get it.
fn inherited_socket() -> Result<OwnedFd, String> {
    static TAKEN: AtomicBool = AtomicBool::new(false);

    let announced = std::env::var(SOCKET_VARIABLE).map_err(|error| format!("{SOCKET_VARIABLE}: {error}"))?;
    let (fd, inode) = announced
        .split_once(':')
        .and_then(|(fd, inode)| Some((fd.parse::<RawFd>().ok()?, inode.parse::<u64>().ok()?)))
        .filter(|&(fd, _)| fd >= 0)
        .ok_or_else(|| format!("{SOCKET_VARIABLE}='{announced}' is not what the launcher writes"))?;
    // SAFETY: used for nothing but the check that the descriptor is open and what it says it is.
    let found = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) });
    if !found.is_ok_and(|found| found.st_ino == inode) {
        return Err(format!(
            "the launcher's socket (descriptor {fd}) did not reach this process; a program between the launcher and \
             this one has closed it"
        ));
    }
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Err("this process has joined its job before; a process joins once".to_owned());
    }
    // SAFETY: the descriptor is the launcher's socket by its inode, nobody else in this process knows of it, and
    // `TAKEN` sees to it that ownership is taken once.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(socket.as_fd(), FdFlags::CLOEXEC).map_err(|error| error.to_string())?;
    Ok(socket)
}

fn ask(mut launcher: &UnixStream, request: &Request) -> Result<Reply, String> {
    launcher.write_all(&request.encode()).map_err(lost)?;
    let mut bytes = vec![0; 4];
    launcher.read_exact(&mut bytes).map_err(lost)?;
    let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    frame(&bytes).map_err(|error| error.to_string())?;
    bytes.resize(4 + length, 0);
    launcher.read_exact(&mut bytes[4..]).map_err(lost)?;
    Reply::decode(&bytes[4..]).map_err(|error| error.to_string())
}

fn lost(error: std::io::Error) -> String {
    format!("the launcher cannot be reached: {error}")
}

fn unexpected(what: impl Into<String>, reply: Reply) -> ModexError {
    match reply {
        Reply::Refused(reason) => modex_error(what, reason),
        _ => modex_error(what, "the launcher answered another question"),
    }
}
