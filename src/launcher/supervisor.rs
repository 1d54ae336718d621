//! The supervisor of a job: starts its ranks, then handles signals, requests of ranks and ranks that end.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::output::Tagger;
use super::rank::{self, RankProcess, Started, exit_code};
use super::server::Server;
use super::signals::Signals;
use super::watcher::Watcher;
use super::{LaunchError, Launcher};

/// The signal that ends ranks first.
const ENDING: [Signal; 2] = [Signal::TERM, Signal::KILL];

impl Launcher {
    /// Runs the job until all ranks have ended and returns its exit code. Handles this process's signals meanwhile.
    ///
    /// # Errors
    /// A rank cannot be started, or a system call fails. The other ranks are then ended.
    pub fn run(&self) -> Result<u8, LaunchError> {
        let watcher = Watcher::start(self.ranks as usize).map_err(LaunchError::system("starting a watcher"))?;
        let mut signals = Signals::listen().map_err(LaunchError::system("listening for signals"))?;
        let (mut job, tagger) = Supervisor::start(self, watcher)?;
        while job.ranks.iter().any(RankProcess::running) {
            job.wait(&signals)?;
            for signal in signals.take() {
                job.signalled(signal)?;
            }
            job.enforce_deadline();
        }
        if let Some(tagger) = tagger {
            tagger.finish();
        }
        Ok(job.failure.map_or(0, |failure| failure.exit_code))
    }
}

struct Supervisor<'a> {
    launcher: &'a Launcher,
    server: Server,
    ranks: Vec<RankProcess>,
    watcher: Watcher,
    /// The first rank that failed.
    failure: Option<Failure>,
    /// The time at which ranks that got SIGTERM are killed.
    deadline: Option<Instant>,
    /// The number of SIGINTs and SIGTERMs so far.
    interrupts: u32,
}

struct Failure {
    exit_code: u8,
    /// The number of ranks that had left the job before.
    departures: usize,
}

impl<'a> Supervisor<'a> {
    fn start(launcher: &'a Launcher, watcher: Watcher) -> Result<(Self, Option<Tagger>), LaunchError> {
        let places = launcher.bind.places(launcher.ranks).map_err(LaunchError::system("reading the processors"))?;
        let (mut ranks, mut sockets, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, place) in (0..).zip(places) {
            let program = || launcher.program.to_string_lossy().into_owned();
            let Started { process, socket, output } = rank::start(launcher, &watcher, rank, place)
                .map_err(|source| LaunchError::Start { rank, program: program(), source })?;
            ranks.push(process);
            sockets.push(socket);
            outputs.extend(output);
        }
        let server = Server::new(sockets).map_err(LaunchError::system("serving the ranks"))?;
        let tagger = match outputs.is_empty() {
            true => None,
            false => Some(Tagger::start(outputs).map_err(LaunchError::system("passing on output"))?),
        };
        let job = Supervisor { launcher, server, ranks, watcher, failure: None, deadline: None, interrupts: 0 };
        Ok((job, tagger))
    }

    /// Waits for an event, and answers requests of ranks.
    fn wait(&mut self, signals: &Signals) -> Result<(), LaunchError> {
        let interests: Vec<_> = self.server.interests().collect();
        let mut fds = vec![PollFd::from_borrowed_fd(signals.readiness(), PollFlags::IN)];
        fds.extend(interests.iter().map(|&(_, fd, events)| PollFd::from_borrowed_fd(fd, events)));
        let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        // A deadline too far away for the system call counts as none.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(LaunchError::System { what: "waiting for the ranks", source: error.into() }),
        }
        let ready: Vec<_> = interests
            .iter()
            .zip(&fds[1..])
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(&(rank, ..), _)| rank)
            .collect();
        for rank in ready {
            self.server.serve(rank);
        }
        Ok(())
    }

    fn signalled(&mut self, signal: Signal) -> Result<(), LaunchError> {
        match signal {
            Signal::CHILD => self.reap()?,
            Signal::INT | Signal::TERM => {
                self.interrupts += 1;
                self.signal_all(if self.interrupts == 1 { signal } else { Signal::KILL });
            }
            Signal::TSTP => {
                self.signal_all(Signal::TSTP);
                let stopped = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
                stopped.map_err(|error| LaunchError::System { what: "stopping", source: error.into() })?;
            }
            other => self.signal_all(other),
        }
        Ok(())
    }

    fn signal_all(&self, signal: Signal) {
        for rank in &self.ranks {
            rank.signal(signal);
        }
    }

    fn reap(&mut self) -> Result<(), LaunchError> {
        let mut ended = Vec::new();
        for (number, rank) in (0..).zip(&mut self.ranks) {
            if let Some(status) = rank.reap().map_err(LaunchError::system("waiting for a rank"))? {
                self.watcher.end(rank.pid());
                ended.push((number, status));
            }
        }
        // Of several ranks that ended at once, a killed one is more likely to have caused the end of the others.
        ended.sort_by_key(|(_, status)| status.signal().is_none());
        for (rank, status) in ended {
            // Read its last requests before marking it as gone.
            self.server.serve(rank);
            self.server.left(rank, &format!("ended ({})", describe(status)));
            if !status.success() {
                self.failed(rank, status);
            }
        }
        Ok(())
    }

    fn failed(&mut self, rank: u32, status: ExitStatus) {
        let departures = self.server.departures_before(rank);
        let first = self.failure.is_none();
        if let Some(failure) = &self.failure {
            let ended_by_us = status.signal().is_some_and(|signal| ENDING.iter().any(|ours| ours.as_raw() == signal));
            if failure.departures < departures || ended_by_us {
                return;
            }
        }
        self.failure = Some(Failure { exit_code: exit_code(status), departures });
        let others = self.ranks.iter().any(RankProcess::running);
        let interrupted = self.interrupts > 0;
        if !interrupted {
            let consequence = match (first && others, self.launcher.keep_going) {
                (false, _) => "",
                (true, true) => "; the others continue",
                (true, false) => "; the others are ended",
            };
            log::error!("rank {rank} of {} ended: {}{consequence}", self.ranks.len(), describe(status));
        }
        if first && others && !self.launcher.keep_going {
            // After an interrupt the user knows why ranks end.
            if !interrupted {
                self.signal_all(Signal::TERM);
            }
            // A stopped process handles a signal only after it continues.
            self.signal_all(Signal::CONT);
            self.deadline = Instant::now().checked_add(self.launcher.grace);
        }
    }

    fn enforce_deadline(&mut self) {
        if self.deadline.is_some_and(|at| at <= Instant::now()) {
            self.deadline = None;
            self.signal_all(Signal::KILL);
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => match Signal::from_named_raw(signal).and_then(name) {
            Some(name) => format!("killed by {name}"),
            None => format!("killed by signal {signal}"),
        },
        None => format!("exit code {}", exit_code(status)),
    }
}

/// Returns the name of a signal that commonly ends processes.
fn name(signal: Signal) -> Option<&'static str> {
    Some(match signal {
        Signal::INT => "SIGINT",
        Signal::TERM => "SIGTERM",
        Signal::KILL => "SIGKILL",
        Signal::SEGV => "SIGSEGV (segmentation fault)",
        Signal::BUS => "SIGBUS (bus error)",
        Signal::ABORT => "SIGABRT",
        Signal::FPE => "SIGFPE",
        Signal::ILL => "SIGILL (illegal instruction)",
        Signal::PIPE => "SIGPIPE",
        Signal::HUP => "SIGHUP",
        _ => return None,
    })
}
