//! `cableway explain`: the protocols of messages, or the ways of puts and gets, by size, and the reasons.

mod collective;

use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Duration;

use cableway::{CostOrigin, DeviceIndex, Form, MemoryClass, Protocol, Side, World};
use clap::{Args, ValueEnum};

use super::Failure;
use super::job::{self, Job, Ranks};
use super::output;
use super::parameters::ParameterOptions;
use super::pingpong::{self, MemoryKind};

const SIZES: i32 = 1;

/// Show which protocol carries messages, puts or gets of which size, or which algorithm a collective operation takes, and why
///
/// Asks the links between two processes. Puts and gets go directly, or by the owner of the memory, which then moves the data
/// as a message. Starts both on this machine, unless it runs within a job already. With --collective it predicts times for any
/// number of ranks and nodes, which it does not start.
#[derive(Args)]
pub(super) struct Explain {
    /// What to explain
    #[arg(long, value_enum, default_value = "message")]
    operation: Operation,

    /// Memory that the data comes from
    #[arg(long, value_enum, default_value = "host")]
    src: Class,

    /// Memory that the data goes to
    #[arg(long, value_enum, default_value = "host")]
    dst: Class,

    /// Message sizes: FIRST..LAST, or one
    #[arg(long, default_value = "1..4M", value_parser = pingpong::parse_range)]
    size: RangeInclusive<u64>,

    /// Sides whose data lies in blocks at regular distances, as in a vector type
    #[arg(long, value_enum, default_value = "none")]
    strided: Sides,

    /// Sides whose data lies in blocks at irregular distances, as in an indexed type
    #[arg(long, value_enum, default_value = "none")]
    irregular: Sides,

    /// Transport to use; the best one by default
    #[arg(long, value_name = "NAME")]
    btl: Option<String>,

    /// Also send messages of the smallest and the largest size of each range, and print their times
    #[arg(long, conflicts_with_all = ["strided", "irregular"])]
    measure: bool,

    #[command(flatten)]
    collective: collective::Options,

    /// Format of the output
    #[arg(long, value_enum, default_value = "table")]
    format: Format,

    #[command(flatten)]
    parameters: ParameterOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Operation {
    Message,
    /// Puts of a process to registered memory of another
    Put,
    /// Gets of a process from registered memory of another
    Get,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Class {
    Host,
    Pinned,
    Device,
    Managed,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sides {
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
        self.collective.check()?;
        let in_blocks = self.strided != Sides::None || self.irregular != Sides::None;
        if self.operation != Operation::Message && (self.measure || in_blocks) {
            let text =
                "puts and gets are explained for one run of bytes: leave --measure, --strided and --irregular out";
            return Err(Failure::usage(text));
        }
        let job = Job { ranks: Ranks::Exactly(2), on_cores: true };
        let joined = job::join(&self.parameters, self.btl.as_deref(), job)?;
        Ok(joined.play(|world| {
            // A connected transport knows more about the peer.
            world.communicator().barrier()?;
            if let Some(operation) = self.collective.operation() {
                // Its times are predicted for any job.
                if world.rank() == 0 {
                    let on_devices = [self.src, self.dst].contains(&Class::Device);
                    collective::print(world, operation, &self.collective, on_devices, self.format == Format::Json)?;
                }
            } else if world.rank() == 0 {
                self.print(world)?;
            } else if self.measure {
                self.observe(world, &receive_sizes(world)?)?;
            }
            // The explained link needs the other rank until here.
            Ok(world.communicator().barrier()?)
        }))
    }

    fn print(&self, world: &World) -> Result<(), Failure> {
        // Links learn from the driver how they can use device memory. Without a driver they assume all features.
        let on_device = |which| matches!(self.side(which).class, MemoryClass::Device | MemoryClass::Managed);
        let origin = if [Sender, Receiver].into_iter().any(on_device) { self.load_costs(world) } else { String::new() };
        let on = world.communicator();
        let (from, to, sizes) = (self.side(Sender), self.side(Receiver), self.size.clone());
        let rows = match self.operation {
            Operation::Message => on.explain(1, from, to, sizes),
            Operation::Put => on.explain_put(1, from.class, to.class, sizes),
            Operation::Get => on.explain_get(1, from.class, to.class, sizes),
        }?;
        let mut observed = Vec::new();
        if self.measure {
            let sizes: Vec<u64> = rows.iter().flat_map(|row| [*row.sizes.start(), *row.sizes.end()]).collect();
            on.send(&[sizes.len() as u64], 1, SIZES)?;
            on.send(&sizes[..], 1, SIZES)?;
            observed = self.observe(world, &sizes)?.chunks_exact(2).map(|ends| [ends[0], ends[1]]).collect();
        }
        let text = match self.format {
            Format::Table => {
                let notes: String = on.notes(1)?.iter().map(|note| format!("# {note}\n")).collect();
                origin + &notes + &Protocol::table(&rows, &on.transports(1)?, &observed)
            }
            Format::Json => (0..rows.len()).map(|index| json(&rows[index], observed.get(index))).collect(),
        };
        output::print(&text)
    }

    /// Loads the measured costs of this rank's device, from which times are predicted, and returns a line that names their
    /// origin. With `--measure`, unknown costs are measured first.
    fn load_costs(&self, world: &World) -> String {
        const FIRST: DeviceIndex = DeviceIndex(0);
        let devices = world.devices();
        let measured: &[DeviceIndex] = if self.measure { &[FIRST] } else { &[] };
        let reports = devices.initialise().and_then(|()| devices.report_costs(measured));
        match reports.as_deref().map(|reports| reports.first().map(|report| &report.origin)) {
            Ok(Some(CostOrigin::File { path, measured })) => {
                format!("# The costs of copies were measured {measured}: {}\n", path.display())
            }
            Ok(Some(CostOrigin::Default(reason))) => format!("# The costs of copies are estimates: {reason}\n"),
            Ok(_) => String::new(),
            Err(error) => {
                log::info!("{error}");
                String::new()
            }
        }
    }

    fn side(&self, which: End) -> Side {
        let (class, side) = match which {
            Sender => (self.src, Sides::Src),
            Receiver => (self.dst, Sides::Dst),
        };
        let class = match class {
            Class::Host => MemoryClass::Host,
            Class::Pinned => MemoryClass::Pinned,
            Class::Device => MemoryClass::Device,
            Class::Managed => MemoryClass::Managed,
        };
        let among = |sides: Sides| sides == side || sides == Sides::Both;
        let form = match (among(self.irregular), among(self.strided)) {
            (true, _) => Form::Irregular,
            (false, true) => Form::Regular,
            (false, false) => Form::Run,
        };
        Side { class, form }
    }

    /// Measures the times of messages of these sizes. Both ranks call it.
    fn observe(&self, world: &World, sizes: &[u64]) -> Result<Vec<Duration>, Failure> {
        let kinds = [self.src, self.dst].map(|class| match class {
            Class::Host => MemoryKind::Host,
            Class::Pinned => MemoryKind::Pinned,
            Class::Device => MemoryKind::Device,
            Class::Managed => MemoryKind::Managed,
        });
        pingpong::latencies(world, kinds, sizes)
    }
}

/// Receives the sizes that rank 0 is going to measure.
fn receive_sizes(world: &World) -> Result<Vec<u64>, Failure> {
    let mut count = [0_u64];
    world.communicator().recv(&mut count, 0, SIZES)?;
    let mut sizes = vec![0_u64; count[0] as usize];
    world.communicator().recv(&mut sizes[..], 0, SIZES)?;
    Ok(sizes)
}

/// One end of a message.
#[derive(Clone, Copy)]
enum End {
    Sender,
    Receiver,
}
use End::{Receiver, Sender};

fn json(row: &Protocol, observed: Option<&[Duration; 2]>) -> String {
    let microseconds = |times: &[Duration; 2]| times.map(|time| time.as_secs_f64() * 1e6);
    let (first, last) = (row.sizes.start(), row.sizes.end());
    let object = serde_json::json!({
        "first": first, "last": last, "protocol": row.protocol, "reason": row.reason,
        "expected_us": microseconds(&row.expected), "observed_us": observed.map(microseconds)
    });
    format!("{object}\n")
}
