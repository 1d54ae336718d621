//! The environment of a measurement: its stream, its memory, and its time limit.
//!
//! Device memory comes from `cuMemCreate`. Unlike `cuMemAlloc` memory it is freed without waiting, and needs no context
//! on another device. No wait exceeds [`LATE`]: memory that a copy might still access is not freed before the process
//! ends.

use std::time::{Duration, Instant};

use super::halt::Halt;
use crate::copies::Workspace;
use crate::copy::RowCopy;
use crate::costs::Known;
use crate::driver::{Failure, FailureKind, Priority, Stream};
use crate::kernels::{Jobs, Pieces, Work};
use crate::location::DeviceIndex;

/// After this much of the thread's processor time no measurement starts. The time of other programs does not count: on
/// a busy machine a measurement takes longer, but still gives figures.
const LIMIT: Duration = Duration::from_millis(250);
/// A task that takes this much of the thread's processor time is waiting for something.
const LATE: Duration = Duration::from_millis(100);

/// Why there is no figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoFigure {
    Refused(Failure),
    /// There was no time, or no room on the device. Try again later.
    NotNow,
    /// The figures are implausible, because something disturbed the copies.
    Implausible,
}

impl From<Failure> for NoFigure {
    fn from(failure: Failure) -> Self {
        NoFigure::Refused(failure)
    }
}

/// The stream and time limit of a measurement.
pub(super) struct Bench<'w> {
    pub(super) workspace: &'w Workspace,
    device: DeviceIndex,
    /// `None` only during the drop.
    stream: Option<Stream>,
    begun: Duration,
    halt: &'w Halt,
}

impl<'w> Bench<'w> {
    /// The context is current.
    pub(super) fn new(workspace: &'w Workspace, device: DeviceIndex, halt: &'w Halt) -> Result<Self, Failure> {
        let stream = Some(workspace.context.driver.new_stream(Priority::Normal)?);
        Ok(Bench { workspace, device, stream, begun: own_time(), halt })
    }

    /// The stream in which copies are measured.
    pub(super) fn stream(&self) -> Result<&Stream, Failure> {
        self.stream.as_ref().ok_or(Failure::missing("new_stream"))
    }

    /// Returns the state of a row without a figure.
    pub(super) fn row<T>(&self, ended: NoFigure) -> Known<T> {
        match ended {
            NoFigure::Refused(failure) if failure.is_permanent() => {
                log::debug!("no figure: {}: {}", failure.call, self.workspace.context.driver.reason(failure));
                Known::Refused
            }
            NoFigure::Refused(_) | NoFigure::NotNow | NoFigure::Implausible => Known::Nothing,
        }
    }

    /// Returns the shortest time from the call until the stream is idle.
    pub(super) fn fastest(
        &self,
        times: usize,
        mut issue: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Duration, NoFigure> {
        let mut fastest = Duration::MAX;
        for _ in 0..times {
            self.go_on()?;
            let wait = Wait::begin();
            issue()?;
            while !self.is_idle()? {
                if wait.is_late() {
                    return Err(NoFigure::NotNow);
                }
                std::hint::spin_loop();
            }
            fastest = fastest.min(wait.begun.elapsed());
        }
        Ok(fastest)
    }

    /// Returns the shortest time that a kernel takes for copies.
    pub(super) fn kernel(&self, times: usize, copies: &[RowCopy]) -> Result<Duration, NoFigure> {
        let Workspace { context, kernels, default_stream, .. } = self.workspace;
        // Loading waits for kernels that fill the device, and such a kernel may wait for a message.
        if !kernels.tried() && default_stream.is_quiet()? {
            self.workspace.load_kernels(true);
        }
        if kernels.are_off() {
            return Err(NoFigure::Refused(Failure::found("load_module", FailureKind::NotSupported)));
        }
        let mut fastest = Duration::MAX;
        for _ in 0..times {
            // The first jobs of a context may still run.
            let wait = Wait::begin();
            while !kernels.ready() {
                if wait.is_late() || !kernels.tried() {
                    return Err(NoFigure::NotNow);
                }
                std::thread::yield_now();
            }
            self.go_on()?;
            let mut work = Box::new(Pieces::NOTHING);
            for piece in copies {
                work.push(piece.dst, piece.src, piece.width as u64);
            }
            let (mut jobs, wait) = (Jobs::default(), Wait::begin());
            if !jobs.launch(context, kernels, &mut Work::Pieces(work), None)? {
                return Err(NoFigure::NotNow);
            }
            loop {
                match jobs.look(context, kernels) {
                    Ok(true) => break,
                    Ok(false) if !wait.is_late() => std::hint::spin_loop(),
                    failed => {
                        jobs.withdraw(context, kernels);
                        return Err(failed.map_or_else(NoFigure::Refused, |_| NoFigure::NotNow));
                    }
                }
            }
            fastest = fastest.min(wait.begun.elapsed());
        }
        Ok(fastest)
    }

    fn go_on(&self) -> Result<(), NoFigure> {
        if own_time().saturating_sub(self.begun) > LIMIT || self.halt.is_halted() {
            Err(NoFigure::NotNow)
        } else {
            Ok(())
        }
    }

    fn is_idle(&self) -> Result<bool, Failure> {
        // The device, and with it the stream, may be reset meanwhile.
        self.workspace.context.check_alive()?;
        self.workspace.context.driver.is_idle(self.stream()?)
    }

    /// Waits briefly. Returns whether the measurement's work is done.
    fn is_over(&self) -> bool {
        let wait = Wait::begin();
        while !wait.is_late() {
            match self.is_idle() {
                Ok(true) => return true,
                Ok(false) => std::thread::yield_now(),
                Err(_) => return false,
            }
        }
        false
    }

    /// Allocates at least this many bytes on a device, accessible by the bench's device.
    pub(super) fn device_memory(&self, on: DeviceIndex, bytes: usize) -> Result<BenchMemory<'_, 'w>, NoFigure> {
        self.go_on()?;
        let driver = self.workspace.context.driver;
        let len = bytes.next_multiple_of(driver.granularity(on)?);
        let address = driver.reserve(len)?;
        driver.map(address, len, on, self.device).inspect_err(|_| {
            // SAFETY: just reserved, and nothing is mapped there.
            let _ = unsafe { driver.unmap(address, 0, len) };
        })?;
        Ok(BenchMemory { bench: self, address, len, on_host: false })
    }

    /// Allocates this many bytes of registered host memory.
    pub(super) fn host_memory(&self, bytes: usize) -> Result<BenchMemory<'_, 'w>, NoFigure> {
        self.go_on()?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(NoFigure::NotNow);
        }
        // SAFETY: this value owns the memory, which stays mapped until it is unregistered.
        let registered = unsafe { self.workspace.context.driver.register_host(memory.cast(), bytes) };
        if let Err(failure) = registered {
            // SAFETY: the mapping made above, which nobody else knows.
            unsafe { libc::munmap(memory, bytes) };
            return Err(failure.into());
        }
        Ok(BenchMemory { bench: self, address: memory.expose_provenance() as u64, len: bytes, on_host: true })
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        if self.is_over()
            && let Some(stream) = self.stream.take()
        {
            let _ = self.workspace.context.driver.destroy_stream(stream);
        }
    }
}

/// Memory of a measurement.
pub(super) struct BenchMemory<'b, 'w> {
    bench: &'b Bench<'w>,
    pub(super) address: u64,
    len: usize,
    on_host: bool,
}

impl Drop for BenchMemory<'_, '_> {
    fn drop(&mut self) {
        if !self.bench.is_over() {
            log::debug!("a measured copy has not ended; its memory is not freed");
            return;
        }
        let driver = self.bench.workspace.context.driver;
        if !self.on_host {
            // SAFETY: mapped by `device_memory`; nothing that touches it is under way.
            if let Err(failure) = unsafe { driver.unmap(self.address, self.len, self.len) } {
                log::debug!("giving back memory: {}", driver.reason(failure));
            }
            return;
        }
        let memory: *mut u8 = std::ptr::with_exposed_provenance_mut(self.address as usize);
        // SAFETY: registered by `host_memory`; nothing that touches it is under way.
        match unsafe { driver.unregister_host(memory) } {
            Ok(()) => {
                // SAFETY: the mapping made by `host_memory`, which nobody else knows.
                unsafe { libc::munmap(memory.cast(), self.len) };
            }
            Err(failure) => log::debug!("giving back memory: {}", driver.reason(failure)),
        }
    }
}

/// A wait for the device.
struct Wait {
    begun: Instant,
    own: Duration,
}

impl Wait {
    fn begin() -> Self {
        Wait { begun: Instant::now(), own: own_time() }
    }

    /// Checks whether it has taken [`LATE`] of the thread's own time. This is a system call.
    fn is_late(&self) -> bool {
        self.begun.elapsed() > LATE && own_time().saturating_sub(self.own) > LATE
    }
}

/// The processor time of the calling thread.
fn own_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills in the time of a clock that every thread has.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
