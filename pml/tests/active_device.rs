//! Active messages whose data lies in host and device memory on either side.
#![cfg(feature = "cuda")]

mod common;

use std::sync::Arc;

use cableway_btl::Flags;
use cableway_common_cuda::BufferKind;
use cableway_pml::{Buffer, Error};
use parking_lot::Mutex;

use common::Link;
use common::active::Active;
use common::memory::Memory;
use common::pattern;
use test_nodes::devices;

const KINDS: [Option<BufferKind>; 5] =
    [None, Some(BufferKind::Device), Some(BufferKind::Pool), Some(BufferKind::Managed), Some(BufferKind::Pinned)];

const SIZES: [usize; 6] = [0, 8, 8116, 8117, 65_536, 1 << 20];

/// Memory that a handler chose, with the result of the landing.
type Landed = Arc<Mutex<Option<(Memory, Result<u64, Error>)>>>;

#[test]
fn data_lands_where_the_handler_says_in_every_pairing() {
    let devices = devices();
    let content = pattern(1 << 20, 3);
    let all = Flags::GET | Flags::PUT | Flags::DEVICE_GET | Flags::DEVICE_PUT;
    for flags in [Flags::empty(), Flags::GET, all] {
        let link = Link::new("net", flags).with(|link| link.asynchronous = true);
        let active = Active::on(&devices, 2, &[link], &[("device_chunk_size", "64K")]);
        let landed = Landed::default();
        let (place, memory_of) = (landed.clone(), devices.clone());
        // The header names the kind of memory.
        let handler = move |arrival: cableway_pml::Arrival<'_>| {
            let kind = KINDS[usize::from(arrival.header()[0])];
            let len = arrival.len() as usize;
            let mut memory = Memory::new(&memory_of, kind, &vec![0xaa; len]);
            let (buffer, place) = (Buffer::bytes(memory.address(), len as u64), place.clone());
            // SAFETY: the completion owns the memory.
            unsafe { arrival.receive(buffer, move |result| *place.lock() = Some((memory, result))) };
        };
        active.am[1].register(1, handler).unwrap();
        for (from, to) in (0..KINDS.len()).flat_map(|from| (0..KINDS.len()).map(move |to| (from, to))) {
            for len in SIZES {
                let mut source = Memory::new(&devices, KINDS[from], &content[..len]);
                let buffer = Buffer::bytes(source.address(), len as u64);
                let back = Arc::new(Mutex::new(None));
                let given = back.clone();
                let then = move |result: Result<(), Error>| *given.lock() = Some((source, result));
                // SAFETY: the completion owns the memory.
                unsafe { active.am[0].poster().post_then(1, 1, &[to as u8], buffer, then) }.unwrap();
                active.until(|| back.lock().is_some() && landed.lock().is_some());
                let (memory, result) = landed.lock().take().unwrap();
                let what = format!("{flags:?}, {:?} to {:?}, {len} bytes", KINDS[from], KINDS[to]);
                assert_eq!(result.unwrap(), len as u64, "{what}");
                assert!(memory.read(len) == content[..len], "{what}");
                let (source, result) = back.lock().take().unwrap();
                assert!(result.is_ok() && source.read(len) == content[..len], "{what}");
            }
        }
        active.finish();
    }
}

#[test]
fn device_data_that_no_handler_takes_is_dropped() {
    let devices = devices();
    let link = Link::new("net", Flags::GET | Flags::DEVICE_GET).with(|link| link.asynchronous = true);
    let active = Active::on(&devices, 2, &[link], &[]);
    active.am[1].register(1, |_| {}).unwrap();
    for (id, len) in [(1, 8), (1, 1 << 20), (2, 8), (2, 1 << 20)] {
        let mut source = Memory::new(&devices, Some(BufferKind::Device), &pattern(len, 1));
        let buffer = Buffer::bytes(source.address(), len as u64);
        let back = Arc::new(Mutex::new(None));
        let given = back.clone();
        let then = move |result: Result<(), Error>| *given.lock() = Some((source, result));
        // SAFETY: the completion owns the memory.
        unsafe { active.am[0].poster().post_then(1, id, b"", buffer, then) }.unwrap();
        active.until(|| back.lock().is_some());
        assert!(back.lock().take().unwrap().1.is_ok());
    }
    assert_eq!((active.am[1].counts().handled, active.am[1].counts().unknown), (2, 2));
    active.finish();
}
