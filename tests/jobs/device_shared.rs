//! Device memory that another process maps through file descriptors: virtual memory management and pools.

use crate::device_copy::{ONE_DEVICE, direct, run, told};
use crate::support::{Test, skip};

pub(crate) const TESTS: &[Test] = &[
    ("device_shared::memory_of_virtual_memory_management_is_passed_by_descriptor", passed_by_descriptor),
    ("device_shared::each_piece_of_a_buffer_is_passed_by_descriptor", passed_as_several),
    ("device_shared::pool_memory_is_mapped_for_one_message_at_a_time", of_pools),
];

fn passed_by_descriptor() {
    for variables in [&[][..], &[ONE_DEVICE]] {
        let kind = |kind| [variables, &[("IPC_KIND", kind)]].concat();
        let finished = run(2, &[], &kind("vmm"), "device_settled").assert_success();
        assert_eq!(finished.stderr, "", "{variables:?}");
        // Each rank maps at most two buffers of the other. On one device the lower rank maps both.
        assert!((2..=4).contains(&told(&finished, "mapped ")), "{finished:#?}");
        let both = [&kind("vmm")[..], &[("IPC_INTO", "device")]].concat();
        run(2, &["--set", "device_ipc_open_size=1"], &both, "device_settled").assert_success();
        run(4, &[], &kind("vmm"), "device_exchange").assert_success();
    }
    run(4, &["--set", "device_ipc_open_size=1"], &[("IPC_KIND", "vmm")], "device_exchange").assert_success();
}

/// Messages of 3 MiB. Some of them span a border between pieces.
fn passed_as_several() {
    for variables in [&[][..], &[ONE_DEVICE]] {
        let pieces = [variables, &[("IPC_KIND", "vmm_pieces"), ("IPC_LEN", "10000001")]].concat();
        let finished = run(2, &[], &pieces, "device_settled").assert_success();
        assert_eq!(finished.stderr, "", "{variables:?}");
        // Each rank maps at most two buffers of the other. On one device the lower rank maps both.
        assert!((2..=4).contains(&told(&finished, "mapped ")), "{finished:#?}");
        let both = [&pieces[..], &[("IPC_INTO", "device")]].concat();
        run(2, &["--set", "device_ipc_open_size=1"], &both, "device_settled").assert_success();
        let finished = run(4, &[], &pieces, "device_exchange").assert_success();
        assert_eq!(finished.stderr, "", "{variables:?}");
        for set in ["device_ipc_open_size=1", "device_ipc_mappings=2"] {
            let finished = run(2, &["--set", set], &pieces, "device_fresh").assert_success();
            assert_eq!(finished.stderr, "", "{variables:?}");
        }
    }
}

/// The simulated driver ends a process that frees what another still has mapped.
fn of_pools() {
    if told(&run(1, &[], &[], "device_has_shared_pools").assert_success(), "shared pools ") == 0 {
        return skip("the driver makes no pool that can be shared");
    }
    let small = ["--set", "device_ipc_pool_size=1"];
    for variables in [&[][..], &[ONE_DEVICE]] {
        let pool = [variables, &[("IPC_KIND", "pool_shared")]].concat();
        let large = [&pool[..], &[("IPC_LEN", "3000001")]].concat();
        let finished = run(2, &[], &large, "device_settled").assert_success();
        assert_eq!(finished.stderr, "", "{variables:?}");
        // Each rank imports the other's pool. On one device only the lower rank does.
        assert!((1..=2).contains(&told(&finished, "mapped ")), "{finished:#?}");
        let both = [&pool[..], &[("IPC_INTO", "device")]].concat();
        run(2, &small, &both, "device_settled").assert_success();
        let finished = run(4, &small, &pool, "device_exchange").assert_success();
        assert_eq!(finished.stderr, "", "{variables:?}");
        assert!(direct(&finished) > 0, "{finished:#?}");
        // By default smaller messages are staged.
        let finished =
            run(2, &[], &[&pool[..], &[("IPC_SIZES", "small")]].concat(), "device_exchange").assert_success();
        assert_eq!(direct(&finished), 0, "{finished:#?}");
        for options in [&small[..], &[&small[..], &["--set", "device_ipc_open_size=1"]].concat()] {
            let finished = run(2, options, &pool, "device_fresh").assert_success();
            assert_eq!(finished.stderr, "", "{variables:?}");
            let kept = [&pool[..], &[("IPC_KEEP", "1")]].concat();
            let finished = run(2, options, &kept, "device_fresh").assert_success();
            assert_eq!(finished.stderr, "", "{variables:?}");
            assert!(direct(&finished) > 0, "{finished:#?}");
        }
        run(2, &small, &pool, "device_many").assert_success();
    }
}
