//! Makes the accumulates of a window, one after the other.

use std::collections::VecDeque;
use std::sync::Arc;

use cableway_common_cuda::{Order, ReductionRun};
use parking_lot::Mutex;

use super::operand::Operand;
use super::queues::Queues;
use super::{Accumulate, Kernel};
use crate::osc::host::Host;
use crate::refusal::Refusal;
use crate::tag::Task;

/// The data of an accumulate, or why it could not land.
type Landed = Result<Operand, Refusal>;

pub(in crate::osc) struct Maker {
    host: Arc<dyn Host>,
    queues: Mutex<Queues<Accumulate, Landed>>,
    /// Held by the thread that makes accumulates.
    making: Mutex<Making>,
}

#[derive(Default)]
struct Making {
    /// Kernels under way, in the order of their stream.
    runs: VecDeque<Run>,
    /// What waits until none of them is.
    next: Option<(Accumulate, Landed)>,
    /// Whether the engine polls the kernels.
    is_polled: bool,
}

/// An accumulate that a kernel makes.
struct Run {
    /// The first field, so that its drop waits for the kernel before the operands are free.
    reduction: ReductionRun,
    kernel: Kernel,
    accumulate: Accumulate,
    _data: Operand,
    before: Option<Operand>,
}

impl Maker {
    pub(in crate::osc) fn new(host: Arc<dyn Host>) -> Self {
        Maker { host, queues: Mutex::default(), making: Mutex::default() }
    }

    /// Adds an accumulate behind the earlier ones of its origin. Returns its place.
    pub(in crate::osc) fn add(&self, accumulate: Accumulate) -> u64 {
        self.queues.lock().add(accumulate.origin(), accumulate)
    }

    /// Notes that the data of a place has landed, or could not, and makes what can be made.
    pub(in crate::osc) fn landed(self: &Arc<Self>, origin: u32, place: u64, data: Landed) {
        self.queues.lock().landed(origin, place, data);
        self.advance();
    }

    /// Checks whether nothing waits, and no kernel is under way.
    pub(in crate::osc) fn is_idle(&self) -> bool {
        let making = self.making.lock();
        making.runs.is_empty() && making.next.is_none() && self.queues.lock().is_empty()
    }

    /// Waits for the kernels under way, and drops what waits for them. The window's memory is not used any more then.
    pub(in crate::osc) fn finish(&self) {
        let mut making = self.making.lock();
        making.runs.clear();
        making.next = None;
    }

    /// Makes what can be made now. Another thread that does so already looks again afterwards.
    fn advance(self: &Arc<Self>) {
        while let Some(mut making) = self.making.try_lock() {
            self.step(&mut making);
            let waits = !making.runs.is_empty();
            if let Some(run) = making.runs.front()
                && !making.is_polled
            {
                run.accumulate.reply.engine().add_task(Arc::new(Polled(self.clone())));
                making.is_polled = true;
            }
            drop(making);
            if waits || !self.queues.lock().has_ready() {
                return;
            }
        }
    }

    fn step(&self, making: &mut Making) {
        loop {
            while let Some(run) = making.runs.front_mut() {
                let ended = match run.reduction.poll() {
                    Ok(false) => break,
                    ended => ended,
                };
                let Some(Run { accumulate, before, .. }) = making.runs.pop_front() else { break };
                accumulate.reply.answer_accumulate(ended.map(|_| before).map_err(|error| super::device_failed(&error)));
            }
            if making.next.is_none() {
                making.next = self.queues.lock().next();
            }
            let Some((accumulate, landed)) = making.next.take() else { return };
            making.next = self.begin(&mut making.runs, accumulate, landed);
            if making.next.is_some() {
                return;
            }
        }
    }

    /// Begins an accumulate, and ends it unless a kernel makes it. Returns it if it must wait for the kernels under way.
    fn begin(&self, runs: &mut VecDeque<Run>, accumulate: Accumulate, landed: Landed) -> Option<(Accumulate, Landed)> {
        let data = match landed {
            Ok(data) => data,
            Err(refusal) => {
                accumulate.reply.answer_accumulate(Err(refusal));
                return None;
            }
        };
        let joins = |kernel: &Kernel| runs.back().is_none_or(|run| run.kernel.shares_stream(kernel));
        if let Some(kernel) = accumulate.kernel.filter(joins) {
            match launch(&accumulate, kernel, &data) {
                Ok(Some((reduction, before))) => {
                    runs.push_back(Run { reduction, kernel, accumulate, _data: data, before });
                    return None;
                }
                Ok(None) => {}
                Err(refusal) => {
                    accumulate.reply.answer_accumulate(Err(refusal));
                    return None;
                }
            }
        }
        if !runs.is_empty() {
            return Some((accumulate, Ok(data)));
        }
        // SAFETY: the window's memory is valid, as its owner promised. No kernel is under way, and `making` is locked. The data
        // was checked to have this length.
        let made = unsafe { accumulate.make(&*self.host, data) };
        accumulate.reply.answer_accumulate(made);
        None
    }
}

/// Launches a kernel. Returns also the memory of the elements before, if they are fetched, or `None` if that is impossible now.
fn launch(
    accumulate: &Accumulate,
    kernel: Kernel,
    data: &Operand,
) -> Result<Option<(ReductionRun, Option<Operand>)>, Refusal> {
    let engine = accumulate.reply.engine();
    let devices = engine.devices();
    let before = match accumulate.fetch {
        true => match Operand::for_kernels(engine, kernel.at(), accumulate.reached.len as usize) {
            Some(before) => Some(before),
            None => return Ok(None),
        },
        false => None,
    };
    // The default stream may wait for one of the program's streams, which waits for this.
    let order = if devices.are_mappings_held() { Order::None } else { devices.order(kernel.at()) };
    // SAFETY: the window's memory is valid, as its owner promised. The run keeps the operands. All kernels under way share a
    // stream with this one, and the CPU makes accumulates only while there is none.
    let run = unsafe { kernel.begin(devices, order, data, before.as_ref())? };
    Ok(run.map(|run| (run, before)))
}

/// Has the engine poll kernels.
struct Polled(Arc<Maker>);

impl Task for Polled {
    fn poll(&self) -> bool {
        self.0.advance();
        let Some(mut making) = self.0.making.try_lock() else { return false };
        making.is_polled = !making.runs.is_empty();
        !making.is_polled
    }
}
