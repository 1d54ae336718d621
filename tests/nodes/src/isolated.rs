//! Tests that need a separate process.

use std::process::Command;

const CHILD: &str = "CABLEWAY_TEST_CHILD";

/// Runs the body of the calling test, given by its name, in a separate process with these variables, for example
/// because a driver reads them only once. Prints that process's output.
///
/// # Panics
/// The test fails in that process, or does not exist.
pub fn isolated(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        return body();
    }
    let here = std::env::current_exe().expect("this process has an executable");
    let mut command = Command::new(here);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, test);
    let output = command.envs(variables.iter().copied()).output().expect("it can be started again");
    let [said, complaints] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    // Indented, so that a result in it is not taken for a result of this run.
    said.lines().for_each(|line| println!("    {line}"));
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{test} in its own process with {variables:?}: {}\n{complaints}",
        output.status
    );
}
