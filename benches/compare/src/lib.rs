//! Compares Cableway with its peers in one run, for `cableway bench compare`. All programs use the same two cores and the
//! same sizes. They are measured in turn, several times, so that other load on the machine affects all of them.

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

use std::collections::BTreeSet;
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
    /// Number of times that every figure is measured; the median is printed
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,

    /// Approximate time of each measurement, in seconds
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,

    /// The two cores that the programs are bound to
    #[arg(long, value_name = "A,B", default_value = "0,1", value_parser = Place::parse)]
    cores: Place,

    /// Measure only these routes: host memory over a transport, or device memory
    #[arg(long, value_delimiter = ',', value_parser = route::ALL.map(|route| route.name), default_values = route::ALL.map(|route| route.name))]
    route: Vec<String>,

    /// Run only these tests
    #[arg(long, value_delimiter = ',', value_parser = plan::Test::ALL.map(plan::Test::name), default_values = plan::Test::ALL.map(plan::Test::name))]
    test: Vec<String>,

    /// Leave out these tests of these routes, as in sm:bandwidth
    #[arg(long, value_name = "ROUTE:TEST", value_delimiter = ',', value_parser = plan::parse_series)]
    skip: Vec<String>,

    /// Largest message size
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = plan::parse_size)]
    up_to: u64,

    /// Measure only these programs
    #[arg(long, value_delimiter = ',', value_parser = contender::PROGRAMS, default_values = contender::PROGRAMS)]
    program: Vec<String>,

    /// Write the report to this folder, named after the day and the kind of machine: .md, .csv, and .html with drawings.
    /// The files are updated after every figure, so that figures survive when the run is ended early
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,

    /// Print one JSON object per line instead of tables
    #[arg(long)]
    json: bool,

    /// End with an error where Cableway is slower than its best peer: where the 95 % interval of the ratio of their times
    /// lies above 1.05
    #[arg(long)]
    strict: bool,
}

impl Comparison {
    /// Measures and prints the figures. Programs missing on this machine are left out, with the reason.
    ///
    /// # Errors
    ///
    /// The report cannot be written, or with `--strict` a peer is faster.
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
                // The report is complete up to here if the run is ended early.
                self.keep(&report)?;
            }
            report.rounds.complete += 1;
            self.keep(&report)?;
            eprintln!("round {} took {:.1} s", round + 1, began.elapsed().as_secs_f64());
        }
        let of_hosts = report.plan.series.iter().map(|series| series.route).filter(|route| !route.on_device());
        let btls: BTreeSet<&str> = of_hosts.map(|route| route.btl).collect();
        if !btls.is_empty() {
            let remarks = contenders.iter().flat_map(|contender| contender.remarks(&btls));
            remarks.for_each(|remark| report.results.note(remark));
        }

        print!("{}", if self.json { report.json() } else { report.markdown() });
        if let Some(kept) = self.keep(&report)? {
            eprintln!("kept in {}.md, .csv and .html", kept.display());
        }
        match report.lost() {
            lost if self.strict && !lost.is_empty() => Err(Error::Lost(lost)),
            _ => Ok(()),
        }
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

    /// The folder of the report, if it is kept.
    fn keep(&self, report: &Report) -> Result<Option<PathBuf>, Error> {
        self.save.as_deref().map(|folder| report.save(folder)).transpose()
    }

    /// The programs that can run here, and the reasons why others cannot.
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

/// Names of programs or routes that are not measured, and the reasons.
type Absent = (String, String);

/// Lists the routes that need more devices than this machine has.
fn without_devices(plan: &Plan, devices: u32) -> Option<Absent> {
    let names: Vec<_> = plan.left_out.iter().map(|route| format!("{} ({})", route.name, route.devices())).collect();
    let reason = format!("they need as many devices as in brackets, and this machine has {devices}");
    (!names.is_empty()).then(|| (format!("routes {}", names.join(", ")), reason))
}

/// Measures one series with every program. The order changes with the round, so that no program always starts with warm
/// caches or a slow clock.
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

/// Measures one series with one program. If it fails, its figures of this round are missing; the others continue.
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
