//! The client of the built-in launcher: requests and replies over one inherited socket.

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

/// Holds `FD:INODE` of the socket to the launcher. The inode shows whether the descriptor is still that socket: a wrapper
/// program may have closed it and opened another file under its number.
pub(crate) const SOCKET_VARIABLE: &str = "CABLEWAY_JOB_SOCKET";
/// The rank of this process, for scripts.
pub(crate) const RANK_VARIABLE: &str = "CABLEWAY_JOB_RANK";
/// The number of ranks, for scripts.
pub(crate) const SIZE_VARIABLE: &str = "CABLEWAY_JOB_SIZE";
/// The index of this process among the ranks of its node, for scripts.
pub(crate) const LOCAL_RANK_VARIABLE: &str = "CABLEWAY_JOB_LOCAL_RANK";

/// Returns the value of [`SOCKET_VARIABLE`] for `socket`.
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
        // Children must not keep the socket open: the launcher watches it close when this process ends.
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
            Err(format!("the value has {} bytes, more than the launcher accepts", value.len()))
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

/// Takes over the socket that the launcher left open in this process. Children of this process do not inherit it.
fn inherited_socket() -> Result<OwnedFd, String> {
    static TAKEN: AtomicBool = AtomicBool::new(false);

    let announced = std::env::var(SOCKET_VARIABLE).map_err(|error| format!("{SOCKET_VARIABLE}: {error}"))?;
    let (fd, inode) = announced
        .split_once(':')
        .and_then(|(fd, inode)| Some((fd.parse::<RawFd>().ok()?, inode.parse::<u64>().ok()?)))
        .filter(|&(fd, _)| fd >= 0)
        .ok_or_else(|| format!("invalid {SOCKET_VARIABLE} '{announced}': FD:INODE is expected"))?;
    // SAFETY: used only to check that the descriptor is open and is the socket.
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
    // SAFETY: the inode shows that the descriptor is the launcher's socket. Nothing else in this process uses it, and
    // `TAKEN` ensures that ownership is taken once.
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
        _ => modex_error(what, "the launcher sent a reply to another request"),
    }
}
