//! Makes the accumulates of a window, one after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_common_cuda::KernelRun;
use parking_lot::Mutex;

use super::operand::Operand;
use super::queues::Queues;
use super::{Accumulate, Kernel, device_failed};
use crate::osc::host::Host;
use crate::osc::reply::Reply;
use crate::refusal::Refusal;
use crate::tag::Task;

/// The data of an accumulate, or why it could not land.
type Landed = Result<Operand, Refusal>;

pub(in crate::osc) struct Maker {
    host: Arc<dyn Host>,
    queues: Mutex<Queues<Accumulate, Landed>>,
    /// Locked by the thread that makes accumulates.
    making: Mutex<Making>,
    /// The answers of accumulates that are made, but not posted yet.
    unanswered: AtomicUsize,
}

#[derive(Default)]
struct Making {
    /// Kernels under way, in the order of their stream.
    runs: VecDeque<Run>,
    /// What waits until none of them is.
    next: Option<(Accumulate, Landed)>,
    /// Whether the engine polls the kernels.
    is_polled: bool,
    /// Whether the window's memory may be gone.
    closed: bool,
}

/// An accumulate that a kernel makes.
struct Run {
    /// The first field, so that its drop waits for the kernel before the operands are free.
    reduction: KernelRun,
    kernel: Kernel,
    accumulate: Accumulate,
    _data: Operand,
    before: Option<Operand>,
}

/// What an origin is told once `making` is unlocked: a post may call hooks, which run with no lock held.
struct Answer {
    reply: Reply,
    made: Result<Option<Operand>, Refusal>,
}

impl Maker {
    pub(in crate::osc) fn new(host: Arc<dyn Host>) -> Self {
        let (queues, making) = (Mutex::default(), Mutex::default());
        Maker { host, queues, making, unanswered: AtomicUsize::new(0) }
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

    /// Checks whether nothing waits, no kernel is under way, and every answer is posted.
    pub(in crate::osc) fn is_idle(self: &Arc<Self>) -> bool {
        let Some(making) = self.making.try_lock() else { return false };
        let is_idle = making.runs.is_empty() && making.next.is_none() && self.queues.lock().is_empty();
        drop(making);
        self.look_again();
        is_idle && self.unanswered.load(Ordering::Acquire) == 0
    }

    /// Waits for the kernels under way, and drops what waits for them. The window's memory is not used any more then.
    pub(in crate::osc) fn finish(&self) {
        let mut making = self.making.lock();
        making.closed = true;
        making.runs.clear();
        making.next = None;
        *self.queues.lock() = Queues::default();
    }

    /// Makes what can be made now. If another thread does so, that one looks again afterwards.
    fn advance(self: &Arc<Self>) {
        while let Some(mut making) = self.making.try_lock() {
            let mut answers = Vec::new();
            self.step(&mut making, &mut answers);
            self.unanswered.fetch_add(answers.len(), Ordering::Relaxed);
            let waits = !making.runs.is_empty();
            if let Some(run) = making.runs.front()
                && !making.is_polled
            {
                run.accumulate.reply.engine().add_task(Arc::new(Polled(self.clone())));
                making.is_polled = true;
            }
            drop(making);
            for Answer { reply, made } in answers {
                reply.answer_accumulate(made);
                self.unanswered.fetch_sub(1, Ordering::Release);
            }
            // While kernels are under way, the engine looks again.
            if waits || !self.queues.lock().has_ready() {
                return;
            }
        }
    }

    /// Does what another thread has left because this one had locked `making`.
    fn look_again(self: &Arc<Self>) {
        if self.queues.lock().has_ready() {
            self.advance();
        }
    }

    fn step(&self, making: &mut Making, answers: &mut Vec<Answer>) {
        loop {
            while let Some(run) = making.runs.front_mut() {
                let ended = match run.reduction.poll() {
                    Ok(false) => break,
                    ended => ended,
                };
                let Some(Run { accumulate, before, .. }) = making.runs.pop_front() else { break };
                let made = ended.map(|_| before).map_err(|error| device_failed(&error));
                answers.push(Answer { reply: accumulate.reply, made });
            }
            if making.next.is_none() {
                making.next = self.queues.lock().next();
            }
            let Some((accumulate, landed)) = making.next.take().filter(|_| !making.closed) else { return };
            making.next = self.begin(&mut making.runs, accumulate, landed, answers);
            if making.next.is_some() {
                return;
            }
        }
    }

    /// Begins an accumulate, and ends it unless a kernel makes it. Returns it if it must wait for the kernels under way.
    fn begin(
        &self,
        runs: &mut VecDeque<Run>,
        accumulate: Accumulate,
        landed: Landed,
        answers: &mut Vec<Answer>,
    ) -> Option<(Accumulate, Landed)> {
        let mut answer = |reply, made| answers.push(Answer { reply, made });
        let mut data = match landed {
            Ok(data) => data,
            Err(refusal) => {
                answer(accumulate.reply, Err(refusal));
                return None;
            }
        };
        let joins = |kernel: &Kernel| runs.back().is_none_or(|run| run.kernel.shares_stream(kernel));
        if let Some(kernel) = accumulate.kernel.filter(joins) {
            data = data.reachable(accumulate.reply.engine(), kernel.at());
            match launch(&accumulate, kernel, &data) {
                Ok(Some((reduction, before))) => {
                    runs.push_back(Run { reduction, kernel, accumulate, _data: data, before });
                    return None;
                }
                Ok(None) => {}
                Err(refusal) => {
                    answer(accumulate.reply, Err(refusal));
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
        answer(accumulate.reply, made);
        None
    }
}

/// Launches a kernel. Returns also the memory of the elements before, if they are fetched, or `None` if that is impossible now.
fn launch(
    accumulate: &Accumulate,
    kernel: Kernel,
    data: &Operand,
) -> Result<Option<(KernelRun, Option<Operand>)>, Refusal> {
    let engine = accumulate.reply.engine();
    let devices = engine.devices();
    let before = match accumulate.fetch {
        true => match Operand::for_kernels(engine, kernel.at(), accumulate.reached.len as usize) {
            Some(before) => Some(before),
            None => return Ok(None),
        },
        false => None,
    };
    let order = accumulate.reply.buffer(&accumulate.reached).order().of(kernel.at(), devices);
    // SAFETY: the window's memory is valid, as its owner promised. The run keeps the operands. All kernels under way share a
    // stream with this one, and the CPU makes accumulates only while there is none.
    let run = unsafe { kernel.begin(devices, order, data, before.as_ref())? };
    Ok(run.map(|run| (run, before)))
}

/// Has the engine poll kernels.
struct Polled(Arc<Maker>);

impl Task for Polled {
    fn poll(&self) -> bool {
        let Polled(maker) = self;
        maker.advance();
        let Some(mut making) = maker.making.try_lock() else { return false };
        making.is_polled = !making.runs.is_empty();
        let ended = !making.is_polled;
        drop(making);
        if ended {
            maker.look_again();
        }
        ended
    }
}
