//! Device copies and calls that make progress, on the simulated driver, or on the real one with
//! `CABLEWAY_TEST_REAL_DRIVER=1`.
#![cfg(feature = "cuda")]

mod common;

use cableway_btl::{Access, Remote, Sent, Token, Transfer};
use cableway_common_cuda::BufferKind;
use common::device::{content, copied_when_mapped, filled, region, registered};
use common::{Pair, pattern, until};
use test_nodes::devices;

/// A program may post a receive after a message was delivered, and then compute for long without progress.
#[test]
fn copies_that_start_after_a_delivery_need_no_further_progress() {
    let devices = devices();
    let mut pair = Pair::with_devices(&["device_ipc_open_size=1", "btl_sm_fast_box_threshold=1"], &devices);
    for _ in 0..3 {
        pair.deliver(b"into the fast box");
    }
    let remote = filled(&devices, BufferKind::Vmm, &pattern(0, 5000));
    let mut local = filled(&devices, BufferKind::Vmm, &[0; 5000]);
    let name = registered(&mut pair, &remote, Access::RemoteRead).unwrap();
    copied_when_mapped(&mut pair, &local, &name, Access::RemoteRead);
    // While a fast box is busy, most polls look at nothing else.
    for round in 0..4 {
        local.copy_from_host(0, &[0; 5000]).unwrap();
        devices.default_stream(&local.location()).unwrap().wait().unwrap();
        assert_eq!(pair.to_one.send_inline(b"announced", b"").unwrap(), Sent::Done);
        while pair.one.take().is_none() {
            pair.one.progress();
        }
        // SAFETY: both buffers live until the copy completes, and no other code accesses them.
        let begun =
            unsafe { pair.to_zero.get(&region(&local).into(), &Remote::at(name.handle(), 0), Token(9)) }.unwrap();
        assert_eq!(begun, Transfer::Started);
        let start = std::time::Instant::now();
        while content(&local) != pattern(0, 5000) {
            assert!(start.elapsed() < common::PATIENCE, "round {round}: the copy waits for progress");
            std::thread::yield_now();
        }
        until(&[&pair.one], "the copy is reported", || pair.one.heard.completed.borrow_mut().pop().is_some());
    }
}
