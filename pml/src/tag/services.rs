//! Services: layers above that handle messages as they arrive, for as long as the engine lives.

use std::sync::{Arc, OnceLock};

/// A layer above that the engine's `progress`, and every call that waits, polls.
///
/// Unlike a task it never ends, and a waiting call may sleep while the service waits for messages.
pub(crate) trait Service: Send + Sync {
    /// Handles what has arrived without blocking. Returns how much it handled. Called with no lock held, by several
    /// threads at a time, and again by calls that it makes.
    fn poll(&self) -> usize;

    /// Returns whether nothing waits to be handled, so that a waiting call may sleep.
    fn is_idle(&self) -> bool;
}

/// A list of services that only grows, so that polling takes no lock. Without a service it costs one load.
#[derive(Default)]
pub(super) struct Services {
    first: OnceLock<Box<Node>>,
}

struct Node {
    service: Arc<dyn Service>,
    rest: Services,
}

impl Services {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }

    pub(super) fn are_idle(&self) -> bool {
        self.iter().all(|service| service.is_idle())
    }

    #[cold]
    pub(super) fn poll(&self) -> usize {
        self.iter().map(|service| service.poll()).sum()
    }

    fn iter(&self) -> impl Iterator<Item = &dyn Service> {
        let mut at = self;
        std::iter::from_fn(move || {
            let node = at.first.get()?;
            at = &node.rest;
            Some(&*node.service)
        })
    }

    pub(super) fn add(&self, service: Arc<dyn Service>) {
        let mut node = Box::new(Node { service, rest: Services::default() });
        let mut at = self;
        loop {
            match at.first.get() {
                Some(taken) => at = &taken.rest,
                None => match at.first.set(node) {
                    Ok(()) => return,
                    // Another thread has added one meanwhile.
                    Err(back) => node = back,
                },
            }
        }
    }
}
