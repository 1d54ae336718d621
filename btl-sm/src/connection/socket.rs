//! Non-blocking sockets that pass packets and files between processes of one node.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cableway_base::fork::Unshared;
use cableway_common_cuda::MOST_PIECES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::wire::RECEIVE_BUFFER;
use crate::card::SocketName;

/// The peer's credentials, as the kernel reports them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credentials {
    /// The pid in this process's pid namespace; 0 if it is not visible there.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

/// The result of `receive`.
pub(crate) enum Received {
    /// A packet with its files. It has no files if this process has no room for all of them.
    Packet(Vec<u8>, Vec<OwnedFd>),
    /// Nothing is available now.
    Nothing,
    /// The other end is closed.
    HungUp,
}

fn address(name: &SocketName) -> io::Result<SocketAddrUnix> {
    Ok(match name {
        SocketName::Abstract(name) => SocketAddrUnix::new_abstract_name(name)?,
        SocketName::Path(path) => SocketAddrUnix::new(Path::new(std::ffi::OsStr::from_bytes(path)))?,
    })
}

/// Creates a descriptor that forked children do not inherit, so that peers see it close when this process ends.
pub(crate) type Descriptor = Unshared<OwnedFd>;

fn socket() -> io::Result<Descriptor> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(Unshared::open(|| rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None))?)
}

/// Listens on `name`.
pub(crate) fn listen(name: &SocketName, backlog: i32) -> io::Result<Descriptor> {
    let socket = socket()?;
    rustix::net::bind(&*socket, &address(name)?)?;
    rustix::net::listen(&*socket, backlog)?;
    Ok(socket)
}

/// Connects to `name`. `WouldBlock` means that the queue is full; try later.
pub(crate) fn connect(name: &SocketName) -> io::Result<Descriptor> {
    let socket = socket()?;
    rustix::net::connect(&*socket, &address(name)?)?;
    Ok(socket)
}

/// Accepts one connection, if there is one.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<Descriptor>> {
    match Unshared::open(|| rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)) {
        Ok(socket) => Ok(Some(socket)),
        // Ignore a connection that was closed before it was accepted.
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the peer's credentials.
///
/// Uses the system call directly: a process outside of the own pid namespace has pid 0, which `rustix::net::UCred`
/// cannot hold.
pub(crate) fn credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes to a `ucred`, which any bytes make.
    let result = unsafe {
        let value = (&raw mut peer).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, value, &mut len)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Credentials { pid: u32::try_from(peer.pid).unwrap_or(0), uid: peer.uid })
}

/// Returns a descriptor that becomes readable when the peer's process ends. The hang-up does not report that while
/// another process has the socket open. Returns `None` if the system does not support it, or no descriptor is left.
pub(crate) fn process(socket: BorrowedFd<'_>, credentials: Credentials) -> Option<Descriptor> {
    Unshared::open(|| peer_pidfd(socket).or_else(|_| open_by_pid(credentials.pid))).ok()
}

/// `SO_PEERPIDFD`, since Linux 6.5: it identifies exactly the peer's process, whatever the pid namespaces.
fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut descriptor: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes to an integer.
    let result = unsafe {
        let value = (&raw mut descriptor).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, value, &mut len)
    };
    if result != 0 || descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The pid comes from the kernel and belongs to this process's namespace. Another process has it only if the peer's has
/// ended, which this is to detect.
fn open_by_pid(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Returns whether such a descriptor is readable.
pub(crate) fn has_ended(process: &Descriptor) -> bool {
    let mut source = [PollFd::new(process, PollFlags::IN)];
    let immediately = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut source, Some(&immediately)).is_ok_and(|ready| ready != 0)
}

/// Sends a packet with at most one file.
pub(crate) fn send(socket: BorrowedFd<'_>, packet: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    send_with(socket, packet, file.as_slice())
}

/// Sends a packet with at most `MOST_PIECES` files.
pub(crate) fn send_with(socket: BorrowedFd<'_>, packet: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_PIECES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there are too many files for a packet"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags)?;
    Ok(())
}

/// Receives a packet, if there is one.
pub(crate) fn receive(socket: &OwnedFd) -> io::Result<Received> {
    // If the other side closed with unread data, the error is reported first and hides earlier packets. Read again.
    match receive_next(socket) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => receive_next(socket),
        received => received,
    }
}

fn receive_next(socket: &OwnedFd) -> io::Result<Received> {
    let mut buffer = [0_u8; RECEIVE_BUFFER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_PIECES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = match rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut buffer)], &mut control, flags) {
        Ok(message) => message,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
        Err(error) => return Err(error.into()),
    };
    let files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let mut files: Vec<OwnedFd> = files.collect();
    if message.bytes == 0 {
        return Ok(Received::HungUp);
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet is too long"));
    }
    // The kernel truncates data and files that exceed the buffer or the descriptor limit.
    if message.flags.contains(ReturnFlags::CTRUNC) {
        files.clear();
    }
    Ok(Received::Packet(buffer[..message.bytes].to_vec(), files))
}
