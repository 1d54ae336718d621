//! The accumulates of a target.
//!
//! They are atomic to each other: one is made at a time, in the order of each origin's calls. A kernel combines elements
//! of device memory where they are, if it knows the reduction. Kernels follow one another in one stream. The CPU does
//! everything else, while no kernel runs.
//!
//! - `queues`: the order. `operand`: the memory of data, and of elements that are fetched.
//! - `by_host` and `by_device`: how one is made. `maker`: makes one after the other.

mod by_device;
mod by_host;
mod maker;
mod operand;
mod queues;

use cableway_common_cuda::{Devices, Location};

use super::exposure::Reached;
use super::host::Host;
use super::reply::Reply;
use super::wire::Combine;
use crate::am::INLINE_LIMIT;
use crate::refusal::Refusal;
use crate::wire::Malformed;
use by_device::Kernel;
pub(super) use maker::Maker;
pub(super) use operand::Operand;

/// What happens to elements of the window once the data is there.
pub(super) enum Change {
    Combine(Combine),
    CompareSwap,
}

/// Where elements lie.
enum Place {
    /// Together in host memory.
    Host,
    /// Together in one allocation of a device.
    Device(Location),
    /// Anywhere, also in several allocations.
    Scattered,
}

/// An accumulate that waits for its turn.
pub(super) struct Accumulate {
    reached: Reached,
    change: Change,
    /// Whether the elements before are the answer.
    fetch: bool,
    reply: Reply,
    /// The bytes of an element that is reduced, else 0.
    element: usize,
    /// The bytes of data that come with the ask.
    data_len: u64,
    place: Place,
    /// Makes it if nothing prevents that when its turn comes.
    kernel: Option<Kernel>,
}

impl Accumulate {
    /// Describes an accumulate. An unknown reduction is refused.
    pub(super) fn new(
        host: &dyn Host,
        reached: Reached,
        change: Change,
        fetch: bool,
        reply: Reply,
    ) -> Result<Accumulate, (Reply, Refusal)> {
        let element = match change {
            Change::Combine(Combine::Reduce { operation, element }) => {
                host.element_size(operation, element).unwrap_or(0)
            }
            _ => 0,
        };
        let data_len = match data_len(reached.len, &change, element) {
            Ok(data_len) => data_len,
            Err(refusal) => return Err((reply, refusal)),
        };
        let devices = reply.engine().devices();
        let place = Place::of(&reached, devices);
        let kernel = match &place {
            Place::Device(at) => Kernel::find(host, devices, at, &reached, &change),
            _ => None,
        };
        Ok(Accumulate { reached, change, fetch, reply, element, data_len, place, kernel })
    }

    pub(super) fn data_len(&self) -> u64 {
        self.data_len
    }

    /// Answers that it is not possible.
    pub(super) fn refuse(self, refusal: Refusal) -> Result<(), Malformed> {
        self.reply.answer(Err(refusal));
        Ok(())
    }

    fn origin(&self) -> u32 {
        self.reply.to()
    }

    /// Takes memory for the data, where those who use it reach it best.
    pub(super) fn room(&self) -> Result<Operand, Refusal> {
        let len = usize::try_from(self.data_len).map_err(|_| Refusal::NoMemory)?;
        let engine = self.reply.engine();
        let beside = match (&self.kernel, &self.place) {
            (Some(kernel), _) => Operand::for_kernels(engine, kernel.at(), len),
            (None, Place::Device(at))
                if len > INLINE_LIMIT && matches!(self.change, Change::Combine(Combine::Replace)) =>
            {
                Operand::on_device(engine, at, len)
            }
            _ => None,
        };
        beside.map_or_else(|| Operand::on_host(engine, len), Ok)
    }
}

impl Place {
    fn of(reached: &Reached, devices: &Devices) -> Place {
        let Some((address, len)) = reached.run() else { return Place::Scattered };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let at = devices.classify(address, len);
        match devices.one_allocation(&at, address, len) {
            false => Place::Scattered,
            true if at.on_device() => Place::Device(at),
            true => Place::Host,
        }
    }
}

/// The bytes of the widest element that is compared and swapped.
pub(super) const WIDEST: u64 = 16;

/// Returns how many bytes of data a change of `len` bytes takes. Elements that are reduced have `element` bytes.
fn data_len(len: u64, change: &Change, element: usize) -> Result<u64, Refusal> {
    match *change {
        Change::CompareSwap if len <= WIDEST => Ok(2 * len),
        Change::CompareSwap => Err(Refusal::Reduction),
        Change::Combine(Combine::Keep) => Ok(0),
        Change::Combine(Combine::Replace) => Ok(len),
        Change::Combine(Combine::Reduce { .. }) if element > 0 && len.is_multiple_of(element as u64) => Ok(len),
        Change::Combine(Combine::Reduce { .. }) => Err(Refusal::Reduction),
    }
}

fn device_failed(error: &dyn std::error::Error) -> Refusal {
    log::warn!("cannot accumulate in a window: {error}");
    Refusal::Device
}
