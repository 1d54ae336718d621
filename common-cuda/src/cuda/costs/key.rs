//! What figures of a device hold for: the driver, the device and its place, and which others it reaches how.

use std::ffi::c_int;

use cudarc::driver::sys::CUdevice;

use crate::costs::text::Key;
use crate::cuda::driver::{Driver, version_text};
use crate::cuda::info;
use crate::cuda::status::Failure;
use crate::location::DeviceIndex;

/// What figures of a device hold for now. Fails for a device that has no identity, as on drivers before 11.4.
pub(super) fn of(driver: &Driver, device: DeviceIndex) -> Result<Key, Failure> {
    let uuid = info::uuid(driver, device)?;
    let (name, place) = info::name_and_place(driver, device)?;
    let mut count: c_int = 0;
    // SAFETY: fills in the count.
    unsafe { driver.cuDeviceGetCount(&raw mut count) }?;
    let others = (0..u32::try_from(count).unwrap_or(0)).map(DeviceIndex).filter(|other| *other != device);
    let peers = others.filter_map(|other| {
        let link = info::link(driver, device, other);
        let kind = if link.native_atomics { "nvlink" } else { "pcie" };
        let identity = info::uuid(driver, other).ok().filter(|_| link.peer_access)?;
        Some((identity, format!("{kind} {}", link.performance_rank)))
    });
    Ok(Key { driver: versions(driver), uuid, device: one_line(&format!("{place} {name}")), peers: peers.collect() })
}

/// The device of the current context.
pub(super) fn current_device(driver: &Driver) -> Result<DeviceIndex, Failure> {
    let mut device: CUdevice = 0;
    // SAFETY: fills in the device.
    unsafe { driver.cuCtxGetDevice(&raw mut device) }?;
    let mut count: c_int = 0;
    // SAFETY: fills in the count.
    unsafe { driver.cuDeviceGetCount(&raw mut count) }?;
    let mut indices = (0..u32::try_from(count).unwrap_or(0)).map(DeviceIndex);
    let same = |index: &DeviceIndex| info::handle(driver, *index) == Ok(device);
    indices.find(same).ok_or(Failure { call: "cuCtxGetDevice", code: Failure::INVALID_VALUE })
}

/// The version of the interface, and that of the kernel's module where it tells.
fn versions(driver: &Driver) -> String {
    let interface = version_text(driver.version);
    if driver.simulated {
        return format!("{interface} simulated");
    }
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let number = |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let module = text.lines().next().and_then(|line| line.split_ascii_whitespace().find(number));
    format!("{interface} {}", module.unwrap_or("of an unknown module"))
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
