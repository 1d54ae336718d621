//! What the steps of an operation are executed with.

use cableway_pml::Communicator;

use super::shared::Collectives;
use super::site::Site;
use crate::plan::Plan;
use crate::slots::Turn;

/// What an operation's steps are executed with.
#[derive(Clone, Copy)]
pub(super) struct Scene<'s> {
    pub(super) shared: &'s Collectives,
    pub(super) on: &'s Communicator,
    pub(super) site: Site,
    pub(super) plan: &'s Plan,
    /// For an exchange through slots.
    pub(super) turn: Option<&'s Turn>,
}
