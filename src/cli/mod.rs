//! The command line: its options and the errors for wrong ones.

mod bench;
mod collectives;
mod explain;
mod failure;
mod info;
mod job;
mod ompi;
mod output;
mod parameters;
mod pingpong;
mod rows;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub(crate) use failure::Failure;

/// GPU-aware messaging between processes.
#[derive(Parser)]
#[command(name = "cableway", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(run::Run),
    Pingpong(pingpong::Pingpong),
    Collectives(collectives::Collectives),
    Info(info::Info),
    Explain(explain::Explain),
    Bench(bench::Bench),
    Ompi(ompi::Ompi),
}

pub(crate) fn main() -> ExitCode {
    let command = Command::parse();
    log_to_stderr();
    let result = match command.verb {
        Verb::Run(run) => run.execute(),
        Verb::Bench(bench) => bench.execute(),
        Verb::Collectives(collectives) => collectives.execute(),
        Verb::Explain(explain) => explain.execute(),
        Verb::Info(info) => info.execute(),
        Verb::Ompi(ompi) => ompi.execute(),
        Verb::Pingpong(pingpong) => pingpong.execute(),
    };
    result.unwrap_or_else(Failure::report)
}

/// Logs to stderr as `CABLEWAY_LOG` says, in the format of `RUST_LOG`; warnings by default. Lines of a rank name it.
fn log_to_stderr() {
    use std::io::Write;
    let rank = ["CABLEWAY_JOB_RANK", "PMIX_RANK"].iter().find_map(|name| std::env::var(name).ok());
    let prefix = rank.map_or_else(|| "cableway".to_owned(), |rank| format!("cableway[{rank}]"));
    env_logger::Builder::from_env(env_logger::Env::new().filter_or("CABLEWAY_LOG", "warn"))
        .format(move |out, record| {
            let level = record.level().as_str().to_ascii_lowercase();
            writeln!(out, "{prefix}: {level}: {}", record.args())
        })
        .init();
}
