//! Binding of ranks to processors.

use std::collections::BTreeMap;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The processors that ranks may run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bind {
    /// Every processor that the launcher may use.
    #[default]
    None,
    /// One core for each rank, with all its hardware threads. If there are too few cores, one hardware thread for each
    /// rank. If there are too few of those, ranks are not bound and a warning is logged.
    Core,
}

impl Bind {
    /// Returns the processors of each of `ranks` ranks; `None` for a rank that is not bound.
    pub(super) fn places(self, ranks: u32) -> io::Result<Vec<Option<CpuSet>>> {
        let unbound = vec![None; ranks as usize];
        if self == Bind::None {
            return Ok(unbound);
        }
        let cores = allowed_cores()?;
        let threads = threads_in_turn(&cores);
        let sets = if unbound.len() <= cores.len() { &cores } else { &threads };
        if unbound.len() > sets.len() {
            log::warn!("{ranks} ranks are not bound: only {} processors are available", sets.len());
            return Ok(unbound);
        }
        Ok(sets.iter().take(unbound.len()).map(|cpus| Some(cpu_set(cpus))).collect())
    }
}

/// Returns the hardware threads of each core that this process may use.
fn allowed_cores() -> io::Result<Vec<Vec<usize>>> {
    let allowed = sched_getaffinity(None)?;
    let mut cores = BTreeMap::<String, Vec<usize>>::new();
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)) {
        let siblings = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let core = std::fs::read_to_string(siblings).unwrap_or_else(|_| cpu.to_string());
        cores.entry(core).or_default().push(cpu);
    }
    let mut cores: Vec<_> = cores.into_values().collect();
    cores.sort();
    Ok(cores)
}

/// Returns single hardware threads: the first of every core, then the second of every core.
fn threads_in_turn(cores: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let most = cores.iter().map(Vec::len).max().unwrap_or(0);
    (0..most).flat_map(|turn| cores.iter().filter_map(move |core| core.get(turn).map(|&cpu| vec![cpu]))).collect()
}

fn cpu_set(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_go_round_the_cores() {
        assert_eq!(threads_in_turn(&[vec![0, 4], vec![1, 5], vec![2]]), [vec![0], vec![1], vec![2], vec![4], vec![5]]);
    }

    #[test]
    fn each_rank_gets_its_own_core_or_none_is_bound() {
        let cores = allowed_cores().unwrap();
        let places = Bind::Core.places(cores.len() as u32).unwrap();
        for (place, core) in places.iter().zip(&cores) {
            let place = place.expect("as many ranks as cores are bound");
            assert_eq!((0..CpuSet::MAX_CPU).filter(|&cpu| place.is_set(cpu)).collect::<Vec<_>>(), *core);
        }
        let too_many = Bind::Core.places(CpuSet::MAX_CPU as u32 + 1).unwrap();
        assert!(too_many.iter().all(Option::is_none));
        assert!(Bind::None.places(1).unwrap()[0].is_none());
    }
}
