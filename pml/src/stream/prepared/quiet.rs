//! Work that a driver may do only after it has waited for all streams of a context.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cableway_common_cuda::Holder;
use parking_lot::MutexGuard;

use super::wire::Obstacle;
use crate::stream::state::{Pending, StreamState};
use crate::tag::Engine;

/// How long an agreement waits for the program's own work. Such work may itself wait for the calling thread, so there is
/// an end to it.
pub(in crate::stream) const PATIENCE: Duration = Duration::from_secs(2);

/// How often a waiting thread looks.
const PAUSE: Duration = Duration::from_micros(10);

/// Maps and registers memory by `work` while no described stream has anything to do. Calls on the streams wait meanwhile.
///
/// Other engines of this process hold mappings off for streams of their own, which this one does not see. Then `work` finds
/// them held off.
///
/// A driver waits for streams before it maps. One that waits for a message might wait for ever, if the calling thread is
/// the one that sends it. Streams with other work are waited for here, for up to `patience`.
///
/// # Errors
/// [`Obstacle::Busy`]: a stream may wait for a message, or has work, or another thread adds some.
pub(in crate::stream) fn while_quiet<R>(
    engine: &Engine,
    streams: &[Arc<StreamState>],
    patience: Duration,
    work: impl FnOnce() -> R,
) -> Result<R, Obstacle> {
    let mut until = None;
    let _locked = loop {
        match lock_if_quiet(streams) {
            Ok(locked) => break locked,
            Err(Pending::Messages) => return Err(Obstacle::Busy),
            Err(_) if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + patience) => {
                return Err(Obstacle::Busy);
            }
            // The streams' locks are free meanwhile.
            Err(_) => std::thread::sleep(PAUSE),
        }
    };
    let _allowed = engine.devices().allow_mappings(Holder::of(engine));
    Ok(work())
}

/// Locks every stream if none has anything to do. Returns what one has to do otherwise.
///
/// First reads the words of all streams, because a question to the driver takes longer. It asks only if no stream waits for a
/// message as far as the words show.
fn lock_if_quiet(streams: &[Arc<StreamState>]) -> Result<Vec<MutexGuard<'_, u64>>, Pending> {
    let mut locked = Vec::with_capacity(streams.len());
    for state in streams {
        locked.push(state.last.try_lock().ok_or(Pending::Work)?);
        if state.has_messages() {
            return Err(Pending::Messages);
        }
    }
    match streams.iter().map(|state| state.pending()).find(|pending| *pending != Pending::Nothing) {
        None => Ok(locked),
        Some(pending) => Err(pending),
    }
}
