//! `cableway pingpong`: times messages, also those in the order of a stream, puts, gets and active messages between two
//! processes, and verifies them on request.

mod active;
pub(super) mod kind;
mod landing;
mod measure;
mod memory;
mod pattern;
mod plan;
mod plot;
mod remote;
mod report;
mod room;
mod shape;
mod side;
mod sizes;
mod stream;
mod turns;
mod windows;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cableway::World;
use clap::{Args, ValueEnum};

use super::Failure;
use super::job::{self, Job, Ranks};
use super::parameters::ParameterOptions;
use super::rows::{Format, name};
pub(super) use kind::MemoryKind;
use measure::Bench;
use plan::{Plan, Test};
use report::{Header, Report};
use shape::Shape;
pub(super) use sizes::{Sizes, parse as parse_sizes, parse_range};
use stream::{StreamMode, StreamPlan, StreamSetup};

/// Time messages between two processes
///
/// Starts two processes on this machine, unless it runs within a job already (`cableway run -n 2`, `mpirun -n 2`).
/// The sizes, warm-up, windows and units are those of the OSU micro-benchmarks.
#[derive(Args)]
pub(super) struct Pingpong {
    /// What to measure
    #[arg(long, value_enum, default_value = "latency")]
    test: Test,

    /// Transport to use: sm, tcp, or self for a process with itself; the best one by default
    #[arg(long, value_name = "NAME")]
    btl: Option<String>,

    /// Memory of rank 0
    #[arg(long, value_enum, default_value = "host")]
    src: MemoryKind,

    /// Memory of rank 1
    #[arg(long, value_enum, default_value = "host")]
    dst: MemoryKind,

    /// Device of rank 0
    #[arg(long, value_name = "N", default_value = "0")]
    src_device: u32,

    /// Device of rank 1 [default: 1 if there is one, else 0]
    #[arg(long, value_name = "N")]
    dst_device: Option<u32>,

    /// Message sizes: FIRST..LAST (doubling), or a list such as 8,4K,1M
    #[arg(long, default_value = "1..4M", value_parser = sizes::parse)]
    sizes: sizes::Sizes,

    /// Send data in blocks. vector:BLOCK:STRIDE:COUNT places them at regular distances, indexed:BLOCK:COUNT:SEED with
    /// random gaps of one to three blocks. Block and stride are in bytes. Sizes count the data without the gaps and are
    /// rounded up to whole elements
    #[arg(long, value_name = "LAYOUT", value_parser = shape::parse_datatype)]
    datatype: Option<shape::Blocks>,

    /// Ranks whose data lies in such blocks; that of the other rank is contiguous
    #[arg(long, value_enum, default_value = "both", requires = "datatype")]
    datatype_of: Sides,

    /// Iterations for each size [default: fewer for larger messages]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,

    /// Time each size for about this long, instead of for a number of iterations
    #[arg(long, value_name = "SECONDS", conflicts_with = "iterations", value_parser = parse_seconds)]
    seconds: Option<f64>,

    /// Allocate and send device memory first, and keep it: shows the times of messages in host memory in a program that
    /// uses devices
    #[arg(long)]
    beside_devices: bool,

    /// Messages in flight, in tests with a window
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(1..=65536))]
    window: u32,

    /// Threads of each process, in the tests put-rate, get-rate and am-rate
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,

    /// Give each thread a worker of its own: a world with locks and connections of its own
    #[arg(long)]
    workers: bool,

    /// Send and receive in the order of a stream, latency only. Also prints how long calls take on the host
    #[arg(long, value_enum, value_name = "MODE", num_args = 0..=1, require_equals = true,
          default_missing_value = "calls", conflicts_with = "beside_devices")]
    stream: Option<StreamMode>,

    /// Steps that are added to the stream before the host waits for it (at most 64 with --stream=late)
    #[arg(long, value_name = "N", default_value = "1000", requires = "stream",
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    steps: u32,

    /// Run a kernel for so many microseconds on each rank's stream, between a receive and the next send
    #[arg(long, value_name = "MICROSECONDS", requires = "stream", value_parser = stream::parse_kernel)]
    kernel: Option<f64>,

    /// Fill every message with a pattern and verify it at the receiver. Times include this
    #[arg(long)]
    check: bool,

    /// Format of the results
    #[arg(long, value_enum, default_value = "table")]
    format: Format,

    /// Also draw the results
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    #[command(flatten)]
    parameters: ParameterOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sides {
    Both,
    /// Rank 0
    Src,
    /// Rank 1
    Dst,
}

/// Bytes of device memory sent first with `--beside-devices`: enough for the protocols of large messages.
const IN_USE: u64 = 1 << 20;

pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1e-6..=3600.0).contains(seconds));
    seconds.ok_or_else(|| format!("invalid time '{text}': a number of seconds from 0.000001 to 3600 is expected"))
}

/// Measures the time one way of a contiguous message of each of these sizes. `kinds` is the memory of rank 0 and rank 1.
pub(super) fn latencies(world: &World, kinds: [MemoryKind; 2], sizes: &[u64]) -> Result<Vec<Duration>, Failure> {
    let plan = Plan {
        test: Test::Latency,
        sizes: sizes.to_vec(),
        iterations: None,
        seconds: None,
        window: 1,
        threads: 1,
        check: false,
        stream: None,
    };
    let devices = kind::devices(world, kinds, [None; 2])?;
    let mut bench = Bench::new(&[world], &plan, kinds, &devices, Shape::CONTIGUOUS)?;
    sizes.iter().map(|&size| Ok(Duration::from_secs_f64(bench.run(size)? / 1e6))).collect()
}

impl Pingpong {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        if let Some(file) = &self.plot {
            plot::check_path(file)?;
        }
        let alone = self.btl.as_deref().is_some_and(|btl| btl.split(',').all(|name| name.trim() == "self"));
        self.refuse(alone)?;
        // With a stream, a thread moves messages while another one waits for the stream.
        let ranks = Ranks::Exactly(if alone { 1 } else { 2 });
        let job = Job { ranks, on_cores: self.stream.is_none() && self.threads == 1 };
        let joined = job::join(&self.parameters, self.btl.as_deref(), job)?;
        Ok(joined.play(|world| self.run_rank(world)))
    }

    /// Refuses what the tests without receives cannot do.
    fn refuse(&self, alone: bool) -> Result<(), Failure> {
        let without = self.test.without_receives();
        let what = match () {
            () if !self.test.has_layouts() && self.datatype.is_some() => "moves one run of bytes: leave --datatype out",
            () if without && alone => "needs two processes: leave --btl self out",
            () if self.check && !self.test.has_check() => "checks no data: leave --check out",
            () if self.threads > 1 && !self.test.has_threads() => "has one thread: leave --threads out",
            () if self.workers && !self.test.has_threads() => "has one thread: leave --workers out",
            () if self.stream.is_some() && self.test != Test::Latency => "has no streams: leave --stream out",
            () => return self.refuse_on_stream(alone),
        };
        let name = name(self.test);
        Err(Failure::usage(format!("the test {name} {what}")))
    }

    /// Refuses what a mode of streams cannot do.
    fn refuse_on_stream(&self, alone: bool) -> Result<(), Failure> {
        let Some(mode) = self.stream else { return Ok(()) };
        let what = match mode {
            _ if alone => "needs two processes: leave --btl self out",
            StreamMode::Host if self.check => "checks no data: leave --check out, or --stream=host",
            StreamMode::Put if self.datatype.is_some() => "moves one run of bytes: leave --datatype out",
            StreamMode::Late if self.kernel.is_some() => "runs no kernel: leave --kernel out",
            StreamMode::Graph if [self.src, self.dst] != [MemoryKind::Device; 2] => {
                "needs memory that the streams alone move: add --src device --dst device"
            }
            _ => return Ok(()),
        };
        let name = name(mode);
        Err(Failure::usage(format!("--stream={name} {what}")))
    }

    fn stream_plan(&self) -> Option<StreamPlan> {
        self.stream.map(|mode| StreamPlan {
            mode,
            steps: self.steps,
            kernel: self.kernel.map(|time| Duration::from_secs_f64(time / 1e6)),
            in_host_memory: [self.src, self.dst].iter().any(|kind| kind.in_host_memory()),
        })
    }

    fn run_rank(&self, world: &World) -> Result<(), Failure> {
        let plan = Plan {
            test: self.test,
            sizes: self.shape().round_up(&self.sizes.0),
            iterations: self.iterations,
            seconds: self.seconds,
            window: self.window,
            threads: self.threads,
            check: self.check,
            stream: self.stream_plan(),
        };
        let kinds = [self.src, self.dst];
        let used = if self.beside_devices || plan.stream.is_some() { [MemoryKind::Device; 2] } else { kinds };
        let devices = kind::devices(world, used, [Some(self.src_device), self.dst_device])?;
        let workers: Vec<World> = match self.workers {
            true => (0..self.threads).map(|_| world.worker()).collect::<Result<_, _>>()?,
            false => Vec::new(),
        };
        let worlds: Vec<&World> = if self.workers { workers.iter().collect() } else { vec![world] };
        let on = worlds[0].communicator();
        let transports = on.transports((on.rank() + 1) % on.size())?.join("+");
        let header = self.header(transports, &plan, &devices);
        let mut report = Report::new(self.format, header, plan.sizes.len(), world.rank() == 0);
        let in_use = Plan {
            test: Test::Latency,
            sizes: vec![IN_USE],
            iterations: Some(1),
            seconds: None,
            window: 1,
            threads: 1,
            check: false,
            stream: None,
        };
        let mut beside = None;
        if self.beside_devices {
            let both = Bench::new(&[world], &in_use, [MemoryKind::Device; 2], &devices, Shape::CONTIGUOUS)?;
            beside.insert(both).run(IN_USE)?;
        }
        let shapes = [self.shape_of(0), self.shape_of(1)];
        let mut bench = match plan.stream {
            None => Bench::new(&worlds, &plan, kinds, &devices, shapes)?,
            Some(stream) => {
                let (bytes, folders) = (plan.sizes.iter().copied().max().unwrap_or(0), self.parameters.libdirs());
                let setup = StreamSetup { plan: stream, kinds, devices: &devices, shapes, bytes, folders: &folders };
                Bench::on_stream(world, &plan, setup)?
            }
        };
        report.begin()?;
        for &size in &plan.sizes {
            report.measuring(size);
            let value = bench.run(size)?;
            let others = bench.figures().zip(plan.stream.as_ref()).map(|(figures, stream)| figures.values(stream));
            report.row(size, value, others.unwrap_or_default())?;
        }
        drop(beside);
        report.end();
        for counters in worlds.iter().map(|world| world.counters()) {
            log::info!(
                "{} copies by devices between the processes; {} bytes stored, {} fetched, {} sent as fragments",
                counters.device_direct.get(),
                counters.bytes_put.get(),
                counters.bytes_get.get(),
                counters.bytes_fragments.get()
            );
        }
        match &self.plot {
            Some(file) if world.rank() == 0 => plot::draw(file, &report),
            _ => Ok(()),
        }
    }

    fn shape(&self) -> Shape {
        self.datatype.as_ref().map_or(Shape::Contiguous, |blocks| Shape::Blocks(blocks.clone()))
    }

    /// Returns the layout of a rank's messages.
    fn shape_of(&self, rank: u32) -> Shape {
        let contiguous = match self.datatype_of {
            Sides::Both => false,
            Sides::Src => rank != 0,
            Sides::Dst => rank == 0,
        };
        if contiguous { Shape::Contiguous } else { self.shape() }
    }

    fn header(&self, btl: String, plan: &Plan, devices: &kind::Devices) -> Header {
        Header {
            test: plan.test,
            btl,
            kinds: [self.src, self.dst],
            devices: devices.index,
            simulated: devices.simulated,
            beside_devices: self.beside_devices,
            layout: self.datatype.as_ref().map(|layout| match self.datatype_of {
                Sides::Both => layout.to_string(),
                Sides::Src => format!("{layout} on rank 0"),
                Sides::Dst => format!("{layout} on rank 1"),
            }),
            window: plan.window,
            threads: plan.threads,
            workers: self.workers,
            check: plan.check,
            stream: plan.stream,
        }
    }
}
