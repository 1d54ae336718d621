//! Copies between two devices of one process without enabled peer access.

use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex};

use crate::{Bench, fact};

pub(crate) fn run(bench: &Bench) {
    if bench.app.device_count() < 2 {
        return fact("peers", "there is one device");
    }
    for from in BufferKind::ALL {
        for to in BufferKind::ALL {
            let new = |index, kind| DeviceBuffer::new(&bench.devices, DeviceIndex(index), kind, 4 << 20);
            let (Ok(mut source), Ok(destination)) = (new(0, from), new(1, to)) else { continue };
            let bytes: Vec<u8> = (0..4 << 20).map(|i: u32| (i % 253) as u8).collect();
            source.copy_from_host(0, &bytes).unwrap();
            // SAFETY: both have 4 MiB and are ours.
            let copied =
                unsafe { bench.devices.copy(destination.as_device_ptr(), source.as_device_ptr(), bytes.len()) };
            let mut got = vec![0; bytes.len()];
            destination.copy_to_host(0, &mut got).unwrap();
            let outcome = match copied {
                Ok(()) if got == bytes => "right".to_owned(),
                Ok(()) => "WRONG BYTES".to_owned(),
                Err(error) => error.to_string(),
            };
            fact(&format!("copy from {from:?} on device 0 to {to:?} on device 1"), outcome);
        }
    }
}
