//! Tests of the facts about the driver and its devices.

mod common;

use std::collections::HashSet;

use cableway_base::Parameters;
use cableway_common_cuda::{DeviceIndex, Devices};
use common::{app, devices, isolated};

#[test]
fn devices_are_described() {
    let (app, devices) = (app(), devices());
    let facts = devices.facts().unwrap();
    let [driver] = &facts.drivers[..] else { panic!("one driver: {:?}", facts.drivers) };
    assert_eq!((driver.simulated, facts.simulated()), (app.simulated(), app.simulated()));
    assert!(driver.path.exists(), "{}", driver.path.display());
    assert!(driver.version.contains('.'));
    assert_eq!(facts.devices.len(), app.device_count() as usize);
    let mut uuids = HashSet::new();
    for (index, device) in facts.devices.iter().enumerate() {
        assert_eq!(device.index, DeviceIndex(u32::try_from(index).unwrap()));
        assert_eq!(device.vendor, driver.vendor);
        assert!(!device.name.is_empty() && !device.architecture.is_empty());
        assert_eq!(device.pci.matches(':').count(), 2, "{}", device.pci);
        assert!(device.memory > 0 && device.compute_capability.0 > 0);
        assert_eq!(devices.uuid(device.index).unwrap(), device.uuid);
        assert_ne!(device.uuid, [0; 16]);
        uuids.insert(device.uuid);
    }
    assert_eq!(uuids.len(), facts.devices.len(), "each device has its own identity");
    assert_eq!(facts.links.len(), facts.devices.len() * (facts.devices.len() - 1));
}

#[test]
fn a_missing_device_is_an_error() {
    let error = devices().uuid(DeviceIndex(1000)).unwrap_err();
    assert!(error.to_string().contains("device 1000"), "{error}");
}

/// A machine may have the library and no device.
#[test]
fn a_library_without_a_device_is_an_error() {
    let test = "a_library_without_a_device_is_an_error";
    isolated(test, &[("CUDA_VISIBLE_DEVICES", "-1"), ("HIP_VISIBLE_DEVICES", "-1")], || {
        let devices = Devices::open_in(sim_cuda::tested_folder().as_deref(), &Parameters::default());
        let error = devices.initialise().unwrap_err().to_string().to_lowercase();
        assert!(error.contains("no amd device") || error.contains("cuda_error_no_device"), "{error}");
        let host = [0_u8; 8];
        assert!(!devices.classify(host.as_ptr(), host.len()).on_device());
    });
}

#[test]
fn calls_without_a_driver_fail_with_the_reason() {
    let none = Devices::none();
    assert!(!none.present());
    for error in [
        none.initialise().unwrap_err(),
        none.facts().map(|_| ()).unwrap_err(),
        none.uuid(DeviceIndex(0)).map(|_| ()).unwrap_err(),
    ] {
        assert!(error.to_string().contains("no device driver"), "{error}");
    }
}
