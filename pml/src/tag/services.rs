//! Services: layers above that handle messages as they arrive, for as long as the engine lives.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

use super::engine::Engine;

/// A layer above that the engine's `progress`, and every call that waits, polls while there may be something to handle.
///
/// Unlike a task it does not end by itself, and a waiting call may sleep while the service waits for messages.
pub trait Service: Send + Sync {
    /// Handles what has arrived without blocking. Returns how much it handled. Called with no lock held, by several
    /// threads at a time, and again by calls that it makes.
    fn poll(&self, engine: &Engine) -> usize;

    /// Returns whether nothing waits to be handled, so that a waiting call may sleep.
    fn is_idle(&self) -> bool;
}

/// Whether services may have something to handle. Whoever gives them something raises it afterwards.
///
/// Each poll of the services costs as much as a third of a turn of progress, and most turns wait for plain messages.
#[derive(Debug, Default)]
pub(crate) struct Attention(AtomicBool);

impl Attention {
    /// Has the next turn poll the services.
    #[inline]
    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    #[inline]
    fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Lowers it, so that what is given from now on raises it again.
    fn lower(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}

/// The services that live as long as the engine. They are polled while attention is raised.
#[derive(Default)]
pub(super) struct Services {
    list: List,
    attention: Arc<Attention>,
}

/// A list that only grows, so that reading it takes no lock.
#[derive(Default)]
struct List {
    first: OnceLock<Box<Node>>,
}

struct Node {
    service: Arc<dyn Service>,
    rest: List,
}

impl Services {
    /// Returns whether one may have something to handle.
    #[inline]
    pub(super) fn want_a_poll(&self) -> bool {
        self.attention.is_raised()
    }

    pub(super) fn attention(&self) -> &Arc<Attention> {
        &self.attention
    }

    pub(super) fn are_idle(&self) -> bool {
        self.list.iter().all(|service| service.is_idle())
    }

    #[cold]
    pub(super) fn poll(&self, engine: &Engine) -> usize {
        self.attention.lower();
        let handled = self.list.iter().map(|service| service.poll(engine)).sum();
        // A poll handles a limited number, and none while another thread does.
        if !self.are_idle() {
            self.attention.raise();
        }
        handled
    }

    pub(super) fn add(&self, service: Arc<dyn Service>) {
        self.list.add(service);
        self.attention.raise();
    }
}

impl List {
    fn iter(&self) -> impl Iterator<Item = &dyn Service> {
        let mut at = self;
        std::iter::from_fn(move || {
            let node = at.first.get()?;
            at = &node.rest;
            Some(&*node.service)
        })
    }

    fn add(&self, service: Arc<dyn Service>) {
        let mut node = Box::new(Node { service, rest: List::default() });
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

/// Services that end before the engine does. Polling takes no lock while there is none.
#[derive(Default)]
pub(super) struct Temporary {
    /// The length of the list.
    count: AtomicUsize,
    /// Polled without the lock, because a service may make calls that poll again.
    list: RwLock<Arc<[Arc<dyn Service>]>>,
}

impl Temporary {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(super) fn are_idle(&self) -> bool {
        self.is_empty() || self.now().iter().all(|service| service.is_idle())
    }

    /// Has `poll` poll each service.
    pub(super) fn poll(&self, poll: impl Fn(&dyn Service) -> usize) -> usize {
        if self.is_empty() { 0 } else { self.now().iter().map(|service| poll(&**service)).sum() }
    }

    fn now(&self) -> Arc<[Arc<dyn Service>]> {
        self.list.read().clone()
    }

    pub(super) fn add(&self, service: Arc<dyn Service>) {
        let mut list = self.list.write();
        *list = list.iter().cloned().chain([service]).collect();
        self.count.store(list.len(), Ordering::Release);
    }

    /// Removes a service. Other threads may still be polling it.
    pub(super) fn remove(&self, service: &Arc<dyn Service>) {
        let mut list = self.list.write();
        *list =
            list.iter().filter(|other| !std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(service))).cloned().collect();
        self.count.store(list.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counted(AtomicUsize);

    impl Service for Counted {
        fn poll(&self, _engine: &Engine) -> usize {
            0
        }

        fn is_idle(&self) -> bool {
            self.0.load(Ordering::Relaxed) == 0
        }
    }

    #[test]
    fn a_removed_service_is_polled_no_more_and_dropped() {
        let temporary = Temporary::default();
        let [one, other] = [(); 2].map(|()| Arc::new(Counted(AtomicUsize::new(0))));
        // Counts the polls of each.
        let poll = |service: &dyn Service| {
            let is = |counted: &&Arc<Counted>| std::ptr::addr_eq(Arc::as_ptr(counted), std::ptr::from_ref(service));
            let counted = [&one, &other].into_iter().find(is);
            counted.map_or(0, |counted| {
                counted.0.fetch_add(1, Ordering::Relaxed);
                1
            })
        };
        assert!(temporary.is_empty() && temporary.poll(poll) == 0);
        let [as_one, as_other]: [Arc<dyn Service>; 2] = [one.clone(), other.clone()];
        temporary.add(as_one.clone());
        temporary.add(as_other.clone());
        assert!(temporary.are_idle());
        assert_eq!(temporary.poll(poll), 2);
        assert!(!temporary.are_idle());
        temporary.remove(&as_one);
        drop(as_one);
        assert_eq!((temporary.poll(poll), Arc::strong_count(&one)), (1, 1));
        assert_eq!((one.0.load(Ordering::Relaxed), other.0.load(Ordering::Relaxed)), (1, 2));
        temporary.remove(&as_other);
        assert!(temporary.is_empty() && temporary.poll(poll) == 0);
    }
}
