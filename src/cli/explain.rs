//! `cableway explain`: which protocol carries messages of which size, and why.

use std::io::Write;
use std::ops::RangeInclusive;
use std::process::ExitCode;

use cableway::{MemoryClass, Protocol, Side, World, parse_size};
use clap::{Args, ValueEnum};

use super::Failure;
use super::job::{self, Joined};
use super::parameters::ParameterOptions;

/// Show which protocol carries messages of which size, and why
///
/// Asks the links between two processes of this machine, which are started for it, or those of the job that it runs in.
#[derive(Args)]
pub(super) struct Explain {
    /// Memory of the sender
    #[arg(long, value_enum, default_value = "host")]
    src: Class,

    /// Memory of the receiver
    #[arg(long, value_enum, default_value = "host")]
    dst: Class,

    /// Message sizes: FIRST..LAST, or one
    #[arg(long, default_value = "1..4M", value_parser = range)]
    size: RangeInclusive<u64>,

    /// Which of the two sides have their data in pieces, as a vector has
    #[arg(long, value_enum, default_value = "none")]
    strided: Strided,

    /// Transport to use; the best one by default
    #[arg(long, value_name = "NAME")]
    btl: Option<String>,

    /// How to print
    #[arg(long, value_enum, default_value = "table")]
    format: Format,

    #[command(flatten)]
    parameters: ParameterOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Class {
    Host,
    Pinned,
    Device,
    Managed,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Strided {
    None,
    Src,
    Dst,
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    /// One object a line
    Json,
}

impl Explain {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let world = match job::join(&self.parameters, self.btl.as_deref(), 2)? {
            Joined::Member(world) => world,
            Joined::Ended(code) => return Ok(code),
        };
        if world.rank() == 0 {
            self.print(&world)?;
        }
        // The other rank's end of the link is what was explained.
        world.communicator().barrier()?;
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, world: &World) -> Result<(), Failure> {
        let side = |class: Class, strided: &[Strided]| Side {
            class: match class {
                Class::Host => MemoryClass::Host,
                Class::Pinned => MemoryClass::Pinned,
                Class::Device => MemoryClass::Device,
                Class::Managed => MemoryClass::Managed,
            },
            contiguous: !strided.contains(&self.strided),
        };
        let from = side(self.src, &[Strided::Src, Strided::Both]);
        let to = side(self.dst, &[Strided::Dst, Strided::Both]);
        let rows = world.communicator().explain(1, from, to, self.size.clone())?;
        let text = match self.format {
            Format::Table => Protocol::table(&rows, &world.communicator().transports(1)?),
            Format::Json => rows.iter().map(json).collect(),
        };
        let written = std::io::stdout().lock().write_all(text.as_bytes());
        written.map_err(|error| Failure::failed(1, format!("printing: {error}")))
    }
}

fn json(row: &Protocol) -> String {
    let (first, last) = (row.sizes.start(), row.sizes.end());
    let object = serde_json::json!({
        "first": first, "last": last, "protocol": row.protocol, "reason": row.reason
    });
    format!("{object}\n")
}

fn range(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let (first, last) = (parse_size(first)?, parse_size(last)?);
    if first > last {
        return Err(format!("the range ends at {last}, before it begins at {first}"));
    }
    Ok(first..=last)
}
