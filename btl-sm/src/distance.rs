//! How far the processors of two processes of this node are from each other.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use cableway_btl::Distance;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};

/// Numbers of processors.
type Processors = BTreeSet<usize>;

/// Groups of processors that share something.
#[derive(Debug, Default, PartialEq)]
struct Groups {
    l2: BTreeSet<Processors>,
    l3: BTreeSet<Processors>,
    packages: BTreeSet<Processors>,
}

/// Returns the distance to another process, by the processors that both may use now. Returns `None` if that cannot be
/// known, or if both share one processor, where they take turns.
pub(crate) fn to(pid: u32) -> Option<Distance> {
    static GROUPS: OnceLock<Groups> = OnceLock::new();
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    let [ours, theirs] = [None, Some(pid)].map(|pid| sched_getaffinity(pid).ok().map(|set| processors(&set)));
    between(&ours?, &theirs?, GROUPS.get_or_init(|| Groups::read(Path::new("/sys/devices/system/cpu"))))
}

fn between(ours: &Processors, theirs: &Processors, groups: &Groups) -> Option<Distance> {
    let both: Processors = ours.union(theirs).copied().collect();
    if both.len() < 2 {
        return None;
    }
    let one = |of: &BTreeSet<Processors>, set: &Processors| of.iter().any(|group| set.is_subset(group));
    let distance = if one(&groups.l2, &both) {
        Distance::SharedL2
    } else if one(&groups.l3, &both) {
        Distance::SharedL3
    } else if !one(&groups.l3, ours) || !one(&groups.l3, theirs) {
        Distance::Unbound
    } else if one(&groups.packages, &both) {
        Distance::Package
    } else {
        Distance::Node
    };
    Some(distance)
}

fn processors(set: &CpuSet) -> Processors {
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

impl Groups {
    /// Reads the kernel's description. What it does not describe is not shared.
    fn read(folder: &Path) -> Groups {
        let mut groups = Groups::default();
        let text = |path: &Path| std::fs::read_to_string(path).ok();
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let cpu = entry.path();
            let list = |name: &str| text(&cpu.join(name)).and_then(|list| parse(&list));
            groups.packages.extend(list("topology/package_cpus_list").or_else(|| list("topology/core_siblings_list")));
            // The first levels are a core's own. The index of a cache is not its level.
            for index in 0..8 {
                let level = text(&cpu.join(format!("cache/index{index}/level")));
                let shared = || list(&format!("cache/index{index}/shared_cpu_list"));
                match level.as_deref().map(str::trim) {
                    Some("2") => groups.l2.extend(shared()),
                    Some("3") => groups.l3.extend(shared()),
                    _ => {}
                }
            }
        }
        groups
    }
}

/// Parses a list such as `0-3,8`.
fn parse(list: &str) -> Option<Processors> {
    let mut processors = Processors::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= CpuSet::MAX_CPU || first > last {
            return None;
        }
        processors.extend(first..=last);
    }
    Some(processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two packages of two third-level caches each, which two cores of two threads share.
    fn groups() -> Groups {
        let sets = |each: usize| (0..16).step_by(each).map(|first| (first..first + each).collect()).collect();
        Groups { l2: sets(2), l3: sets(4), packages: sets(8) }
    }

    fn set(processors: &[usize]) -> Processors {
        processors.iter().copied().collect()
    }

    #[test]
    fn the_nearest_shared_thing_is_the_distance() {
        let distance = |ours: &[usize], theirs: &[usize]| between(&set(ours), &set(theirs), &groups());
        assert_eq!(distance(&[0], &[1]), Some(Distance::SharedL2));
        assert_eq!(distance(&[0, 1], &[2, 3]), Some(Distance::SharedL3));
        assert_eq!(distance(&[0], &[4, 5, 6, 7]), Some(Distance::Package));
        assert_eq!(distance(&[7], &[8]), Some(Distance::Node));
    }

    #[test]
    fn processes_that_may_run_anywhere_have_no_known_distance() {
        let all: Vec<usize> = (0..16).collect();
        assert_eq!(between(&set(&all), &set(&all), &groups()), Some(Distance::Unbound));
        assert_eq!(between(&set(&[0]), &set(&all), &groups()), Some(Distance::Unbound));
        assert_eq!(between(&set(&[3]), &set(&[3]), &groups()), None, "one processor for both");
        assert_eq!(
            between(&set(&[0]), &set(&[1]), &Groups::default()),
            Some(Distance::Unbound),
            "nothing is described"
        );
    }

    #[test]
    fn lists_of_processors_are_parsed() {
        assert_eq!(parse("0-3,8\n"), Some(set(&[0, 1, 2, 3, 8])));
        assert_eq!(parse("5"), Some(set(&[5])));
        for wrong in ["", "x", "3-1", "0-99999999999", "1-", "4096"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_kernels_description_is_read() {
        let folder = std::env::temp_dir().join(format!("cableway-distance-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for cpu in 0..4 {
            write(&format!("cpu{cpu}/topology/package_cpus_list"), "0-3\n");
            write(&format!("cpu{cpu}/cache/index2/level"), "2\n");
            write(&format!("cpu{cpu}/cache/index2/shared_cpu_list"), &format!("{cpu}\n"));
            write(&format!("cpu{cpu}/cache/index3/level"), "3\n");
            write(&format!("cpu{cpu}/cache/index3/shared_cpu_list"), if cpu < 2 { "0-1\n" } else { "2-3\n" });
        }
        write("cpufreq/policy0/level", "2");
        let groups = Groups::read(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let halves: BTreeSet<_> = [set(&[0, 1]), set(&[2, 3])].into();
        assert_eq!((groups.l2.len(), groups.l3, groups.packages), (4, halves, [set(&[0, 1, 2, 3])].into()));
    }
}
