//! The memory of an accumulate's data, and of the elements that it fetches.

use cableway_common_cuda::{BounceBuffer, Devices, HostMemory, Location, PooledScratch};

use crate::am::INLINE_LIMIT;
use crate::buffer::Buffer;
use crate::refusal::Refusal;
use crate::tag::Engine;

pub(in crate::osc) enum Operand {
    Heap(Vec<u8>),
    /// Host memory that kernels access, and how many bytes of it count: few, or any number.
    Bounce(BounceBuffer, usize),
    Host(HostMemory, usize),
    /// Memory of a device, and how many bytes of it count.
    Device(PooledScratch, usize),
}

impl Operand {
    pub(super) const EMPTY: Operand = Operand::Heap(Vec::new());

    /// Takes host memory of a size that a peer chose.
    pub(super) fn on_host(engine: &Engine, len: usize) -> Result<Operand, Refusal> {
        let pooled = if len > INLINE_LIMIT { engine.host_pool().take(len) } else { None };
        match pooled {
            Some(memory) => Ok(Operand::Host(memory, len)),
            None => allocate(len).map(Operand::Heap),
        }
    }

    /// Takes memory that kernels in the context of `at` access: of the host if the bytes come or leave with a header, else
    /// of the device if there is some now.
    pub(super) fn for_kernels(engine: &Engine, at: &Location, len: usize) -> Option<Operand> {
        if len > INLINE_LIMIT {
            let on_host = || engine.host_pool().take(len).map(|memory| Operand::Host(memory, len));
            return Operand::on_device(engine, at, len).or_else(on_host);
        }
        engine.core().bounce_buffer(len).map(|buffer| Operand::Bounce(buffer, len))
    }

    /// Takes memory of the device. Returns `None` if there is none now.
    pub(super) fn on_device(engine: &Engine, at: &Location, len: usize) -> Option<Operand> {
        let taken = engine.scratch_pool().take_keepable(engine.devices(), at, len).unwrap_or_else(|error| {
            log::debug!("an accumulate works on the host: {error}");
            None
        });
        taken.map(|memory| Operand::Device(memory, len))
    }

    /// Returns memory of the same content that kernels in the context of `at` access, if there is some now.
    pub(super) fn reachable(mut self, engine: &Engine, at: &Location) -> Operand {
        if let Operand::Heap(bytes) = &mut self
            && let Some(mut other) = Operand::for_kernels(engine, at, bytes.len())
            && let Some(to) = other.host_bytes()
        {
            to.copy_from_slice(bytes);
            return other;
        }
        self
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Operand::Heap(bytes) => bytes.len(),
            Operand::Bounce(_, len) | Operand::Host(_, len) | Operand::Device(_, len) => *len,
        }
    }

    /// Returns the address of the first byte. Only one user at a time may write there.
    pub(in crate::osc) fn address(&self) -> *mut u8 {
        match self {
            Operand::Heap(bytes) => bytes.as_ptr().cast_mut(),
            Operand::Bounce(buffer, _) => buffer.as_ptr().cast_mut(),
            Operand::Host(memory, _) => memory.address(),
            Operand::Device(memory, _) => memory.address(),
        }
    }

    /// Returns the bytes, unless they are on a device.
    pub(in crate::osc) fn host_bytes(&mut self) -> Option<&mut [u8]> {
        match self {
            Operand::Heap(bytes) => Some(bytes),
            Operand::Bounce(buffer, len) => Some(&mut buffer[..*len]),
            // SAFETY: the memory has at least this length, and belongs to this value alone. The pool has initialised it.
            Operand::Host(memory, len) => Some(unsafe { std::slice::from_raw_parts_mut(memory.address(), *len) }),
            Operand::Device(..) => None,
        }
    }

    /// Describes the bytes. Nothing else uses them, so copies wait for no default stream.
    pub(in crate::osc) fn buffer(&self) -> Buffer<'static> {
        Buffer::bytes(self.address(), self.len() as u64).settled()
    }

    /// Returns the address at which kernels in the context of `at` access the bytes.
    pub(super) fn kernel_address(&self, devices: &Devices, at: &Location) -> Option<*mut u8> {
        match self {
            Operand::Heap(_) => None,
            Operand::Bounce(..) | Operand::Host(..) => devices.kernel_address(at, self.address(), self.len()),
            Operand::Device(memory, _) => Some(memory.address()),
        }
    }
}

/// Allocates host memory of a size that a peer chose.
fn allocate(len: usize) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Refusal::NoMemory)?;
    bytes.resize(len, 0);
    Ok(bytes)
}
