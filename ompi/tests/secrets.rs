//! The secret of a job: random, the same in all processes, and published where only processes of the user can read it.
//! Without it processes accept no connection.

mod support;

use std::path::PathBuf;
use std::process::Command;

const RANKS: u32 = 2;
const SOCKETS: [&str; 3] = ["--mca", "pml_cableway_btl", "self,tcp"];

fn file(name: &str) -> PathBuf {
    support::scratch().join(format!("secret-{}-{name}", std::process::id()))
}

/// Returns the secret of a job under `mpirun` in hexadecimal digits.
fn secret_of_a_job(name: &str) -> String {
    let file = file(name);
    let path = file.to_str().expect("plain");
    support::finish(support::mpirun(RANKS).args(SOCKETS).arg(support::program("secret")).args([path, "shared"]))
        .assert_success();
    std::fs::read_to_string(file).expect("rank 0 has written it")
}

fn assert_random(one: &str, other: &str) {
    assert_eq!((one.len(), other.len()), (64, 64), "{one} {other}");
    let (bytes, others) = (one.as_bytes().chunks(2), other.as_bytes().chunks(2));
    let alike = bytes.zip(others).filter(|(one, other)| one == other).count();
    // This many equal bytes of 32 occur by chance once in 10^9 runs.
    assert!(alike < 7, "{one} {other}");
}

#[test]
fn each_job_has_a_random_secret() {
    assert_random(&secret_of_a_job("one"), &secret_of_a_job("other"));
}

/// Checks that no rank receives a message, and that the reason is logged.
fn no_message_passes(what: &str, options: &[&str], reason: &str) {
    let mut mpirun = support::mpirun(RANKS);
    // Open MPI would end the job if a process ends without MPI_Finalize.
    mpirun.arg("--enable-recovery").args(options);
    let path = file(what);
    let arguments = [path.to_str().expect("plain"), what];
    let (finished, said) = support::run_apart(&mut mpirun, RANKS, &support::program("secret"), &arguments);
    assert!(said.iter().all(|said| said.ends_with("done\n")), "{finished:?} {said:?}");
    assert!(said.iter().any(|said| said.contains(reason)), "{said:?}");
}

#[test]
fn without_a_secret_no_connection_is_made() {
    let reason = "the process has not published it; connections to this process are refused";
    no_message_passes("withheld", &SOCKETS, reason);
    no_message_passes("withheld", &["--mca", "pml_cableway_btl", "self,sm"], reason);
}

#[test]
fn with_another_secret_no_connection_is_made() {
    no_message_passes("falsified", &SOCKETS, "it does not know the job's secret");
}

/// Runs the program under Slurm. Without Slurm it prints the reason and returns `None`.
fn under_slurm(what: &str, name: &str) -> Option<support::Finished> {
    let path = support::singleton(&support::program("secret"));
    let mut slurm = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/slurm/run"));
    support::clean(&mut slurm);
    slurm.envs(path.get_envs().filter_map(|(name, value)| Some((name, value?))));
    slurm.env("OMPI_MCA_pml", "cableway").env("OMPI_MCA_pml_cableway_btl", "self,tcp");
    slurm.args(["srun", "--mpi=pmix", "-n", &RANKS.to_string(), "--overcommit"]);
    let finished = support::finish(slurm.arg(path.get_program()).arg(file(name)).arg(what));
    if finished.status.code() == Some(77) {
        support::skip(finished.stdout.lines().next_back().unwrap_or("no reason was given"));
        return None;
    }
    Some(finished)
}

#[test]
fn each_job_of_slurm_has_a_random_secret() {
    let secret = |name| {
        under_slurm("shared", name)?.assert_success();
        Some(std::fs::read_to_string(file(name)).expect("rank 0 has written it"))
    };
    if let (Some(one), Some(other)) = (secret("slurm-one"), secret("slurm-other")) {
        assert_random(&one, &other);
    }
}

#[test]
fn with_another_secret_no_connection_is_made_under_slurm() {
    if let Some(finished) = under_slurm("falsified", "slurm-falsified") {
        let finished = finished.assert_success();
        assert_eq!(finished.stderr.matches("done").count(), RANKS as usize, "{finished:?}");
        assert!(finished.stderr.contains("it does not know the job's secret"), "{finished:?}");
    }
}
