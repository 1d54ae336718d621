//! Prints Cableway's figures beside its peers', taken in one run: the same two cores, the same sizes, and every program
//! in turn, several times over, so that what else the machine does falls on all alike.
//!
//! `cargo run --release -p cableway-compare` on an idle machine; `--help` says what can be left out.

mod contender;
mod error;
mod goals;
mod machine;
mod plan;
mod process;
mod report;
mod statistics;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use contender::{Contender, Ours, Place};
use error::Error;
use plan::{Plan, Series};
use report::Results;

/// Cableway's figures beside its peers', taken in one run.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// How often every figure is taken; what is printed is the median
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,

    /// About how long each figure runs, in seconds
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,

    /// The two cores that the programs are bound to
    #[arg(long, value_name = "A,B", default_value = "0,1", value_parser = Place::parse)]
    cores: Place,

    /// Only these transports
    #[arg(long, value_delimiter = ',', default_values = ["sm", "tcp"])]
    btl: Vec<String>,

    /// Only these tests
    #[arg(long, value_delimiter = ',', default_values = ["latency", "message-rate", "bandwidth", "threaded-rate", "start"])]
    test: Vec<String>,

    /// Only these programs
    #[arg(long, value_delimiter = ',', default_values = ["cableway", "cableway-mpi", "ob1", "ucx"])]
    program: Vec<String>,

    /// The `cableway` to measure; built from this checkout where none is named
    #[arg(long, value_name = "FILE", env = "CABLEWAY_BIN")]
    cableway: Option<PathBuf>,

    /// The component for Open MPI to measure; built from this checkout where none is named
    #[arg(long, value_name = "FILE", env = "CABLEWAY_COMPONENT")]
    component: Option<PathBuf>,

    /// Keep the report under this folder, named after the day and the kind of machine
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,

    /// Print one JSON object a line in place of tables
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match compare(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cableway-compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> Result<(), Error> {
    let plan = Plan::new(options.seconds, &options.btl, &options.test);
    let (contenders, absent) = contenders(options);
    for (name, reason) in &absent {
        eprintln!("{name} is left out: {reason}");
    }

    let machine = machine::describe(&contenders);
    let mut results = Results::default();
    for round in 0..options.rounds as usize {
        for series in &plan.series {
            // Who comes first changes, so that nobody always inherits warm caches or a cold clock.
            for turn in 0..contenders.len() {
                let contender = &contenders[(round + turn) % contenders.len()];
                if contender.takes(series.test) {
                    take(contender.as_ref(), series, &plan, &mut results);
                }
            }
        }
        eprintln!("round {} of {} done", round + 1, options.rounds);
    }
    for contender in &contenders {
        contender.once(&mut results);
    }

    let shown = report::markdown(&machine, &plan, &contenders, &results, &absent);
    if options.json {
        print!("{}", report::json(&results));
    } else {
        print!("{shown}");
    }
    if let Some(folder) = &options.save {
        let file = report::save(folder, &machine, &shown)?;
        eprintln!("kept in {}", file.display());
    }
    Ok(())
}

/// A program's name, and why it is not measured.
type Absent = (String, String);

/// Who can run here, and who cannot and why.
fn contenders(options: &Options) -> (Vec<Box<dyn Contender>>, Vec<Absent>) {
    let mut present = Vec::new();
    let mut absent = Vec::new();
    let ours = Ours { command: options.cableway.clone(), component: options.component.clone() };
    for name in &options.program {
        match contender::find(name, options.cores, &ours) {
            Ok(found) => present.push(found),
            Err(reason) => absent.push((name.clone(), reason.to_string())),
        }
    }
    (present, absent)
}

/// One program's figures of one series. A program that fails loses this round's figures; the others go on.
fn take(contender: &dyn Contender, series: &Series, plan: &Plan, results: &mut Results) {
    match contender.measure(series, plan.seconds) {
        Ok(samples) => {
            for sample in samples {
                results.add(contender.name(), series, sample.size, sample.value);
            }
        }
        Err(error) => eprintln!("{}, {} over {}: {error}", contender.name(), series.test, series.btl),
    }
}
