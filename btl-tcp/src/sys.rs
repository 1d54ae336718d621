//! System calls on raw memory, and socket options that no crate offers. All unsafe calls to libc are here.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use cableway_base::fork::Unshared;

/// Creates a socket that forked children do not inherit. So peers see it close when this process ends.
pub(crate) type Socket = Unshared<socket2::Socket>;

/// Memory for one vectored call.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Slice(libc::iovec);

impl Slice {
    #[inline]
    pub(crate) fn new(address: *mut u8, len: usize) -> Self {
        Slice(libc::iovec { iov_base: address.cast(), iov_len: len })
    }

    #[inline]
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::new(bytes.as_ptr().cast_mut(), bytes.len())
    }

    #[inline]
    pub(crate) fn of_mut(bytes: &mut [u8]) -> Self {
        Self::new(bytes.as_mut_ptr(), bytes.len())
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.iov_len
    }
}

/// Calls `sendmsg`: sends as many bytes as the socket accepts now.
///
/// # Safety
/// Every slice is readable.
///
/// # Errors
/// As `sendmsg(2)`; `WouldBlock` if the socket is full.
#[inline]
pub(crate) unsafe fn send_vectored(socket: &Socket, slices: &[Slice]) -> io::Result<usize> {
    let message = header(slices.as_ptr(), slices.len());
    loop {
        // SAFETY: the header names `slices`, which the caller promises to be readable; sendmsg(2) reads no more.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        if let Some(result) = outcome(sent) {
            return result;
        }
    }
}

/// Calls `recvmsg`: receives available bytes. 0 is the end of the stream.
///
/// # Safety
/// Every slice is writable, and no other code accesses it meanwhile.
///
/// # Errors
/// As `recvmsg(2)`; `WouldBlock` if no bytes are available.
#[inline]
pub(crate) unsafe fn receive_vectored(socket: &Socket, slices: &[Slice]) -> io::Result<usize> {
    let mut message = header(slices.as_ptr(), slices.len());
    loop {
        // SAFETY: the header names `slices`, which the caller promises to be writable; recvmsg(2) writes no more.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        if let Some(result) = outcome(received) {
            return result;
        }
    }
}

/// Calls `recv` into private memory.
///
/// # Errors
/// As [`receive_vectored`].
#[inline]
pub(crate) fn receive(socket: &Socket, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the buffer is borrowed for writing and as long as stated; recv(2) writes no more.
        let received =
            unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        if let Some(result) = outcome(received) {
            return result;
        }
    }
}

#[inline]
fn header(slices: *const Slice, count: usize) -> libc::msghdr {
    // SAFETY: a msghdr of zeroes is valid: no name, no slices, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // `Slice` is transparent over `iovec`.
    message.msg_iov = slices.cast_mut().cast();
    message.msg_iovlen = count as _;
    message
}

/// Returns `None` if a signal interrupted the call, which must be repeated.
#[inline]
fn outcome(result: libc::ssize_t) -> Option<io::Result<usize>> {
    if result >= 0 {
        return Some(Ok(result as usize));
    }
    let error = io::Error::last_os_error();
    (error.kind() != io::ErrorKind::Interrupted).then_some(Err(error))
}

/// The kernel's information about the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Liveness {
    /// Sent segments without an acknowledgement.
    pub(crate) unacknowledged: u32,
    /// Unanswered probes of an idle or blocked connection.
    pub(crate) probes: u8,
    /// The time since the peer's kernel last sent anything.
    pub(crate) silent: Duration,
    /// The time since data last arrived.
    pub(crate) since_data: Duration,
}

/// # Errors
/// As `getsockopt(2)`.
pub(crate) fn liveness(socket: &Socket) -> io::Result<Liveness> {
    // SAFETY: `tcp_info` holds integers only.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: getsockopt(2) writes at most `len` bytes to `info`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &mut len)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Liveness {
        unacknowledged: info.tcpi_unacked,
        probes: info.tcpi_probes,
        silent: Duration::from_millis(info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv).into()),
        since_data: Duration::from_millis(info.tcpi_last_data_recv.into()),
    })
}

/// Returns the number of bytes that were sent but not acknowledged.
///
/// # Errors
/// As `ioctl(2)`.
pub(crate) fn unacknowledged_bytes(socket: &Socket) -> io::Result<usize> {
    // The value of SIOCOUTQ.
    count(socket, libc::TIOCOUTQ)
}

/// Returns the number of bytes that arrived but were not read.
///
/// # Errors
/// As `ioctl(2)`.
pub(crate) fn unread_bytes(socket: &Socket) -> io::Result<usize> {
    count(socket, libc::FIONREAD)
}

fn count(socket: &Socket, request: libc::Ioctl) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: either request stores one integer.
    if unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut bytes) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Limits the pauses between retransmissions and between probes (`TCP_RTO_MAX_MS`, Linux 6.15).
///
/// # Errors
/// As `setsockopt(2)`: older kernels lack the option.
pub(crate) fn set_longest_pause(socket: &Socket, pause: Duration) -> io::Result<()> {
    const TCP_RTO_MAX_MS: libc::c_int = 44;
    let milliseconds = libc::c_int::try_from(pause.as_millis()).unwrap_or(libc::c_int::MAX).clamp(1_000, 120_000);
    set_option(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, milliseconds)
}

/// Postpones the choice of a port to `connect`, so that bound addresses do not use up ports.
///
/// # Errors
/// As `setsockopt(2)`.
pub(crate) fn bind_address_only(socket: &Socket) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

fn set_option(socket: &Socket, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: setsockopt(2) reads one integer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
