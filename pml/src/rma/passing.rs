//! Accesses of streams to exposed memory: pure state, which knows nothing of streams.
//!
//! An access is counted when it is added to its stream, by the number that the stream writes behind it. It is over once the
//! stream has written that number or a later one. Nobody is told: whoever wants to know looks.

use std::any::Any;
use std::sync::Arc;

/// Exposed memory as the devices of a context of this process reach it.
pub(crate) struct DeviceMemory {
    /// The id of the context.
    pub(crate) context: u64,
    /// The address of the first registered byte.
    pub(crate) address: u64,
    /// Keeps the memory mapped.
    pub(crate) _keeper: Box<dyn Any + Send + Sync>,
}

/// A stream that accesses memory of peers.
pub(crate) trait Passing: Send + Sync {
    /// Returns whether the stream has passed the access of this number, and all earlier ones.
    fn has_passed(&self, number: u64) -> bool;

    /// Has `look` called from time to time, until it returns true.
    fn look_until(&self, look: Box<dyn FnMut() -> bool + Send>);
}

/// The last access of each stream to one exposure.
pub(super) struct Accesses<S: ?Sized> {
    last: Vec<(Arc<S>, u64)>,
    closed: bool,
}

impl<S: ?Sized> Default for Accesses<S> {
    fn default() -> Self {
        Accesses { last: Vec::new(), closed: false }
    }
}

impl<S: Passing + ?Sized> Accesses<S> {
    /// Counts an access. Numbers of one stream grow.
    pub(super) fn add(&mut self, stream: &Arc<S>, number: u64) {
        debug_assert!(!self.closed, "an access after the end of the exposure");
        match self.last.iter_mut().find(|(other, _)| Arc::ptr_eq(other, stream)) {
            Some((_, last)) => *last = number,
            None => {
                // So that streams of the past do not gather.
                self.last.retain(|(stream, number)| !stream.has_passed(*number));
                self.last.push((stream.clone(), number));
            }
        }
    }

    /// Admits no more accesses.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Returns a stream that has not passed its last access, or `None` if all have.
    pub(super) fn under_way(&mut self) -> Option<&Arc<S>> {
        self.last.retain(|(stream, number)| !stream.has_passed(*number));
        self.last.first().map(|(stream, _)| stream)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Fake(AtomicU64);

    impl Passing for Fake {
        fn has_passed(&self, number: u64) -> bool {
            self.0.load(Ordering::Relaxed) >= number
        }

        fn look_until(&self, _look: Box<dyn FnMut() -> bool + Send>) {}
    }

    proptest! {
        /// The exposure is in use exactly as long as some stream has not passed its last access.
        #[test]
        fn an_exposure_is_in_use_until_the_last_access_is_passed(
            steps in prop::collection::vec((any::<bool>(), 0..3_usize), 0..60)
        ) {
            let streams: [Arc<Fake>; 3] = Default::default();
            let (mut accesses, mut added) = (Accesses::default(), [0; 3]);
            for (adds, which) in steps {
                let passed = streams[which].0.load(Ordering::Relaxed);
                if adds {
                    added[which] += 1;
                    accesses.add(&streams[which], added[which]);
                } else if passed < added[which] {
                    streams[which].0.store(passed + 1, Ordering::Relaxed);
                }
                let expected = (0..3).any(|stream| streams[stream].0.load(Ordering::Relaxed) < added[stream]);
                prop_assert_eq!(accesses.under_way().is_some(), expected);
                prop_assert!(accesses.last.len() <= 3);
            }
            accesses.close();
            for (stream, added) in streams.iter().zip(added) {
                stream.0.store(added, Ordering::Relaxed);
            }
            prop_assert!(accesses.under_way().is_none());
        }
    }
}
