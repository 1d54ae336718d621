//! Work of the host that progresses with messages: operations that consist of several messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Work that [`Engine::progress`](super::Engine::progress), and every call that waits, polls.
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

    pub(super) fn add(&self, task: Arc<dyn Task>) {
        self.count.fetch_add(1, Ordering::Release);
        self.list.lock().push(task);
    }

    /// Polls the tasks that no other thread polls. Returns how many ended.
    #[cold]
    pub(super) fn poll(&self) -> usize {
        let Some(list) = self.list.try_lock().map(|mut list| std::mem::take(&mut *list)) else { return 0 };
        let mut taken = Taken { from: self, list };
        let before = taken.list.len();
        taken.list.retain(|task| !task.poll());
        let ended = before - taken.list.len();
        self.count.fetch_sub(ended, Ordering::Release);
        ended
    }
}

/// Tasks that a thread polls. They are not in the list meanwhile, so that they can add tasks and are polled by one thread
/// at a time. They return to it even if one panics.
struct Taken<'t> {
    from: &'t Tasks,
    list: Vec<Arc<dyn Task>>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut list = self.from.list.lock();
        // Tasks that began first come first.
        self.list.append(&mut list);
        *list = std::mem::take(&mut self.list);
    }
}
