//! The lock of a window at its target, as pure state: shared by several processes, or exclusive to one.
//!
//! Processes get it in the order in which they asked. So one that wants it exclusively is not passed for ever.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(super) struct Lock {
    holders: Vec<u32>,
    exclusive: bool,
    waiting: VecDeque<Wanted>,
}

#[derive(Debug, Clone, Copy)]
struct Wanted {
    rank: u32,
    exclusive: bool,
}

impl Lock {
    /// Notes that a process wants the lock. Returns the processes that have got it now, or `None` if the process holds
    /// or wants it already, which no correct peer does.
    pub(super) fn want(&mut self, rank: u32, exclusive: bool) -> Option<Vec<u32>> {
        if self.holders.contains(&rank) || self.waiting.iter().any(|wanted| wanted.rank == rank) {
            return None;
        }
        self.waiting.push_back(Wanted { rank, exclusive });
        Some(self.grant())
    }

    /// Takes the lock back. Returns the processes that have got it now, or `None` if the process does not hold it.
    pub(super) fn release(&mut self, rank: u32) -> Option<Vec<u32>> {
        let at = self.holders.iter().position(|&holder| holder == rank)?;
        self.holders.swap_remove(at);
        Some(self.grant())
    }

    fn grant(&mut self) -> Vec<u32> {
        let mut granted = Vec::new();
        while let Some(&Wanted { rank, exclusive }) = self.waiting.front() {
            if !self.holders.is_empty() && (exclusive || self.exclusive) {
                break;
            }
            self.waiting.pop_front();
            self.exclusive = exclusive;
            self.holders.push(rank);
            granted.push(rank);
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_holders_are_together_and_an_exclusive_one_is_alone() {
        let mut lock = Lock::default();
        assert_eq!(lock.want(0, false), Some(vec![0]));
        assert_eq!(lock.want(1, false), Some(vec![1]));
        assert_eq!(lock.want(2, true), Some(vec![]));
        // Not before the exclusive one, which asked earlier.
        assert_eq!(lock.want(3, false), Some(vec![]));
        assert_eq!(lock.want(4, false), Some(vec![]));
        assert_eq!(lock.release(0), Some(vec![]));
        assert_eq!(lock.release(1), Some(vec![2]));
        assert_eq!(lock.want(0, false), Some(vec![]));
        assert_eq!(lock.release(2), Some(vec![3, 4, 0]));
    }

    #[test]
    fn what_no_correct_peer_does_is_noticed() {
        let mut lock = Lock::default();
        assert_eq!(lock.release(0), None);
        assert_eq!(lock.want(0, true), Some(vec![0]));
        assert_eq!(lock.want(0, true), None);
        assert_eq!(lock.want(1, true), Some(vec![]));
        assert_eq!(lock.want(1, false), None);
        assert_eq!(lock.release(1), None);
        assert_eq!(lock.release(0), Some(vec![1]));
    }
}
