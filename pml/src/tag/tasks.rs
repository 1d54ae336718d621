//! Work of the host that progresses with messages: operations that consist of several messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::engine::Engine;

/// Work that [`Engine::progress`], and every call that waits, polls.
pub trait Task: Send + Sync {
    /// Makes progress without blocking. Returns whether the work has ended. It may start messages, and waits for none.
    fn poll(&self) -> bool;
}

/// The tasks of an engine.
#[derive(Default)]
pub(super) struct Tasks {
    list: Mutex<Vec<Arc<dyn Task>>>,
    /// Their number, so that progress without a task costs one load.
    count: AtomicUsize,
}

impl Tasks {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Polls all tasks, unless a thread does so already. Returns how many ended.
    #[cold]
    pub(super) fn poll(&self) -> usize {
        let Some(mut list) = self.list.try_lock() else { return 0 };
        let before = list.len();
        list.retain(|task| !task.poll());
        self.count.store(list.len(), Ordering::Release);
        before - list.len()
    }
}

impl Engine {
    /// Adds work that is polled until it has ended. While there is some, waiting calls do not sleep.
    ///
    /// A task is polled by one thread at a time. It must not add a task.
    pub fn add_task(&self, task: Arc<dyn Task>) {
        let mut list = self.tasks.list.lock();
        list.push(task);
        self.tasks.count.store(list.len(), Ordering::Release);
    }
}
