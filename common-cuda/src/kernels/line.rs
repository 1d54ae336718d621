//! The jobs of a stream, which follow each other.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::job::{Job, Words};

/// The streams of jobs that may be revoked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Track {
    /// Between devices, and to and from the host.
    #[default]
    Common,
    /// Within a device. These jobs wait for nobody else's memory, so they run beside the others.
    WithinDevice,
}

impl Track {
    pub(super) const ALL: [Track; 2] = [Track::Common, Track::WithinDevice];
}

/// The slots and numbers of the jobs that were launched in a stream, in its order. The first ones may have ended.
pub(super) struct Line {
    jobs: VecDeque<(usize, u32)>,
    /// When the first job was found to be the first.
    first_since: Instant,
}

impl Line {
    pub(super) fn new() -> Line {
        Line { jobs: VecDeque::new(), first_since: Instant::now() }
    }

    /// Records that a job is in the stream.
    pub(super) fn launched(&mut self, words: &Words, job: &Job) {
        self.advance(words);
        if self.jobs.is_empty() {
            self.first_since = Instant::now();
        }
        self.jobs.push_back(job.name());
    }

    /// Checks whether the first unfinished job has waited this long for room on the device. Jobs behind it wait for its
    /// end, with or without room.
    pub(super) fn stalled(&mut self, words: &Words, patience: Duration) -> bool {
        self.advance(words);
        let waits = self.jobs.front().is_some_and(|&job| !words.has_started(job));
        waits && self.first_since.elapsed() > patience
    }

    fn advance(&mut self, words: &Words) {
        while let Some(&job) = self.jobs.front() {
            if !words.has_ended(job) {
                break;
            }
            self.jobs.pop_front();
            self.first_since = Instant::now();
        }
    }
}
