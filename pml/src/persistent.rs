//! Operations that are described once and started many times.

use std::sync::Arc;

use crate::communicator::Communicator;
use crate::send::SendMode;

/// What a persistent request does at each start.
pub(crate) struct Operation {
    pub(crate) communicator: Arc<Communicator>,
    pub(crate) peer: i32,
    pub(crate) tag: i32,
    pub(crate) action: Action,
}

pub(crate) enum Action {
    Send(SendMode),
    Receive,
}
