//! Work that a driver may do only after it has waited for all streams of a context.

use std::sync::Arc;

use super::wire::Obstacle;
use crate::stream::state::StreamState;
use crate::tag::Engine;

/// How often a stream is asked before it counts as busy: about a millisecond.
const LOOKS: usize = 500;

/// Maps and registers memory by `work` while no described stream has anything to do. Calls on the streams wait meanwhile.
///
/// A driver waits for streams before it maps. One that waits for a message might wait for ever, if the calling thread is
/// the one that sends it.
///
/// # Errors
/// [`Obstacle::Busy`]: a stream has work, or another thread adds some.
pub(super) fn while_quiet<R>(
    engine: &Engine,
    streams: &[Arc<StreamState>],
    work: impl FnOnce() -> R,
) -> Result<R, Obstacle> {
    let mut locked = Vec::with_capacity(streams.len());
    for state in streams {
        let last = state.last.try_lock().ok_or(Obstacle::Busy)?;
        // A stream that has just written its last word is busy for a moment.
        if !(0..LOOKS).any(|_| state.is_quiet() || wait_a_moment()) {
            return Err(Obstacle::Busy);
        }
        locked.push(last);
    }
    let _allowed = engine.devices().allow_mappings();
    Ok(work())
}

/// Lets other threads work. Returns false.
fn wait_a_moment() -> bool {
    std::thread::yield_now();
    false
}
