//! Receives in the order of a stream whose messages came before the stream got there.

use std::time::{Duration, Instant};

use super::StreamWay;
use super::steps::DATA;
use crate::cli::Failure;
use crate::cli::pingpong::side::Side;

/// The tag of the last message that waits for its receive.
const LAST: i32 = 11;

impl StreamWay {
    /// Rank 1 sends. When the messages have come, rank 0 adds their receives, and returns how long they take.
    pub(super) fn late(&mut self, side: &mut Side<'_>, size: u64, steps: u32) -> Result<Duration, Failure> {
        let StreamWay { stream, program, inbox, by_host, figures, .. } = self;
        let (on, check) = (side.on, side.plan.check);
        let tag = |slot| if slot + 1 == steps { LAST } else { DATA };
        on.barrier()?;
        if on.rank() == 1 {
            if check {
                side.fill(size, steps)?;
                program.settle()?;
            }
            let messages = side.out.messages(steps, size, !check);
            return stream.scope(|scope| {
                let mut requests = Vec::with_capacity(messages.len());
                for (slot, message) in (0..).zip(&messages) {
                    requests.push(scope.isend(on, &scope.lend_shared(message)?, 0, tag(slot))?);
                }
                scope.wait(&mut requests)?;
                program.wait()?;
                Ok(Duration::ZERO)
            });
        }
        if check {
            side.poison(size, steps)?;
            inbox.poison(1, size)?;
            program.settle()?;
        }
        let slots = check.then(|| side.slots(size, *by_host));
        let room = &mut inbox.buffers(1, size, false)[0];
        let took = stream.scope(|scope| -> Result<Duration, Failure> {
            let inbox = scope.lend(room)?;
            // Messages of one stream do not overtake each other.
            on.probe(1, LAST)?;
            let start = Instant::now();
            for slot in 0..steps {
                figures.receive.time(slot, || scope.recv(on, &inbox, 1, tag(slot)))?;
                if let Some(slots) = &slots {
                    slots.received(slot, &inbox, program)?;
                }
            }
            program.wait()?;
            let took = start.elapsed();
            if let Some(slots) = &slots {
                slots.received_by_host(&inbox);
            }
            Ok(took)
        })?;
        if check {
            side.verify(1, size, steps)?;
        }
        Ok(took)
    }
}
