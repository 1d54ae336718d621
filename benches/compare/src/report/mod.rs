//! The figures for people (Markdown, a page with drawings) and for programs (CSV, JSON).

mod drawing;
mod formats;
mod page;
mod results;
mod standing;
mod tables;

use std::fmt;

use crate::machine::Machine;
use crate::plan::Plan;

pub(crate) use results::Results;

impl Report {
    /// Returns the figures at which a peer is faster beyond the noise, for people.
    pub(crate) fn lost(&self) -> Vec<String> {
        standing::lost(&standing::rows(&self.plan, &self.results))
    }
}

/// Everything that a report is made of.
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) plan: Plan,
    /// In the order of the columns.
    pub(crate) programs: Vec<&'static str>,
    pub(crate) results: Results,
    /// Program or routes, and why that was not measured.
    pub(crate) absent: Vec<(String, String)>,
    pub(crate) rounds: Rounds,
}

/// How often everything was measured so far.
pub(crate) struct Rounds {
    pub(crate) complete: u32,
    pub(crate) wanted: u32,
}

impl fmt::Display for Rounds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rounds { complete, wanted } = self;
        if complete == wanted { write!(out, "{wanted}") } else { write!(out, "{complete} of {wanted} are complete") }
    }
}
