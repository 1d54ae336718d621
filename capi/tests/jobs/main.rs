//! C and C++ programs as jobs. The machine's compiler builds the files of `tests/programs` against the header and the
//! library, and this executable starts them, as `cableway run` does.

mod header;
mod programs;
mod support;

use libtest_mimic::{Arguments, Trial};

fn main() -> std::process::ExitCode {
    if std::env::args().nth(1).is_some_and(|first| first == support::LAUNCH) {
        return support::launch();
    }
    let tests = header::TESTS.iter().chain(programs::TESTS);
    let trials = tests.map(|&(name, test)| Trial::test(name, move || support::run(test)));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
