//! `cableway collectives`: times collective operations.

mod operation;
mod place;
mod watch;

use std::process::ExitCode;

use cableway::World;
use clap::{Args, ValueEnum};

use super::job::{self, Job, Ranks};
use super::parameters::ParameterOptions;
use super::pingpong::{Sizes, kind, parse_seconds, parse_sizes};
use super::rows::{Field, Format, SIMULATED, csv, json, name};
use super::{Failure, output};
use operation::{Buffers, Operation};
use place::{Floats, Place};
use watch::{Figure, Watch};

/// Time collective operations
///
/// Starts the ranks on this machine, unless it runs within a job already. Prints the median time of single calls, of the
/// rank that took longest. Each call begins after a barrier. Elements are 32-bit floats, which reductions add. The root is
/// rank 0.
#[derive(Args)]
pub(super) struct Collectives {
    /// Number of ranks to start
    #[arg(short = 'n', long = "np", value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,

    /// Operations to time, all by default
    #[arg(long, value_delimiter = ',')]
    operation: Vec<Operation>,

    /// Where the buffers lie; rank R uses device R, counted round where there are fewer
    #[arg(long, default_value = "host")]
    memory: Place,

    /// Transports to use: self and sm or tcp; the best ones by default
    #[arg(long, value_name = "NAMES")]
    btl: Option<String>,

    /// Bytes of each rank's buffer, and where ranks have shares of it, of all shares together: FIRST..LAST (doubling), or a
    /// list such as 8,4K,1M. Shares have one length, so sizes are rounded down
    #[arg(long, default_value = "4..16M", value_parser = parse_sizes)]
    sizes: Sizes,

    /// Time of each figure, in seconds
    #[arg(long, default_value = "0.1", value_parser = parse_seconds)]
    seconds: f64,

    /// Compare each element of one call of each operation and size with the right value
    #[arg(long)]
    check: bool,

    /// Format of the results
    #[arg(long, default_value = "table")]
    format: Format,

    #[command(flatten)]
    parameters: ParameterOptions,
}

/// What all rows share.
#[derive(Clone, Copy)]
struct Measured {
    ranks: u32,
    simulated: bool,
}

impl Collectives {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let job = Job { ranks: Ranks::Any(self.ranks), on_cores: true };
        let joined = job::join(&self.parameters, self.btl.as_deref(), job)?;
        Ok(joined.play(|world| self.run_rank(world)))
    }

    fn run_rank(&self, world: &World) -> Result<(), Failure> {
        match self.memory {
            Place::Host => self.time_all(world, |len| Ok(vec![0.0; len])),
            Place::Device => {
                let device = place::device(world)?;
                self.time_all(world, |len| Ok(device.zeroed::<f32>(len)?))
            }
        }
    }

    /// Times every operation at every size, with memory that `zeroed` allocates.
    fn time_all<B: Floats>(&self, world: &World, zeroed: impl Fn(usize) -> Result<B, Failure>) -> Result<(), Failure> {
        let operations = if self.operation.is_empty() { Operation::value_variants() } else { &self.operation[..] };
        let everyone = world.communicator();
        let simulated = self.memory == Place::Device && kind::facts(world)?.simulated();
        let job = Measured { ranks: everyone.size(), simulated };
        // The measurement itself uses host memory, so it has a communicator of its own.
        let watch = Watch { on: everyone.dup()?, seconds: self.seconds };
        self.print(world, &self.begin(job))?;
        for &operation in operations {
            for &bytes in &self.sizes.0 {
                let Some(lens) = operation.lens(bytes, everyone.size()) else { continue };
                let mut buffers = Buffers::new(operation, lens, &zeroed)?;
                if self.check {
                    buffers.check(everyone)?;
                }
                let figure = watch.median(|| buffers.call(everyone))?;
                self.print(world, &self.row(operation, lens.bytes(), job, figure))?;
            }
        }
        Ok(())
    }

    fn print(&self, world: &World, text: &str) -> Result<(), Failure> {
        if world.rank() == 0 { output::print(text) } else { Ok(()) }
    }

    fn begin(&self, job: Measured) -> String {
        let (memory, checked) = (name(self.memory), if self.check { ", checked" } else { "" });
        match self.format {
            Format::Table => format!(
                "# Cableway collectives: {} ranks, {memory} memory{checked}\n{}{:<16}{:>12}{:>16}{:>10}\n",
                job.ranks,
                if job.simulated { SIMULATED } else { "" },
                "# Operation",
                "Size",
                "Time (us)",
                "Calls"
            ),
            Format::Csv => {
                let none = Figure { median: 0.0, calls: 0 };
                csv(self.fields(Operation::Allreduce, 0, job, none).into_iter().map(|field| field.name))
            }
            Format::Json => String::new(),
        }
    }

    fn row(&self, operation: Operation, bytes: usize, job: Measured, figure: Figure) -> String {
        match self.format {
            Format::Table => {
                let (name, Figure { median, calls }) = (name(operation), figure);
                format!("{name:<16}{bytes:>12}{median:>16.2}{calls:>10}\n")
            }
            Format::Csv => csv(self.fields(operation, bytes, job, figure).into_iter().map(|field| field.value)),
            Format::Json => json(&self.fields(operation, bytes, job, figure)),
        }
    }

    /// Returns the fields of a row.
    fn fields(
        &self,
        operation: Operation,
        bytes: usize,
        job: Measured,
        Figure { median, calls }: Figure,
    ) -> Vec<Field> {
        let mut fields = vec![
            Field::text("operation", name(operation)),
            Field::bare("ranks", job.ranks),
            Field::text("memory", name(self.memory)),
            Field::bare("size", bytes),
            Field::bare("value", (median * 100.0).round() / 100.0),
            Field::text("unit", "us"),
            Field::bare("calls", calls),
            Field::text("check", if self.check { "pass" } else { "no" }),
        ];
        fields.extend(job.simulated.then(|| Field::bare("simulated", true)));
        fields
    }
}
