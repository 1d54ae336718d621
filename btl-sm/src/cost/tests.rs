use super::*;
use cableway_common_cuda::{Known, PeerCosts};

fn estimates(assignments: &[(&str, &str)]) -> Estimates {
    let mut parameters = Parameters::default();
    for (name, value) in assignments {
        parameters.set_internal(name, value).unwrap();
    }
    Estimates::new(&parameters)
}

fn copy(microseconds: f64, gigabytes: f64) -> CopyCost {
    CopyCost { latency: Duration::from_secs_f64(microseconds * 1e-6), bytes_per_second: gigabytes * 1e9 }
}

/// A device with these measurements.
fn measured(pull: CopyCost, push: CopyCost) -> Measured {
    let mut costs = Measured::default();
    (costs.to_host, costs.from_host) = (Known::Is(copy(7.4, 55.3)), Known::Is(copy(5.7, 55.3)));
    costs.within = Known::Is(copy(4.1, 2000.0));
    costs.peers.push(PeerCosts::new([1; 16], Known::Is(pull), Known::Is(push)));
    costs
}

#[test]
fn one_copy_is_made_where_it_pays() {
    let sizes =
        |assignments: &[(&str, &str)]| estimates(assignments).costs(None, PeerDevice::Unknown, false).direct_sizes();
    assert_eq!(sizes(&[]), (1, usize::MAX));
    let slow = [("device_direct_latency", "29us"), ("device_push_latency", "29us")];
    let with = |rates: &[(&'static str, &'static str)]| [&slow, rates].concat();
    let (even, most) = sizes(&with(&[("device_staged_rate", "1G"), ("device_direct_rate", "2G")]));
    assert!((20_000..23_000).contains(&even) && most == usize::MAX, "{even}");
    assert_eq!(sizes(&with(&[("device_direct_rate", "1G")])), (usize::MAX, 0));
    assert_eq!(sizes(&with(&[("device_direct_rate", "0"), ("device_staged_rate", "0")])), (usize::MAX, 0));
    // A put does not cost more.
    assert_eq!(sizes(&[slow[0]]).0, 1);
}

/// The decisions equal those of the estimates, which come from these figures of two H200s.
#[test]
fn measurements_of_the_estimated_devices_give_the_same_decisions() {
    let costs =
        estimates(&[]).costs(Some(&measured(copy(7.2, 377.0), copy(6.7, 378.0))), PeerDevice::Device([1; 16]), false);
    assert_eq!((costs.push.fixed, costs.push.bytes_per_second), (costs.direct.fixed, costs.direct.bytes_per_second));
    assert_eq!(costs.direct_sizes(), (1, usize::MAX));
    let estimated = estimates(&[]).costs(None, PeerDevice::Unknown, false);
    for (found, estimate) in [(costs.staged, estimated.staged), (costs.direct, estimated.direct)] {
        for size in [8, 1 << 20, 64 << 20] {
            let ratio = found.of(size).as_secs_f64() / estimate.of(size).as_secs_f64();
            assert!((0.85..1.15).contains(&ratio), "{size}: {found:?} beside {estimate:?}");
        }
    }
}

#[test]
fn differing_measurements_decide_which_side_copies() {
    let costs = |pull, push| estimates(&[]).costs(Some(&measured(pull, push)), PeerDevice::Device([1; 16]), false);
    let slow_reads = costs(copy(8.0, 20.0), copy(7.0, 26.0));
    assert!(slow_reads.push.of(8 << 20) < slow_reads.direct.of(8 << 20));
    let slow_writes = costs(copy(7.0, 26.0), copy(9.0, 20.0));
    assert!(slow_writes.push.of(8) > slow_writes.direct.of(8));
    // For an unknown device the estimates hold; for the same device, the copy rate within it.
    let known = measured(copy(8.0, 20.0), copy(7.0, 26.0));
    let estimated = estimates(&[]).costs(None, PeerDevice::Unknown, false);
    assert_eq!(estimates(&[]).costs(Some(&known), PeerDevice::Device([2; 16]), false).direct, estimated.direct);
    assert_eq!(estimates(&[]).costs(Some(&known), PeerDevice::Same, false).direct.bytes_per_second, 2e12);
    assert_eq!(estimates(&[]).costs(Some(&known), PeerDevice::Unknown, false).direct.bytes_per_second, 20e9);
}

/// Between distant devices, one direct copy may start faster and be slower.
#[test]
fn a_slow_link_is_for_small_messages() {
    let far =
        estimates(&[]).costs(Some(&measured(copy(9.0, 10.0), copy(9.0, 10.0))), PeerDevice::Device([1; 16]), false);
    let (from, to) = far.direct_sizes();
    assert_eq!(from, 1);
    assert!((85_000..100_000).contains(&to), "{to}");
    let at = |size| far.direct.of(size) <= far.staged.of(size);
    assert!(at(to as u64 - 16) && !at(to as u64 + 16));
}

#[test]
fn parameters_override_measurements() {
    let known = measured(copy(1.0, 10.0), copy(2.0, 20.0));
    let all = [
        ("device_staged_latency", "19us"),
        ("device_staged_rate", "45G"),
        ("device_direct_latency", "10us"),
        ("device_direct_rate", "350G"),
        ("device_push_latency", "10us"),
    ];
    let estimated = estimates(&[]).costs(None, PeerDevice::Unknown, false);
    assert_eq!(estimates(&all).costs(Some(&known), PeerDevice::Device([1; 16]), false), estimated);
    for (index, set) in all.into_iter().enumerate() {
        let costs = estimates(&[set]).costs(Some(&known), PeerDevice::Device([1; 16]), false);
        let figures = |costs: &DeviceCosts| {
            let DeviceCosts { staged, direct, push, .. } = *costs;
            let rate = |cost: Cost| Duration::from_secs_f64(1e15 / cost.bytes_per_second);
            [staged.fixed, rate(staged), direct.fixed, rate(direct), push.fixed]
        };
        for (other, (found, estimate)) in figures(&costs).into_iter().zip(figures(&estimated)).enumerate() {
            assert_eq!(found == estimate, other == index, "{set:?}: {costs:?}");
        }
    }
}

/// Staged messages need no turn on the device, so small ones are staged while contexts take turns.
#[test]
fn copies_within_a_device_wait_for_turns() {
    let known = measured(copy(7.2, 377.0), copy(6.7, 378.0));
    let costs = |other, turns| estimates(&[]).costs(Some(&known), other, turns);
    let (from, to) = costs(PeerDevice::Same, true).direct_sizes();
    assert!((3 << 20..8 << 20).contains(&from) && to == usize::MAX, "{from}");
    assert_eq!(costs(PeerDevice::Same, false).direct_sizes(), (1, usize::MAX));
    let other = PeerDevice::Device([1; 16]);
    assert_eq!(costs(other, true), costs(other, false));
}
