//! Handles the device's asynchronous events.

use std::sync::Arc;

use cableway_btl::Error;

use crate::NAME;
use crate::shared::Shared;
use crate::verbs::Event;

/// Passes failures on to progress. Returns true if the datagram queue pair may have failed.
pub(crate) fn hear(shared: &Shared, event: &Event) -> bool {
    let name = &shared.port.context.name;
    // `enum ibv_event_type`.
    match (event.kind, event.queue_pair) {
        (1..=3, Some(number)) => {
            let Some(inbound) = shared.directory.read().by_number.get(&number).map(Arc::clone) else {
                return number == shared.address.datagrams;
            };
            let link = Arc::clone(&inbound.link);
            let error = match event.kind {
                1 => link.error("its queue pair here failed"),
                _ => {
                    let reason = "it accessed memory without permission".to_owned();
                    Error::Malformed { btl: NAME, peer: link.rank, reason }
                }
            };
            shared.notices.post(|notices| notices.failures.push((link, error)));
        }
        (0 | 8 | 14, _) => {
            let reason = match event.kind {
                0 => "a completion queue overflowed",
                8 => "it reports a fatal error",
                _ => "the shared receive queue failed",
            };
            shared.notices.post(|notices| notices.device = Some(reason.to_owned()));
        }
        // Connections survive a short port outage; a long one breaks them with an error completion.
        (9, _) => log::info!("{NAME}: {name}: a port is up"),
        (10, _) => log::warn!("{NAME}: {name}: a port is down"),
        (kind, _) => log::debug!("{NAME}: {name}: event {kind}"),
    }
    false
}
