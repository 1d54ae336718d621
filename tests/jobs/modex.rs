//! The modex: ranks find each other through the built-in launcher or through PMIx, or run alone.

use std::error::Error;
use std::process::Command;

use cableway::StartedBy;

use crate::support::{Role, Test, finish, job, role_job, skip, this};

pub(crate) const TESTS: &[Test] = &[
    ("modex::the_built_in_launcher_exchanges_values", built_in_exchanges_values),
    ("modex::pmix_exchanges_values", pmix_exchanges_values),
    ("modex::srun_exchanges_values", srun_exchanges_values),
    ("modex::tasks_without_pmix_get_an_explanation", tasks_without_pmix_get_an_explanation),
    ("modex::a_single_process_is_a_job_of_one", a_single_process_is_a_job_of_one),
    ("modex::a_rank_that_dies_before_the_fence_is_an_error", a_rank_that_dies_before_the_fence_is_an_error),
    ("modex::a_missing_socket_is_named_in_the_error", a_missing_socket_is_named_in_the_error),
];

pub(crate) const ROLES: &[Role] = &[("exchange", exchange), ("fence", fence), ("die_before_fence", die_before_fence)];

/// Publishes, fences and reads the values of all ranks. Prints the launcher, the size and the secret.
fn exchange() -> Result<(), Box<dyn Error>> {
    let started_by = StartedBy::detect();
    let modex = started_by.join()?;
    let job = modex.job();
    let shared = job.secret_for(job.rank).ok_or("the job has no secret")?;
    let secret: String = shared.iter().map(|byte| format!("{byte:02x}")).collect();
    for file in ["environ", "cmdline"] {
        let content = std::fs::read(format!("/proc/self/{file}"))?;
        if content.windows(32).any(|window| window == shared) || String::from_utf8_lossy(&content).contains(&secret) {
            return Err(format!("the job's secret is in /proc/self/{file}").into());
        }
    }
    for round in 0..2 {
        modex.put(&format!("card{round}"), &vec![job.rank as u8 ^ round; 5000])?;
        modex.fence()?;
        for peer in 0..job.size {
            let card = modex.get(peer, &format!("card{round}"))?;
            if card != Some(vec![peer as u8 ^ round; 5000]) {
                return Err(format!("rank {peer}'s card is wrong in round {round}: {card:?}").into());
            }
        }
    }
    if modex.get(job.rank, "nothing")?.is_some() {
        return Err("there is a value that nobody published".into());
    }
    if started_by != StartedBy::Nobody && started_by.join().is_ok() {
        return Err("a process joined twice".into());
    }
    println!("{started_by:?} {} {} {secret} {}", job.size, job.local_size, job.id);
    Ok(())
}

fn fence() -> Result<(), Box<dyn Error>> {
    Ok(StartedBy::detect().join()?.fence()?)
}

fn die_before_fence() -> Result<(), Box<dyn Error>> {
    let modex = StartedBy::detect().join()?;
    if modex.job().rank == 1 {
        std::process::abort();
    }
    Ok(modex.fence()?)
}

fn one_line_for_all(output: &str, ranks: usize) -> String {
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(lines.len(), ranks, "{output}");
    assert!(lines.iter().all(|line| *line == lines[0]), "{output}");
    lines[0].to_owned()
}

fn built_in_exchanges_values() {
    let finished = finish(&mut role_job(8, &[], "exchange")).assert_success();
    assert!(one_line_for_all(&finished.stdout, 8).starts_with("Cableway 8 8 "), "{finished:?}");
    let again = finish(&mut role_job(8, &[], "exchange")).assert_success();
    assert_ne!(finished.stdout.lines().next(), again.stdout.lines().next(), "two jobs have one secret");
}

fn pmix_exchanges_values() {
    let mut mpirun = Command::new("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-np", "3"]).args(this("exchange"));
    if Command::new("mpirun").arg("--version").output().is_err() {
        return skip("mpirun is not installed, so that PMIx is not tested");
    }
    let finished = finish(&mut mpirun).assert_success();
    assert!(one_line_for_all(&finished.stdout, 3).starts_with("Pmix 3 3 "), "{finished:?}");
}

fn srun_exchanges_values() {
    let slurm = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/slurm/run");
    let finished =
        finish(Command::new(slurm).args(["srun", "--mpi=pmix", "-n", "3", "--overcommit"]).args(this("exchange")));
    if finished.code() == 77 {
        return skip(finished.stdout.lines().next_back().unwrap_or("no reason was given"));
    }
    let finished = finished.assert_success();
    assert!(one_line_for_all(&finished.stdout, 3).starts_with("Pmix 3 3 "), "{finished:?}");
}

fn tasks_without_pmix_get_an_explanation() {
    let [program, role] = this("exchange");
    let mut command = Command::new(program);
    let finished = finish(command.arg(role).env("SLURM_STEP_NUM_TASKS", "2"));
    assert_ne!(finished.code(), 0);
    assert!(finished.stderr.contains("srun --mpi=pmix"), "{finished:?}");
}

fn a_single_process_is_a_job_of_one() {
    let [program, role] = this("exchange");
    let finished = finish(Command::new(program).arg(role)).assert_success();
    assert!(finished.stdout.starts_with("Nobody 1 1 "), "{finished:?}");
}

fn a_rank_that_dies_before_the_fence_is_an_error() {
    let finished = finish(&mut role_job(3, &["--keep-going"], "die_before_fence"));
    assert_eq!(finished.code(), 128 + 6);
    let told = ["rank 1 left the job", "rank 1 ended ("].map(|text| finished.stderr.matches(text).count());
    assert_eq!(told.iter().sum::<usize>(), 2, "{finished:?}");
}

fn a_missing_socket_is_named_in_the_error() {
    let [program, role] = this("fence");
    let finished = finish(job(1, &[]).args(["env", "CABLEWAY_JOB_SOCKET=3:1", &program, &role]));
    assert_eq!(finished.code(), 1);
    assert!(finished.stderr.contains("did not reach this process"), "{finished:?}");
}
