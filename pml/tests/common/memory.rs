//! Buffers in host or device memory.

use std::process::Command;

use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices};

/// Device memory of a kind, or host memory.
pub enum Memory {
    Host(Vec<u8>),
    Device(DeviceBuffer),
}

impl Memory {
    pub fn new(devices: &Devices, kind: Option<BufferKind>, content: &[u8]) -> Self {
        match kind {
            None => Memory::Host(content.to_vec()),
            Some(kind) => {
                let mut buffer = DeviceBuffer::new(devices, DeviceIndex(0), kind, content.len().max(1)).unwrap();
                buffer.copy_from_host(0, content).unwrap();
                Memory::Device(buffer)
            }
        }
    }

    /// Creates memory as [`new`](Self::new) does, but uninitialised on a device. Returns `None` if the device has no
    /// such memory.
    pub fn try_new(devices: &Devices, kind: Option<BufferKind>, content: &[u8]) -> Option<Self> {
        match kind {
            None => Some(Memory::Host(content.to_vec())),
            Some(kind) => DeviceBuffer::new(devices, DeviceIndex(0), kind, content.len()).ok().map(Memory::Device),
        }
    }

    pub fn address(&mut self) -> *mut u8 {
        match self {
            Memory::Host(bytes) => bytes.as_mut_ptr(),
            Memory::Device(buffer) => buffer.as_device_ptr(),
        }
    }

    /// Reads the first `len` bytes.
    pub fn read(&self, len: usize) -> Vec<u8> {
        match self {
            Memory::Host(bytes) => bytes[..len].to_vec(),
            Memory::Device(buffer) => {
                let mut bytes = vec![0; len];
                buffer.copy_to_host(0, &mut bytes).unwrap();
                bytes
            }
        }
    }
}

/// Runs this test in a separate process with faults in its driver.
pub fn with_faults(test: &str, faults: &[&str], body: impl FnOnce()) {
    if std::env::var("CABLEWAY_TEST_CHILD").is_ok_and(|child| child == test) {
        return body();
    }
    if std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some() {
        eprintln!("skipped {test}: a real driver does not fail on request");
        return;
    }
    for fault in faults {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        let output = command.env("CABLEWAY_TEST_CHILD", test).env("SIM_CUDA_FAIL", fault).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{fault}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
