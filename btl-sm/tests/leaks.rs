//! Tests for leaks in a process that continues. A separate binary, because it counts the process's resources.

mod common;

use cableway_btl::FragmentKind;
use common::{Pair, send_fragment, until};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("cableway-sm")).count()
}

/// The bytes of shared memory that this process has touched.
fn shared_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssShmem:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn nothing_leaks_and_a_peer_costs_little() {
    let before = (descriptors(), mappings());
    assert_eq!(before.1, 0);
    for _ in 0..3 {
        let mut pair = Pair::new(&[]);
        (0..100).for_each(|len| pair.deliver(&vec![1; len * 40]));
        until(&[&pair.zero, &pair.one], "a device fragment is sent", || {
            send_fragment(&mut *pair.to_one, &[1; 10_000], FragmentKind::Device)
        });
        assert!(mappings() > 0);
        drop(pair);
        assert_eq!((descriptors(), mappings()), before);
    }

    // Each side of a pair maps both segments, so every touched page counts twice here.
    let count = 10;
    let start = shared_bytes();
    let mut pairs: Vec<Pair> = (0..count).map(|_| Pair::new(&[])).collect();
    for pair in &mut pairs {
        (0..1000).for_each(|index| pair.deliver(&vec![1; [8, 200, 1000, 4000][index % 4]]));
    }
    let per_peer = (shared_bytes() - start) / count / 2;
    assert!(per_peer < (64 << 10) + (16 << 10), "{per_peer} bytes; the fast box may use 16 KiB of them");
}
