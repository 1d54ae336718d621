//! Prints Cableway's figures beside its peers', taken in one run: the same two cores, the same sizes, and every program
//! in turn, several times over, so that what else the machine does falls on all alike. `cableway bench compare` is it.

pub mod axis;
mod contender;
mod error;
mod goals;
mod machine;
mod plan;
mod process;
mod report;
mod route;
mod statistics;
mod subject;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use contender::{Contender, Place};
use plan::{Plan, Series, Wanted};
use report::{Report, Results, Rounds};

pub use error::Error;
pub use subject::Subject;

/// The options of a comparison.
#[derive(Args)]
pub struct Comparison {
    /// How often every figure is taken; what is printed is the median
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,

    /// About how long each figure runs, in seconds
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,

    /// The two cores that the programs are bound to
    #[arg(long, value_name = "A,B", default_value = "0,1", value_parser = Place::parse)]
    cores: Place,

    /// Only these routes: host memory over a transport, or device memory
    #[arg(long, value_delimiter = ',', value_parser = route::ALL.map(|route| route.name), default_values = route::ALL.map(|route| route.name))]
    route: Vec<String>,

    /// Only these tests
    #[arg(long, value_delimiter = ',', default_values = ["latency", "message-rate", "bandwidth", "threaded-rate", "start"])]
    test: Vec<String>,

    /// Leave out these tests of these routes, as in sm:bandwidth
    #[arg(long, value_name = "ROUTE:TEST", value_delimiter = ',', value_parser = plan::parse_series)]
    skip: Vec<String>,

    /// Only messages of up to so many bytes
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = plan::parse_size)]
    up_to: u64,

    /// Only these programs
    #[arg(long, value_delimiter = ',', value_parser = contender::PROGRAMS, default_values = contender::PROGRAMS)]
    program: Vec<String>,

    /// Keep the report in this folder, named after the day and the kind of machine: .md, .csv, and .html with drawings. It
    /// is brought up to date as figures come, so that ending the run early loses only those to come
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,

    /// Print one JSON object a line in place of tables
    #[arg(long)]
    json: bool,
}

impl Comparison {
    /// Measures and prints. Programs that this machine does not have are left out, with the reason.
    ///
    /// # Errors
    ///
    /// The report cannot be kept.
    pub fn execute(&self, subject: &Subject) -> Result<(), Error> {
        let plan = Plan::new(&self.wanted(), subject.devices);
        let (contenders, mut absent) = self.contenders(subject);
        absent.extend(without_devices(&plan, subject.devices));
        for (name, reason) in &absent {
            eprintln!("{name}: left out, {reason}");
        }

        let mut report = Report {
            machine: machine::describe(&contenders, subject),
            plan,
            programs: contenders.iter().map(|contender| contender.name()).collect(),
            results: Results::default(),
            absent,
            rounds: Rounds { complete: 0, wanted: self.rounds },
        };
        for round in 0..self.rounds {
            let began = Instant::now();
            for series in &report.plan.series {
                measure(series, round, &contenders, &report.plan, &mut report.results);
                // Whoever ends this early has what was taken until then.
                self.keep(&report)?;
            }
            report.rounds.complete += 1;
            self.keep(&report)?;
            eprintln!("round {} took {:.1} s", round + 1, began.elapsed().as_secs_f64());
        }
        if report.plan.series.iter().any(|series| !series.route.on_device()) {
            contenders.iter().flat_map(|contender| contender.remarks()).for_each(|remark| report.results.note(remark));
        }

        print!("{}", if self.json { report.json() } else { report.markdown() });
        if let Some(kept) = self.keep(&report)? {
            eprintln!("kept in {}.md, .csv and .html", kept.display());
        }
        Ok(())
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            seconds: self.seconds,
            routes: self.route.clone(),
            tests: self.test.clone(),
            skipped: self.skip.clone(),
            up_to: self.up_to,
        }
    }

    /// Where, if it is to be kept.
    fn keep(&self, report: &Report) -> Result<Option<PathBuf>, Error> {
        self.save.as_deref().map(|folder| report.save(folder)).transpose()
    }

    /// Who can run here, and who cannot and why.
    fn contenders(&self, subject: &Subject) -> (Vec<Box<dyn Contender>>, Vec<Absent>) {
        let mut present = Vec::new();
        let mut absent = Vec::new();
        for name in &self.program {
            match contender::find(name, self.cores, subject) {
                Ok(found) => present.push(found),
                Err(reason) => absent.push((name.clone(), reason.to_string())),
            }
        }
        (present, absent)
    }
}

/// Programs or routes by name, and why they are not measured.
type Absent = (String, String);

/// The routes that this machine has too few devices for.
fn without_devices(plan: &Plan, devices: u32) -> Option<Absent> {
    let names: Vec<_> = plan.left_out.iter().map(|route| format!("{} ({})", route.name, route.devices())).collect();
    let reason = format!("they take as many devices as in brackets, and there are {devices}");
    (!names.is_empty()).then(|| (format!("routes {}", names.join(", ")), reason))
}

/// Every program's figures of one series. Who comes first changes with the round, so that nobody always inherits warm
/// caches or a cold clock.
fn measure(series: &Series, round: u32, contenders: &[Box<dyn Contender>], plan: &Plan, results: &mut Results) {
    for turn in 0..contenders.len() {
        let contender = &contenders[(round as usize + turn) % contenders.len()];
        if contender.takes(series) {
            let began = Instant::now();
            take(contender.as_ref(), series, plan, results);
            let (route, test, taken) = (series.route.name, series.test, began.elapsed().as_secs_f64());
            eprintln!("round {}, {route} {test}: {} took {taken:.1} s", round + 1, contender.name());
        }
    }
}

/// One program's figures of one series. A program that fails loses this round's figures; the others go on.
fn take(contender: &dyn Contender, series: &Series, plan: &Plan, results: &mut Results) {
    match contender.measure(series, plan.seconds) {
        Ok(samples) => {
            for sample in samples {
                results.add(contender.name(), series, sample.size, sample.value);
            }
        }
        Err(error) => eprintln!("{}, {} over {}: {error}", contender.name(), series.test, series.route.name),
    }
}
