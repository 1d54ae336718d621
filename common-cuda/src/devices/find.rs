//! Which vendors a process looks for, and where.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cableway_base::Parameters;

use super::{Devices, HIP_LIBDIR_VARIABLE, LIBDIR_VARIABLE, State};
use crate::costs::Costs;
use crate::driver::Discovery;
use crate::mapping_gate::Gate;
use crate::platform::Platform;

/// Finds drivers in the folders that the environment names, else by the loader.
pub(super) fn in_environment(parameters: &Parameters) -> Devices {
    let named = |variable| std::env::var_os(variable).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let (cuda, hip) = (named(LIBDIR_VARIABLE), named(HIP_LIBDIR_VARIABLE));
    let vendors = [of_cuda(cuda.as_deref(), cuda.is_some()), of_hip(hip.as_deref(), hip.is_some())];
    found(vendors.into_iter().flatten().collect(), parameters)
}

/// Finds the driver in a folder, else all by the loader.
pub(super) fn in_folder(folder: Option<&Path>, parameters: &Parameters) -> Devices {
    let vendors = match folder {
        Some(folder) if has_hip(folder) => [None, of_hip(Some(folder), true)],
        Some(_) => [of_cuda(folder, true), None],
        None => [of_cuda(None, true), of_hip(None, true)],
    };
    found(vendors.into_iter().flatten().collect(), parameters)
}

/// Finds the drivers of several folders, of one vendor each.
pub(super) fn in_folders(folders: &[&Path], parameters: &Parameters) -> Devices {
    let (hip, cuda): (Vec<&Path>, Vec<&Path>) = folders.iter().copied().partition(|folder| has_hip(folder));
    let cuda = cuda.first().and_then(|folder| of_cuda(Some(folder), true));
    let hip = hip.first().and_then(|folder| of_hip(Some(folder), true));
    found([cuda, hip].into_iter().flatten().collect(), parameters)
}

fn has_hip(folder: &Path) -> bool {
    let is_hip = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"libamdhip64.so");
    std::fs::read_dir(folder).is_ok_and(|files| files.flatten().any(|file| is_hip(&file.file_name())))
}

#[cfg(feature = "cuda")]
fn of_cuda(folder: Option<&Path>, expected: bool) -> Option<Box<dyn Discovery>> {
    Some(Box::new(crate::cuda::Cuda::find(folder, expected)))
}

#[cfg(not(feature = "cuda"))]
fn of_cuda(_folder: Option<&Path>, _expected: bool) -> Option<Box<dyn Discovery>> {
    None
}

#[cfg(feature = "rocm")]
fn of_hip(folder: Option<&Path>, expected: bool) -> Option<Box<dyn Discovery>> {
    Some(Box::new(crate::hip::Hip::find(folder, expected)))
}

#[cfg(not(feature = "rocm"))]
fn of_hip(_folder: Option<&Path>, _expected: bool) -> Option<Box<dyn Discovery>> {
    None
}

/// Creates the devices of some vendors.
#[cfg(any(feature = "cuda", feature = "rocm", feature = "double", test))]
pub(super) fn found(vendors: Vec<Box<dyn Discovery>>, parameters: &Parameters) -> Devices {
    let expected: &'static AtomicBool = match &vendors[..] {
        [] => return Devices::none(),
        [only] => only.expected(),
        #[cfg(any(feature = "cuda", feature = "rocm"))]
        _ => &crate::driver::ANY_EXPECTED,
        #[cfg(not(any(feature = "cuda", feature = "rocm")))]
        [first, ..] => first.expected(),
    };
    if vendors.iter().all(|vendor| vendor.driver().is_none()) {
        let names: Vec<&str> = vendors.iter().map(|vendor| vendor.name()).collect();
        let names = names.join(" or ");
        log::info!("no {names} driver is loaded: all memory is host memory until the program loads one");
    }
    let costs: Arc<Costs> = Arc::default();
    let mapping_gate: Arc<Gate> = Arc::default();
    let mut vendors = vendors.into_iter().map(|vendor| Platform::new(vendor, parameters, &costs, &mapping_gate));
    let platforms = [vendors.next(), vendors.next()];
    drop(vendors);
    Devices { state: Arc::new(State { platforms, costs, mapping_gate, ..State::default() }), expected }
}

#[cfg(not(any(feature = "cuda", feature = "rocm", feature = "double", test)))]
fn found(_vendors: Vec<Box<dyn Discovery>>, _parameters: &Parameters) -> Devices {
    Devices::none()
}
