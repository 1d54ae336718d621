//! `cableway explain`: which protocol carries messages of which size, and why.

use std::io::Write;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Duration;

use cableway::{CostOrigin, DeviceIndex, Form, MemoryClass, Protocol, Side, World, parse_size};
use clap::{Args, ValueEnum};

use super::Failure;
use super::job;
use super::parameters::ParameterOptions;
use super::pingpong::{self, MemoryKind};

const SIZES: i32 = 1;

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

    /// Which of the two sides have their data in blocks at regular distances, as a vector has
    #[arg(long, value_enum, default_value = "none")]
    strided: Sides,

    /// Which of the two sides have their data in blocks that are not regular, as an indexed type has
    #[arg(long, value_enum, default_value = "none")]
    irregular: Sides,

    /// Transport to use; the best one by default
    #[arg(long, value_name = "NAME")]
    btl: Option<String>,

    /// Also send messages of the smallest and the largest size of each range, and print the times that they take
    #[arg(long, conflicts_with_all = ["strided", "irregular"])]
    measure: bool,

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
        let joined = job::join(&self.parameters, self.btl.as_deref(), 2)?;
        Ok(joined.play(|world| {
            if world.rank() == 0 {
                self.print(world)?;
            } else if self.measure {
                self.observe(world, &hear_sizes(world)?)?;
            }
            // The other rank's end of the link is what was explained.
            Ok(world.communicator().barrier()?)
        }))
    }

    fn print(&self, world: &World) -> Result<(), Failure> {
        // What links say of device memory they know of the driver; without one, they hope for one that can do all.
        let on_device = |which| matches!(self.side(which).class, MemoryClass::Device | MemoryClass::Managed);
        let origin =
            if [Sender, Receiver].into_iter().any(on_device) { self.come_to_know_costs(world) } else { String::new() };
        let on = world.communicator();
        let rows = on.explain(1, self.side(Sender), self.side(Receiver), self.size.clone())?;
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
        let written = std::io::stdout().lock().write_all(text.as_bytes());
        written.map_err(|error| Failure::failed(1, format!("printing: {error}")))
    }

    /// Has what is expected be so by what was measured of the device that this rank uses, and says where that is known
    /// from. If times are to be measured, that is, too, unless it is known.
    fn come_to_know_costs(&self, world: &World) -> String {
        const OURS: DeviceIndex = DeviceIndex(0);
        let devices = world.devices();
        let measured: &[DeviceIndex] = if self.measure { &[OURS] } else { &[] };
        let reports = devices.initialise().and_then(|()| devices.report_costs(measured));
        match reports.as_deref().map(|reports| reports.first().map(|report| &report.origin)) {
            Ok(Some(CostOrigin::File { path, measured })) => {
                format!("# What copies cost was measured {measured}: {}\n", path.display())
            }
            Ok(Some(CostOrigin::Default(reason))) => format!("# What copies cost is estimated: {reason}\n"),
            Ok(_) => String::new(),
            Err(error) => {
                log::info!("{error}");
                String::new()
            }
        }
    }

    fn side(&self, which: Which) -> Side {
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

    /// Times of messages of these sizes, which both ranks measure.
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

/// What rank 0 is going to measure.
fn hear_sizes(world: &World) -> Result<Vec<u64>, Failure> {
    let mut count = [0_u64];
    world.communicator().recv(&mut count, 0, SIZES)?;
    let mut sizes = vec![0_u64; count[0] as usize];
    world.communicator().recv(&mut sizes[..], 0, SIZES)?;
    Ok(sizes)
}

/// One end of a message.
#[derive(Clone, Copy)]
enum Which {
    Sender,
    Receiver,
}
use Which::{Receiver, Sender};

fn json(row: &Protocol, observed: Option<&[Duration; 2]>) -> String {
    let microseconds = |times: &[Duration; 2]| times.map(|time| time.as_secs_f64() * 1e6);
    let (first, last) = (row.sizes.start(), row.sizes.end());
    let object = serde_json::json!({
        "first": first, "last": last, "protocol": row.protocol, "reason": row.reason,
        "expected_us": microseconds(&row.expected), "observed_us": observed.map(microseconds)
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
