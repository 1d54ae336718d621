//! Sockets that pass packets and files between processes of one node. Nothing here blocks.

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

/// The credentials of the other end, as the kernel reports them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credentials {
    /// In this process's pid namespace; 0 if it is not visible there.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

/// The result of `receive`.
pub(crate) enum Received {
    /// A packet and the files that came with it; none of them, too, if this process has no room for all.
    Packet(Vec<u8>, Vec<OwnedFd>),
    /// Nothing for now.
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

/// A descriptor that forked children do not inherit: peers see it close when this process ends.
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

/// Connects to `name`. `WouldBlock`: its queue is full, try later.
pub(crate) fn connect(name: &SocketName) -> io::Result<Descriptor> {
    let socket = socket()?;
    rustix::net::connect(&*socket, &address(name)?)?;
    Ok(socket)
}

/// Accepts one connection, if there is one.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<Descriptor>> {
    match Unshared::open(|| rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)) {
        Ok(socket) => Ok(Some(socket)),
        // A connection that was given up before it was accepted is none.
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the credentials of the other end.
///
/// Asked for by hand: a process outside our pid namespace has pid 0, which `rustix::net::UCred` cannot hold.
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

/// A descriptor that becomes readable when the process at the other end ends, which the hang-up does not tell as long as
/// anybody else has that end open. None: the system cannot tell, or this process has no room for one more descriptor.
pub(crate) fn process(socket: BorrowedFd<'_>, credentials: Credentials) -> Option<Descriptor> {
    Unshared::open(|| peer_pidfd(socket).or_else(|_| open_by_pid(credentials.pid))).ok()
}

/// `SO_PEERPIDFD`, of Linux 6.5: of the very process, whatever pid namespaces the two are in.
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

/// The kernel has told the pid in this process's namespace. Another process has it only if the one that connected has
/// ended, which is what is to be found out.
fn open_by_pid(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Whether such a descriptor is readable.
pub(crate) fn has_ended(process: &Descriptor) -> bool {
    let mut source = [PollFd::new(process, PollFlags::IN)];
    let immediately = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut source, Some(&immediately)).is_ok_and(|ready| ready != 0)
}

/// Sends a packet, and a file with it.
pub(crate) fn send(socket: BorrowedFd<'_>, packet: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    send_with(socket, packet, file.as_slice())
}

/// Sends a packet, and files with it, of which there are `MOST_PIECES` at most.
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
    // If the other side closed with unread data, the error is reported first and hides earlier packets. Read once more.
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
    // The kernel cuts off what it finds no room for, in our buffer or among our descriptors.
    if message.flags.contains(ReturnFlags::CTRUNC) {
        files.clear();
    }
    Ok(Received::Packet(buffer[..message.bytes].to_vec(), files))
}
