//! Tests that need a process of their own.

use std::process::Command;

const CHILD: &str = "CABLEWAY_TEST_CHILD";

/// Runs the body of the calling test, whose name is given, in a process of its own with these variables: what a driver
/// reads once, say. What that process prints is printed.
///
/// # Panics
/// It fails there, or there is no such test.
pub fn isolated(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        return body();
    }
    let here = std::env::current_exe().expect("this process has an executable");
    let mut command = Command::new(here);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, test);
    let output = command.envs(variables.iter().copied()).output().expect("it can be started again");
    let [said, complaints] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    // Further in, so that nobody takes its result for one of a test of ours.
    said.lines().for_each(|line| println!("    {line}"));
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{test} in its own process with {variables:?}: {}\n{complaints}",
        output.status
    );
}
