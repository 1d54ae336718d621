//! The processes of a job, each on its own host, which communicate with the test by lines of text.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::role;
use crate::world::World;

pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    /// Starts ranks 0 and 1 and exchanges their cards.
    pub(crate) fn pair(world: &World, roles: [&str; 2], settings: &[&str]) -> Result<[Process; 2], String> {
        let mut pair = [0, 1].map(|rank| Process::start(&world.hosts[rank], rank, roles[rank], settings));
        for process in &mut pair {
            if let Err(error) = process {
                return Err(std::mem::take(error));
            }
        }
        let mut pair = pair.map(|process| process.unwrap_or_else(|error| panic!("{error}")));
        let mut cards = Vec::new();
        for process in &mut pair {
            cards.push(process.expect("card ", Duration::from_secs(30))?);
        }
        for (process, card) in pair.iter_mut().zip(cards.iter().rev()) {
            writeln!(process.input, "{card}").map_err(|error| error.to_string())?;
        }
        Ok(pair)
    }

    fn start(host: &str, rank: usize, role: &str, settings: &[&str]) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new("ip")
            .args(["netns", "exec", host])
            .arg(program)
            .env(role::VARIABLE, format!("{rank} {role}"))
            .env(role::SETTINGS, settings.join(";"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("ip netns exec: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a child without pipes".to_owned());
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Process { child, input, lines })
    }

    /// Waits for a line that begins with `beginning`. Returns the rest of it.
    pub(crate) fn expect(&mut self, beginning: &str, patience: Duration) -> Result<String, String> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|error| format!("no '{beginning}': {error}"))?;
            if let Some(rest) = line.strip_prefix(beginning) {
                return Ok(rest.to_owned());
            }
            if line.starts_with("error") {
                return Err(line);
            }
        }
    }

    /// Waits until the process reports that its peer failed. Returns the time from now until then.
    pub(crate) fn expect_failure(&mut self, patience: Duration) -> Result<Duration, String> {
        let start = Instant::now();
        self.expect("failed", patience)?;
        Ok(start.elapsed())
    }

    /// Kills the process by SIGKILL. `ip netns exec` has become the process itself.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
