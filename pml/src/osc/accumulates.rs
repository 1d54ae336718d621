//! The accumulates of a target, in the order of each origin's calls.
//!
//! All accumulates of a window are made by the target's CPU, one at a time: handlers and completions of a window run so.
//! That makes them atomic to each other. The data of a large one lands later than that of a small one behind it, so
//! each origin has a queue.

use std::collections::{HashMap, VecDeque};

use ahash::RandomState;
use cableway_common_cuda::Devices;

use super::exposure::Reached;
use super::host::Host;
use super::wire::Combine;
use crate::refusal::Refusal;

/// What happens to elements of the window once the data is there.
pub(super) enum Change {
    Combine(Combine),
    CompareSwap,
}

/// An accumulate that waits for its turn.
pub(super) struct Accumulate {
    pub(super) reached: Reached,
    pub(super) change: Change,
    /// Whether the elements before are the answer.
    pub(super) fetch: bool,
    /// Names the operation at its origin.
    pub(super) number: u64,
}

#[derive(Default)]
pub(super) struct Queues {
    queues: HashMap<u32, Queue, RandomState>,
}

#[derive(Default)]
struct Queue {
    /// The place of the first entry.
    first: u64,
    entries: VecDeque<Entry>,
}

struct Entry {
    accumulate: Accumulate,
    data: Option<Result<Vec<u8>, Refusal>>,
}

/// An accumulate whose turn it is, and its data.
pub(super) type Ready = (Accumulate, Result<Vec<u8>, Refusal>);

impl Queues {
    /// Adds an accumulate behind the earlier ones of its origin. Returns its place.
    pub(super) fn add(&mut self, origin: u32, accumulate: Accumulate) -> u64 {
        let queue = self.queues.entry(origin).or_default();
        queue.entries.push_back(Entry { accumulate, data: None });
        queue.first + queue.entries.len() as u64 - 1
    }

    /// Notes that the data of a place has landed, or could not.
    pub(super) fn landed(&mut self, origin: u32, place: u64, data: Result<Vec<u8>, Refusal>) {
        let Some(queue) = self.queues.get_mut(&origin) else { return };
        let at = place.checked_sub(queue.first).and_then(|at| usize::try_from(at).ok());
        if let Some(entry) = at.and_then(|at| queue.entries.get_mut(at)) {
            entry.data = Some(data);
        }
    }

    /// Takes the next accumulate of an origin if its data is there.
    pub(super) fn next(&mut self, origin: u32) -> Option<Ready> {
        let queue = self.queues.get_mut(&origin)?;
        let Entry { accumulate, data } = queue.entries.pop_front()?;
        match data {
            Some(data) => {
                queue.first += 1;
                Some((accumulate, data))
            }
            None => {
                queue.entries.push_front(Entry { accumulate, data: None });
                None
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.values().all(|queue| queue.entries.is_empty())
    }
}

impl Accumulate {
    /// Returns how many bytes of data come with the ask. An unknown reduction is refused.
    pub(super) fn data_len(&self, host: &dyn Host) -> Result<u64, Refusal> {
        let len = self.reached.len;
        match self.change {
            Change::CompareSwap if len <= WIDEST => Ok(2 * len),
            Change::CompareSwap => Err(Refusal::Reduction),
            Change::Combine(Combine::Keep) => Ok(0),
            Change::Combine(Combine::Replace) => Ok(len),
            Change::Combine(Combine::Reduce { operation, element }) => match host.element_size(operation, element) {
                Some(size) if size > 0 && len.is_multiple_of(size as u64) => Ok(len),
                _ => Err(Refusal::Reduction),
            },
        }
    }

    /// Changes the window's elements. Returns what they were if that was asked for, else nothing.
    ///
    /// # Safety
    /// The window's memory is valid, and nobody else accesses it as elements of accumulates. The data has
    /// [`data_len`](Self::data_len) bytes.
    pub(super) unsafe fn make(&self, host: &dyn Host, devices: &Devices, data: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let len = usize::try_from(self.reached.len).map_err(|_| Refusal::NoMemory)?;
        if len == 0 {
            return Ok(Vec::new());
        }
        let reads = self.fetch || !matches!(self.change, Change::Combine(Combine::Replace));
        // SAFETY: the caller's promise.
        let mut before = if reads { unsafe { self.read(devices, len)? } } else { Vec::new() };
        match self.change {
            Change::Combine(Combine::Keep) => return Ok(before),
            // SAFETY: as above.
            Change::Combine(Combine::Replace) => unsafe { self.write(devices, &data)? },
            Change::Combine(Combine::Reduce { operation, element }) => {
                let count = len / host.element_size(operation, element).unwrap_or(len);
                let mut after = if self.fetch { before.clone() } else { std::mem::take(&mut before) };
                // SAFETY: both hold so many elements.
                if !unsafe { host.reduce(operation, element, after.as_mut_ptr(), data.as_ptr(), count) } {
                    return Err(Refusal::Reduction);
                }
                // SAFETY: as above.
                unsafe { self.write(devices, &after)? };
            }
            Change::CompareSwap => {
                let (expected, new) = data.split_at(len);
                if before == expected {
                    // SAFETY: as above.
                    unsafe { self.write(devices, new)? };
                }
            }
        }
        Ok(if self.fetch { before } else { Vec::new() })
    }

    /// # Safety
    /// As [`make`](Self::make).
    unsafe fn read(&self, devices: &Devices, len: usize) -> Result<Vec<u8>, Refusal> {
        let mut bytes = allocate(len)?;
        let buffer = self.reached.buffer();
        // SAFETY: the caller's promise; the convertor ends here.
        let mut convertor = unsafe { buffer.convertor_to_send(buffer.classify(devices), devices) };
        convertor.pack_slice(&mut bytes).map_err(|error| device_failed(&error))?;
        Ok(bytes)
    }

    /// # Safety
    /// As [`make`](Self::make).
    unsafe fn write(&self, devices: &Devices, bytes: &[u8]) -> Result<(), Refusal> {
        let buffer = self.reached.buffer();
        // SAFETY: the caller's promise; the convertor ends here.
        let mut convertor = unsafe { buffer.convertor_to_receive(buffer.classify(devices), devices) };
        convertor.unpack_slice(bytes).map(drop).map_err(|error| device_failed(&error))
    }
}

/// The bytes of the widest element that is compared and swapped.
pub(super) const WIDEST: u64 = 16;

fn device_failed(error: &dyn std::error::Error) -> Refusal {
    log::warn!("cannot accumulate in a window: {error}");
    Refusal::Device
}

/// Allocates memory of a size that a peer chose.
pub(super) fn allocate(len: usize) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Refusal::NoMemory)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::exposure::{Exposed, Exposure};
    use super::super::wire::Reach;
    use super::*;

    fn accumulate(number: u64) -> Accumulate {
        let exposure = Exposure::new(Exposed::Attached);
        let reached = exposure.find(0, &Reach::Run { offset: 0, len: 0 }, &[]).unwrap();
        Accumulate { reached, change: Change::Combine(Combine::Keep), fetch: true, number }
    }

    #[test]
    fn data_that_lands_early_waits_for_earlier_accumulates_of_its_origin() {
        let mut queues = Queues::default();
        let places = [1, 2, 3].map(|number| queues.add(7, accumulate(number)));
        let other = queues.add(8, accumulate(9));
        queues.landed(7, places[2], Ok(vec![3]));
        queues.landed(7, places[1], Err(Refusal::Device));
        assert!(queues.next(7).is_none() && queues.next(8).is_none() && queues.next(6).is_none());
        queues.landed(8, other, Ok(vec![9]));
        let mut next = |origin| queues.next(origin).map(|(accumulate, data)| (accumulate.number, data));
        assert_eq!(next(8), Some((9, Ok(vec![9]))));
        assert_eq!(next(7), None);
        queues.landed(7, places[0], Ok(vec![1]));
        let mut next = |origin| queues.next(origin).map(|(accumulate, data)| (accumulate.number, data));
        assert_eq!(next(7), Some((1, Ok(vec![1]))));
        assert_eq!(next(7), Some((2, Err(Refusal::Device))));
        assert_eq!(next(7), Some((3, Ok(vec![3]))));
        assert!(queues.is_empty());
        let again = queues.add(7, accumulate(4));
        queues.landed(7, places[0], Ok(vec![]));
        assert!(queues.next(7).is_none());
        queues.landed(7, again, Ok(vec![4]));
        assert!(queues.next(7).is_some() && queues.is_empty());
    }
}
