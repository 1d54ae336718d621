//! The target's side: what peers ask of this process's window, and the answers.
//!
//! An ask is checked before anything is written: the range, the length of the data, and the reduction.

use std::sync::Arc;

use super::accumulates::{Accumulate, Change, Maker};
use super::exposure::{Exposure, Reached};
use super::host::Host;
use super::reply::Reply;
use super::wire::{Ask, Reach, Wish};
use crate::am::Arrival;
use crate::error::Error;
use crate::refusal::Refusal;
use crate::shapes::Gathered;
use crate::wire::Malformed;

pub(super) struct Target {
    pub(super) exposure: Exposure,
    host: Arc<dyn Host>,
    pub(super) shapes: Gathered,
    accumulates: Arc<Maker>,
}

impl Target {
    pub(super) fn new(exposure: Exposure, host: Arc<dyn Host>) -> Self {
        let accumulates = Arc::new(Maker::new(host.clone()));
        Target { exposure, host, shapes: Gathered::default(), accumulates }
    }

    /// Returns whether no accumulate is under way or waits for its turn.
    pub(super) fn is_idle(&self) -> bool {
        self.accumulates.is_idle()
    }

    /// Waits until no kernel accesses the window any more.
    pub(super) fn finish(&self) {
        self.accumulates.finish();
    }

    /// Does what a peer asks for, and answers. Data may land later.
    pub(super) fn serve(&self, arrival: Arrival<'_>) -> Result<(), Malformed> {
        let (ask, inline) = Ask::parse(arrival.header())?;
        let expected = match ask.reach {
            Reach::Run { .. } => 0,
            Reach::Elements { blocks, .. } => blocks,
        };
        let blocks = self.shapes.complete_next(arrival.source(), inline, expected)?;
        let reply = Reply::new(&arrival, ask.number);
        // The drop of the arrival drops the data of what is refused.
        let reached = match self.exposure.find(ask.displacement, &ask.reach, &blocks) {
            Ok(reached) => reached,
            Err(refusal) => return refuse(&reply, refusal),
        };
        let (change, fetch) = match ask.wish {
            Wish::Put => return put(arrival, reached, reply),
            Wish::Get => {
                reply.answer_with(&reached);
                return Ok(());
            }
            Wish::Accumulate { combine, fetch } => (Change::Combine(combine), fetch),
            Wish::CompareSwap => (Change::CompareSwap, true),
        };
        self.accumulate(arrival, reached, (change, fetch), reply)
    }

    fn accumulate(
        &self,
        arrival: Arrival<'_>,
        reached: Reached,
        (change, fetch): (Change, bool),
        reply: Reply,
    ) -> Result<(), Malformed> {
        let accumulate = match Accumulate::new(&*self.host, reached, change, fetch, reply) {
            Ok(accumulate) => accumulate,
            Err((reply, refusal)) => return refuse(&reply, refusal),
        };
        let expected = accumulate.data_len();
        if arrival.len() != expected {
            return Err(Malformed::OneSided("the data of an accumulate has another length than its target"));
        }
        let mut data = match accumulate.room() {
            Ok(data) => data,
            Err(refusal) => return accumulate.refuse(refusal),
        };
        let (origin, maker) = (arrival.source(), self.accumulates.clone());
        let place = maker.add(accumulate);
        // So little data never lands on a device.
        if let (Some(inline), Some(bytes)) = (arrival.data(), data.host_bytes()) {
            bytes.copy_from_slice(inline);
            maker.landed(origin, place, Ok(data));
            return Ok(());
        }
        let into = data.buffer();
        // SAFETY: the completion owns the memory.
        unsafe {
            arrival.receive(into, move |landed| {
                let data = landed.map(|_| data).map_err(|error| incomplete(&error));
                maker.landed(origin, place, data);
            });
        }
        Ok(())
    }
}

fn put(arrival: Arrival<'_>, reached: Reached, reply: Reply) -> Result<(), Malformed> {
    if arrival.len() != reached.len {
        return Err(Malformed::OneSided("the data of a put has another length than its target"));
    }
    // SAFETY: the window's memory is valid, as its owner promised, and peers may write it.
    unsafe {
        arrival.receive(reply.buffer(&reached), move |landed| {
            reply.answer(landed.map(drop).map_err(|error| incomplete(&error)));
        });
    }
    Ok(())
}

/// Answers what is well-formed, but not possible here.
fn refuse(reply: &Reply, refusal: Refusal) -> Result<(), Malformed> {
    reply.answer(Err(refusal));
    Ok(())
}

fn incomplete(error: &Error) -> Refusal {
    match error {
        Error::Device { .. } => Refusal::Device,
        _ => Refusal::Incomplete,
    }
}
