//! Device copies that fail: both sides get an error, and later messages pass. The faults are those of the simulated
//! driver.
#![cfg(feature = "cuda")]

mod common;

use cableway_btl::Flags;
use cableway_common_cuda::BufferKind;
use cableway_pml::{Buffer, Error, SendMode};

use common::memory::{Memory, with_faults};
use common::{Link, Ranks, pattern};
use test_nodes::devices;

fn links() -> Vec<(&'static str, Link)> {
    let link = |flags| Link::new("net", flags);
    let rdma = Flags::GET | Flags::PUT;
    vec![
        ("send only", link(Flags::empty())),
        ("host get and put", link(rdma).with(|link| link.retains = true)),
        ("in place", link(Flags::SEND_IN_PLACE | Flags::DEVICE_FRAGMENTS)),
        ("busy", link(rdma).with(|link| (link.busy, link.retains) = (600, true))),
    ]
}

#[test]
fn a_device_failure_ends_the_request_on_both_sides() {
    const TEST: &str = "a_device_failure_ends_the_request_on_both_sides";
    // Each call that starts or polls a copy fails in turn, after the first few succeeded.
    let faults = ["cuMemcpyAsync:719:3+", "cuMemcpyAsync:719:8+", "cuEventQuery:719:6+", "cuEventRecord:719:9+"];
    with_faults(TEST, &faults, || {
        let devices = devices();
        let content = pattern(400_000, 1);
        let mut failed = 0;
        for (name, link) in links() {
            let ranks = Ranks::on(&devices, 2, &[link], &[("device_chunk_size", "32K")], false);
            for (from, to) in [(true, false), (false, true), (true, true)] {
                for len in [100, 400_000] {
                    // The device works during allocation. The faults hit the copies of messages.
                    let kind = |device: bool| device.then_some(BufferKind::Device);
                    let (Some(mut source), Some(mut target)) = (
                        Memory::try_new(&devices, kind(from), &content),
                        Memory::try_new(&devices, kind(to), &content),
                    ) else {
                        continue;
                    };
                    let (from, to) = (Buffer::bytes(source.address(), len), Buffer::bytes(target.address(), len));
                    let (send, receive) = ranks.transfer(from, to, &SendMode::Standard);
                    // An eager send completes before the receiver's device is used.
                    assert!(len == 100 || send.is_some() == receive.is_err(), "{name}: {send:?} {receive:?}");
                    assert!(send.is_none() || receive.is_err(), "{name}: {send:?} {receive:?}");
                    let named = |error: &Error| matches!(error, Error::Device { .. } | Error::PeerAborted { .. });
                    assert!(send.iter().chain(receive.as_ref().err()).all(named), "{name}: {send:?} {receive:?}");
                    failed += u32::from(receive.is_err());
                }
            }
            // Host messages still work.
            for len in [8, 4000, 400_000] {
                ranks.carry(len, 2);
            }
        }
        assert_ne!(failed, 0, "the fault occurred");
    });
}

/// Messages that fail before they leave are announced without data. Their credit must come back, or later messages of
/// any kind would all be announced.
#[test]
fn failed_eager_messages_give_back_their_credit() {
    const TEST: &str = "failed_eager_messages_give_back_their_credit";
    const LEN: usize = 4000;
    with_faults(TEST, &["cuMemcpyAsync:2", "cuMemcpyAsync:2:4+"], || {
        let devices = devices();
        let link = Link::new("net", Flags::empty());
        let ranks = Ranks::on(&devices, 2, &[link], &[("pml_unexpected_limit", "64K")], false);
        let Some(mut source) = Memory::try_new(&devices, Some(BufferKind::Device), &pattern(LEN, 1)) else { return };
        let mut failed = 0;
        for _ in 0..100 {
            let mut target = vec![0; LEN];
            let (from, to) = (Buffer::bytes(source.address(), LEN as u64), common::space(&mut target));
            failed += u32::from(ranks.transfer(from, to, &SendMode::Standard).1.is_err());
        }
        assert!(failed > 90, "{failed} of 100 messages failed");
        ranks.carry(8, 2);
        assert_eq!(ranks.counter(0, "flow_controlled"), 0);
    });
}
