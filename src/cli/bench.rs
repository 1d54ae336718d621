//! `cableway bench`: compares figures with those of other libraries.

use std::path::PathBuf;
use std::process::ExitCode;

use cableway::{Devices, Parameters};
use cableway_compare::{Comparison, Subject};
use clap::{Args, Subcommand};

use super::Failure;
use super::ompi::component_for_this_machine;

/// Compare with other libraries
#[derive(Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Measure Cableway and the MPI, UCX and NCCL of this machine in one run, and print the figures side by side
    ///
    /// Measures messages, puts and gets, active messages, and collectives: latency, rate and bandwidth, in host memory, and in
    /// device memory if there are devices. Each library is measured in turn, several times. Do not use the machine meanwhile.
    /// UCX is installed from PyPI if it is missing.
    Compare {
        #[command(flatten)]
        compare: Comparison,
        /// The component for Open MPI to measure [default: the file beside this executable or in ../lib/cableway]
        #[arg(long, value_name = "FILE")]
        component: Option<PathBuf>,
    },
}

impl Bench {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let What::Compare { compare, component } = self.what;
        let command =
            std::env::current_exe().map_err(|error| Failure::failed(1, format!("this executable: {error}")))?;
        let component = component.map_or_else(component_for_this_machine, Ok);
        let (devices, simulated) = devices();
        let subject = Subject { command, component, devices, simulated };
        compare.execute(&subject).map_err(|error| Failure::failed(1, error))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the number of usable devices, 0 without a driver, and whether they are simulated.
fn devices() -> (u32, bool) {
    let devices = Devices::open(&Parameters::default());
    let facts = devices.initialise().and_then(|()| devices.facts());
    facts.map_or((0, false), |facts| (facts.devices.len() as u32, facts.simulated()))
}
