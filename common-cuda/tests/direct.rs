//! Device memory for NICs.

mod common;

use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices, WritesSeen};
use common::{devices, isolated_each, on_simulated_driver};

const PAGE: usize = 4096;

fn buffer(devices: &Devices, len: usize) -> DeviceBuffer {
    DeviceBuffer::new(devices, DeviceIndex(0), BufferKind::Device, len).unwrap()
}

#[test]
fn an_allocation_has_a_unique_id() {
    let devices = devices();
    let len = 3 << 20;
    let first = buffer(&devices, len);
    let address = first.as_device_ptr().cast_const().cast::<u8>();
    let at = devices.classify(address, len);
    let found = devices.allocation(&at, address.wrapping_add(len - 1)).unwrap();
    assert!(found.base <= address as usize && found.base + found.len >= address as usize + len);
    assert!(devices.is_allocated(found.id, found.base));
    assert!(!devices.is_allocated(found.id + 1, found.base));
    drop(first);
    assert!(!devices.is_allocated(found.id, found.base));
    let second = buffer(&devices, len);
    let now = devices.allocation(&at, second.as_device_ptr().cast_const().cast()).unwrap();
    assert_ne!(now.id, found.id);
    assert!(!devices.is_allocated(found.id, now.base));
    assert_eq!(devices.allocation(&at, (&raw const len).cast()), None);
}

#[test]
fn missing_driver_functions_are_reported() {
    let devices = devices();
    let support = devices.direct_support(DeviceIndex(0)).unwrap();
    assert!(devices.direct_support(DeviceIndex(1000)).is_err());
    let memory = buffer(&devices, 64 << 10);
    let address = memory.as_device_ptr().cast::<u8>();
    let at = devices.classify(address, 1);
    let page = address as usize & !(PAGE - 1);
    assert_eq!(devices.dma_buf(&at, page, 64 << 10).is_ok(), support.dma_buf);
    if support.writes != WritesSeen::Never {
        devices.flush_remote_writes(&at).unwrap();
    }
}

#[test]
fn the_simulated_driver_supports_what_it_is_configured_for() {
    const TEST: &str = "the_simulated_driver_supports_what_it_is_configured_for";
    if !on_simulated_driver(TEST) {
        return;
    }
    let cases: [&[(&str, &str)]; 4] = [
        &[("SIM_CUDA_DIRECT", "")],
        &[("SIM_CUDA_DIRECT", "dma_buf")],
        &[("SIM_CUDA_DIRECT", "peer_memory,unseen")],
        &[("SIM_CUDA_DIRECT", "dma_buf"), ("SIM_CUDA_VERSION", "11060")],
    ];
    isolated_each(TEST, &cases, |case| {
        let devices = devices();
        let support = devices.direct_support(DeviceIndex(0)).unwrap();
        let seen = [WritesSeen::Never, WritesSeen::AfterFlush, WritesSeen::Never, WritesSeen::AfterFlush][case];
        assert_eq!((support.dma_buf, support.peer_memory, support.writes), ([1, 3].contains(&case), case == 2, seen));
        let mut memory = buffer(&devices, PAGE + 1);
        let address = memory.as_device_ptr().cast::<u8>();
        let at = devices.classify(address, 1);
        assert_eq!(devices.direct_capable(address), Some(case != 0));
        devices.synchronise_operations(&at, address).unwrap();
        let page = address as usize;
        let made = devices.dma_buf(&at, page, 2 * PAGE);
        match case {
            1 => {
                let made = made.unwrap();
                assert!(made.descriptor.try_clone().is_ok() && made.offset == 0, "{made:?}");
                for (address, len) in [(page + 1, PAGE), (page, PAGE + 1), (page, 3 * PAGE), (page, 0)] {
                    assert!(devices.dma_buf(&at, address, len).is_err(), "{len} bytes at {address:#x}");
                }
            }
            3 => assert!(made.unwrap_err().to_string().contains("does not have this function")),
            _ => assert!(made.is_err()),
        }
        if case == 2 {
            // The CPU can read memory that this driver shares with NICs.
            memory.copy_from_host(0, &[7; PAGE + 1]).unwrap();
            // SAFETY: the simulated driver maps it for us, and the copy is over.
            assert_eq!(unsafe { address.add(PAGE).read_volatile() }, 7);
        }
    });
}
