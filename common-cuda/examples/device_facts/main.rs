//! Measures the facts that the design relies on. Run it on a new kind of GPU before relying on them there.
//!
//! `cargo run --release -p cableway-common-cuda --example device_facts [NAME...]` prints one line per fact; names
//! select groups (`classify`, `cost`, `order`, `capture`, `gone`, `memory`, `peers`).

#[path = "../../tests/common/app.rs"]
mod app;
mod capture;
mod classify;
mod cost;
mod gone;
mod memory;
mod order;
mod peers;

use std::path::PathBuf;
use std::time::Instant;

use cableway_base::Parameters;
use cableway_common_cuda::{Devices, LIBDIR_VARIABLE};

use app::App;

/// The data of every group.
struct Bench {
    app: App,
    devices: Devices,
}

/// Opens the devices of the driver in `CABLEWAY_CUDA_LIBDIR`, else of the one that the loader finds.
fn devices(assignments: &[&str]) -> Devices {
    let mut parameters = Parameters::default();
    for assignment in assignments {
        parameters.assign_internal(assignment).expect("a parameter of the table");
    }
    let devices = Devices::open(&parameters);
    devices.initialise().expect("a driver with devices");
    devices
}

fn fact(name: &str, value: impl std::fmt::Display) {
    println!("{name:<72} {value}");
}

/// Returns the microseconds of a call, the least of five rounds.
fn time(calls: u32, mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..calls {
            call();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
    }
    best
}

fn cost(name: &str, calls: u32, call: impl FnMut()) {
    fact(name, format_args!("{:.3} us", time(calls, call)));
}

fn main() {
    let folder = std::env::var_os(LIBDIR_VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let app = App::load(folder.as_deref()).expect("a driver library");
    app.cuInit(0).expect("a driver with devices");
    app.use_device(0);
    let bench = Bench { app, devices: devices(&[]) };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, probe] = &arguments[..]
        && flag == "--probe"
    {
        return gone::probe(&bench, probe);
    }
    let facts = bench.devices.facts().expect("devices that answer");
    for driver in &facts.drivers {
        fact("driver", format_args!("{} {} at {}", driver.vendor, driver.version, driver.path.display()));
    }
    if facts.simulated() {
        println!("SIMULATED: nothing below says anything about a device");
    }
    for device in &facts.devices {
        fact("device", format_args!("{:?}", device));
    }
    for link in &facts.links {
        fact("link", format_args!("{link:?}"));
    }
    type Group = (&'static str, fn(&Bench));
    const GROUPS: [Group; 7] = [
        ("classify", classify::run),
        ("cost", cost::run),
        ("order", order::run),
        ("capture", capture::run),
        ("memory", memory::run),
        ("gone", gone::run),
        ("peers", peers::run),
    ];
    for (name, group) in GROUPS {
        if arguments.is_empty() || arguments.iter().any(|argument| argument == name) {
            println!("-- {name}");
            group(&bench);
        }
    }
}
