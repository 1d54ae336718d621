//! The communicators with collective operations.

use std::sync::{Arc, Weak};

use cableway_coll::{Agreement, Group};
use cableway_pml::Communicator;
use parking_lot::Mutex;

/// The collective operations of one communicator.
pub(crate) struct Members {
    pub(super) group: Group,
    pub(super) on: Arc<Communicator>,
    pub(super) agreement: Mutex<Agreement>,
}

/// All communicators with collective operations.
pub(super) static ALL: Mutex<Vec<Weak<Members>>> = Mutex::new(Vec::new());
