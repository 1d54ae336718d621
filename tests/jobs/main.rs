//! Jobs of several processes, as users start them. The ranks are this executable with the argument `role=NAME`, so that
//! it can be copied to another machine together with `cableway`.

mod active;
mod cli;
mod collectives;
mod device;
mod device_copy;
mod device_costs;
mod device_direct;
mod device_memory;
mod device_programs;
mod device_shapes;
mod device_shared;
mod driver_calls;
mod failover;
mod faults;
mod forks;
mod huge;
mod launcher;
mod leaving;
mod library;
mod mixed;
mod modex;
mod ompi;
mod one_sided;
mod pingpong;
mod streams;
mod support;
mod workers;

use libtest_mimic::{Arguments, Trial};

fn main() -> std::process::ExitCode {
    if let Some(role) = std::env::args().nth(1).and_then(|first| first.strip_prefix("role=").map(str::to_owned)) {
        return support::play(
            &role,
            &[
                active::ROLES,
                modex::ROLES,
                library::ROLES,
                collectives::ROLES,
                device::ROLES,
                device_copy::ROLES,
                device_memory::ROLES,
                device_programs::ROLES,
                device_shapes::ROLES,
                failover::ROLES,
                faults::ROLES,
                forks::ROLES,
                leaving::ROLES,
                mixed::ROLES,
                huge::ROLES,
                one_sided::ROLES,
                streams::ROLES,
                workers::ROLES,
            ]
            .concat(),
        );
    }
    let tests = [
        active::TESTS,
        launcher::TESTS,
        modex::TESTS,
        cli::TESTS,
        library::TESTS,
        collectives::TESTS,
        device::TESTS,
        device_copy::TESTS,
        device_costs::TESTS,
        device_direct::TESTS,
        device_memory::TESTS,
        device_programs::TESTS,
        device_shapes::TESTS,
        device_shared::TESTS,
        failover::TESTS,
        faults::TESTS,
        forks::TESTS,
        leaving::TESTS,
        mixed::TESTS,
        huge::TESTS,
        one_sided::TESTS,
        streams::TESTS,
        streams::command::TESTS,
        pingpong::TESTS,
        workers::TESTS,
        ompi::TESTS,
    ];
    let trials = tests.into_iter().flatten().map(|&(name, test)| Trial::test(name, move || support::run(test)));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
