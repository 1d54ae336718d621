//! The child processes of a test, and their communication with it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub(crate) const ROLE: &str = "CABLEWAY_TEST_ROLE";
pub(crate) const RANK: &str = "CABLEWAY_TEST_RANK";
/// Marks a child's messages to its parent among the test runner's own lines.
const MARK: &str = "child: ";

/// A child that runs one of the roles below.
pub(crate) struct Other {
    pub(crate) child: Child,
    output: BufReader<ChildStdout>,
    input: ChildStdin,
}

impl Other {
    pub(crate) fn start(rank: u32, role: &str, wrapper: &[&str]) -> Self {
        let exe = std::env::current_exe().unwrap();
        let mut words: Vec<_> = wrapper.iter().map(std::ffi::OsString::from).collect();
        words.push(exe.into());
        words.extend(["--exact", "a_child_process", "--nocapture", "--test-threads=1"].map(Into::into));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env(ROLE, role).env(RANK, rank.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (output, input) = (BufReader::new(child.stdout.take().unwrap()), child.stdin.take().unwrap());
        Other { child, output, input }
    }

    /// Returns its next message.
    pub(crate) fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child ended without a message");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim().to_owned();
            }
        }
    }

    pub(crate) fn card(&mut self) -> Vec<u8> {
        from_hex(&self.line())
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

pub(crate) fn say(line: &str) {
    println!("{MARK}{line}");
}

pub(crate) fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Limits this process to `most` descriptors.
pub(crate) fn limit_descriptors(most: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..getrlimit(Resource::Nofile) }).unwrap();
}

/// Drops all privileges. The kernel then also denies other processes of this user to attach.
pub(crate) fn become_nobody() {
    // SAFETY: plain system calls.
    unsafe {
        assert_eq!(libc::setresgid(65534, 65534, 65534), 0);
        assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
    }
}
