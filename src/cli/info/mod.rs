//! `cableway info`: the detected hardware and software, and the parameters in force.

mod costs;
mod host_times;
mod machine;
mod parameters;
mod section;

use std::process::ExitCode;

use cableway::Devices;
use clap::{Args, ValueEnum};

use super::parameters::ParameterOptions;
use super::{Failure, output};
use section::Section;

/// Show the detected hardware and software, and the parameters
///
/// Without --all, shows only parameters that differ from their default. With the name of a parameter, shows that one:
/// what it does, when to change it, and what that costs.
#[derive(Args)]
pub(super) struct Info {
    /// A parameter to explain
    name: Option<String>,

    /// Show every parameter with its value, the origin of the value, and its meaning
    #[arg(long)]
    all: bool,

    /// Measure what has not been measured before: copies by this machine's devices, and ways to move host data
    #[arg(long)]
    measure: bool,

    /// How to print
    #[arg(long, value_enum, default_value = "text")]
    format: Format,

    #[command(flatten)]
    parameters: ParameterOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    /// One object
    Json,
}

impl Info {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let parameters = self.parameters.resolve()?;
        if let Some(name) = &self.name {
            return print(&parameters::explanation(&parameters, name).map_err(Failure::usage)?);
        }
        let devices = match &self.parameters.libdirs()[..] {
            [] => Devices::open(&parameters),
            folders => Devices::open_in_all(folders, &parameters),
        };
        let mut sections = machine::sections();
        sections.extend(machine::device_sections(&devices));
        sections.extend(costs::sections(&devices, self.measure));
        sections.push(host_times::section(&parameters, &self.parameters, self.measure));
        #[cfg(feature = "openib")]
        sections.extend(machine::verbs_section(&parameters));
        sections.push(parameters::section(&parameters, self.all));
        let text = match self.format {
            Format::Text => sections.iter().map(Section::text).collect::<Vec<_>>().join("\n"),
            Format::Json => section::json(&sections),
        };
        print(&text)
    }
}

fn print(text: &str) -> Result<ExitCode, Failure> {
    output::print(text)?;
    Ok(ExitCode::SUCCESS)
}
