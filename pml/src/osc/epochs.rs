//! The epochs of a window in this process, as pure state: which targets the program may access, and which calls of the
//! synchronization are in order.

use std::collections::BTreeSet;

/// A call that is not allowed in the present epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutOfEpoch(pub(super) &'static str);

type Checked = Result<(), OutOfEpoch>;

#[derive(Debug, Default)]
pub(super) struct Epochs {
    access: Access,
    /// The processes to which this one exposes its memory.
    exposure: Option<Vec<u32>>,
}

#[derive(Debug, Default)]
enum Access {
    #[default]
    None,
    Fence,
    Started(Vec<u32>),
    Locked(BTreeSet<u32>),
    LockedAll,
}

impl Epochs {
    /// Checks that the program may access a target.
    pub(super) fn access(&self, target: u32) -> Checked {
        let within = match &self.access {
            Access::None => false,
            Access::Fence | Access::LockedAll => true,
            Access::Started(targets) => targets.contains(&target),
            Access::Locked(targets) => targets.contains(&target),
        };
        check(within, "begin an epoch that reaches the target first: a fence, a start or a lock")
    }

    /// Checks that the program may flush a target, or every one.
    pub(super) fn flush(&self, target: Option<u32>) -> Checked {
        let within = match (&self.access, target) {
            (Access::LockedAll, _) => true,
            (Access::Locked(targets), Some(target)) => targets.contains(&target),
            (Access::Locked(_), None) => true,
            _ => false,
        };
        check(within, "lock the target before the flush")
    }

    /// A fence ends an epoch of fences. It begins one if `followed`.
    pub(super) fn fence(&mut self, followed: bool) -> Checked {
        check(
            matches!(self.access, Access::None | Access::Fence),
            "end the epoch of a start or lock before the fence",
        )?;
        check(self.exposure.is_none(), "wait for the exposure before the fence")?;
        self.access = if followed { Access::Fence } else { Access::None };
        Ok(())
    }

    pub(super) fn start(&mut self, targets: Vec<u32>) -> Checked {
        check(matches!(self.access, Access::None | Access::Fence), "end the epoch before another start")?;
        self.access = Access::Started(targets);
        Ok(())
    }

    /// Ends the epoch of a start. Returns its targets.
    pub(super) fn complete(&mut self) -> Result<Vec<u32>, OutOfEpoch> {
        match std::mem::take(&mut self.access) {
            Access::Started(targets) => Ok(targets),
            other => {
                self.access = other;
                Err(OutOfEpoch("start an epoch before it is completed"))
            }
        }
    }

    pub(super) fn post(&mut self, origins: Vec<u32>) -> Checked {
        check(self.exposure.is_none(), "wait for the exposure before another post")?;
        self.exposure = Some(origins);
        Ok(())
    }

    /// Returns the processes whose accesses an exposure waits for.
    pub(super) fn exposed_to(&self) -> Result<&[u32], OutOfEpoch> {
        self.exposure.as_deref().ok_or(OutOfEpoch("post an exposure before it is waited for"))
    }

    pub(super) fn end_exposure(&mut self) {
        self.exposure = None;
    }

    pub(super) fn lock(&mut self, target: u32) -> Checked {
        match &mut self.access {
            Access::Locked(targets) => check(targets.insert(target), "the target is locked already: unlock it first"),
            Access::None | Access::Fence => {
                self.access = Access::Locked(BTreeSet::from([target]));
                Ok(())
            }
            _ => check(false, "end the epoch before the lock"),
        }
    }

    pub(super) fn unlock(&mut self, target: u32) -> Checked {
        let Access::Locked(targets) = &mut self.access else { return check(false, "lock the target first") };
        check(targets.remove(&target), "lock the target first")?;
        if targets.is_empty() {
            self.access = Access::None;
        }
        Ok(())
    }

    pub(super) fn lock_all(&mut self) -> Checked {
        check(matches!(self.access, Access::None | Access::Fence), "end the epoch before the lock")?;
        self.access = Access::LockedAll;
        Ok(())
    }

    pub(super) fn unlock_all(&mut self) -> Checked {
        check(matches!(self.access, Access::LockedAll), "lock all targets first")?;
        self.access = Access::None;
        Ok(())
    }

    /// Checks that no epoch but one of fences is open.
    pub(super) fn free(&self) -> Checked {
        let over = matches!(self.access, Access::None | Access::Fence) && self.exposure.is_none();
        check(over, "end all epochs before the window is freed")
    }
}

fn check(right: bool, advice: &'static str) -> Checked {
    if right { Ok(()) } else { Err(OutOfEpoch(advice)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_epoch_admits_its_targets_only() {
        let mut epochs = Epochs::default();
        assert!(epochs.access(0).is_err());
        epochs.fence(true).unwrap();
        assert!(epochs.access(7).is_ok() && epochs.flush(Some(7)).is_err());
        epochs.fence(false).unwrap();
        assert!(epochs.access(7).is_err());
        epochs.start(vec![1, 3]).unwrap();
        assert!(epochs.access(3).is_ok() && epochs.access(2).is_err());
        assert!(epochs.start(vec![2]).is_err() && epochs.fence(true).is_err() && epochs.lock(2).is_err());
        assert_eq!(epochs.complete(), Ok(vec![1, 3]));
        assert!(epochs.complete().is_err() && epochs.access(3).is_err());
        epochs.lock(1).unwrap();
        epochs.lock(2).unwrap();
        assert!(epochs.lock(1).is_err() && epochs.lock_all().is_err() && epochs.unlock_all().is_err());
        assert!(epochs.access(2).is_ok() && epochs.access(3).is_err() && epochs.flush(None).is_ok());
        assert!(epochs.unlock(3).is_err());
        epochs.unlock(1).unwrap();
        assert!(epochs.access(1).is_err() && epochs.free().is_err());
        epochs.unlock(2).unwrap();
        epochs.lock_all().unwrap();
        assert!(epochs.access(9).is_ok() && epochs.unlock(9).is_err() && epochs.lock(9).is_err());
        epochs.unlock_all().unwrap();
        epochs.free().unwrap();
    }

    #[test]
    fn an_exposure_is_posted_once_and_goes_beside_an_access() {
        let mut epochs = Epochs::default();
        assert!(epochs.exposed_to().is_err());
        epochs.post(vec![2]).unwrap();
        assert!(epochs.post(vec![2]).is_err() && epochs.fence(true).is_err() && epochs.free().is_err());
        epochs.start(vec![2]).unwrap();
        assert_eq!(epochs.exposed_to(), Ok(&[2][..]));
        epochs.end_exposure();
        assert!(epochs.exposed_to().is_err() && epochs.access(2).is_ok());
    }
}
