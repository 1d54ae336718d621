//! The active side: sends connection requests.

use std::sync::Arc;

use cableway_base::Rank;
use cableway_btl::Error;

use super::super::private_data::{CmMessage, Kind, PRIVATE_DATA, PrivateData};
use super::super::role::ConnectRole;
use super::{RdmacmConnector, aside, request_error};
use crate::link::Link;
use crate::verbs::{Id, Param, Reads};

impl RdmacmConnector {
    fn patience_ms(&self) -> i32 {
        i32::try_from(self.common.shared.settings.peer_timeout.as_millis()).unwrap_or(i32::MAX)
    }

    /// Starts to resolve the peer's address.
    pub(super) fn start(&mut self, link: &Arc<Link>) -> Result<(), Error> {
        let Some(address) = *link.address.lock() else { return Ok(()) };
        let Some(to) = address.listener else {
            return Err(link.unreachable("it published no listening address".to_owned()));
        };
        let end = self.common.begin(link, Some(&address))?;
        let (events, own) = (&self.listener.events, self.listener.address().ip());
        let service = self.common.shared.settings.type_of_service(self.common.shared.address.kind);
        let id = match Id::resolve(events, own, to, service, self.patience_ms()) {
            Ok(id) => id,
            Err(error) => {
                self.common.forget(end);
                return Err(link.unreachable(format!("cannot resolve its address {to}: {error}")));
            }
        };
        let decides = self.common.shared.identity.decides(link.rank);
        let asking = (ConnectRole::active(decides), Vec::new(), None);
        self.insert(link, asking, id, Some(end));
        Ok(())
    }

    pub(super) fn resolved(&self, rank: Rank) -> Result<(), String> {
        let id = self.pending.get(&rank).and_then(|pending| pending.id.as_ref());
        let route = id.map_or(Ok(()), |id| id.resolve_route(self.patience_ms()));
        route.map_err(|error| format!("no route leads to its address: {error}"))
    }

    pub(super) fn send_request(&mut self, rank: Rank) -> Result<(), String> {
        let shared = &self.common.shared;
        let Some(pending) = self.pending.get_mut(&rank) else { return Ok(()) };
        let (Some(id), Some(end)) = (&pending.id, &pending.end) else { return Ok(()) };
        let Some(address) = *pending.link.address.lock() else { return Ok(()) };
        self.number += 1;
        let private_data = PrivateData { number: self.number, ..shared.private_data(Kind::Request, end) };
        let request = private_data.encode(&shared.identity, rank, CmMessage::Request { card: &address.publish() })?;
        pending.request = request.to_vec();
        let (number, reads, retries) = (end.number(), shared.port.reads, shared.settings.retries);
        let ask = move |id: &Id| id.connect(&Param { private_data: &request, number, reads, retries });
        if !shared.port.context.is_iwarp() {
            return ask(id).map_err(|error| request_error(&error));
        }
        // Keep the queue pair while the kernel may still connect it.
        let (id, kept, shared) = (Arc::clone(id), end.keep(), Arc::downgrade(shared));
        let failed_requests = Arc::clone(&self.failed_requests);
        let put = move || {
            if let Err(error) = ask(&id) {
                failed_requests.lock().push((id, error));
                if let Some(shared) = shared.upgrade() {
                    shared.command_queue.wake();
                }
            }
            drop(kept);
        };
        aside(put).map_err(|error| request_error(&error))
    }

    /// Handles the peer's acceptance. `reads` is given if this process connects the queue pair itself.
    pub(super) fn answered(&mut self, rank: Rank, said: &[u8], reads: Option<Reads>) -> Result<(), String> {
        let shared = &self.common.shared;
        let Some(pending) = self.pending.get_mut(&rank) else { return Ok(()) };
        let (Some(id), Some(end)) = (&pending.id, &pending.end) else { return Ok(()) };
        let part = CmMessage::Reply { request: &pending.request };
        let (from, theirs) = PrivateData::decode(&shared.identity, said, part)
            .map_err(|reason| format!("its reply is invalid: {reason}"))?;
        if from != rank || theirs.kind != Kind::Accept {
            return Err(format!("its reply comes from rank {from} with kind {:?}", theirs.kind));
        }
        pending.link.address.lock().map_or(Ok(()), |address| address.is_kept_by(theirs.size))?;
        if let Some(reads) = reads {
            shared.connect(end, id, reads)?;
            id.establish().map_err(|error| format!("cannot confirm the connection: {error}"))?;
        } else {
            let words = [&pending.request[..], &said[..PRIVATE_DATA]];
            *pending.link.control.lock() = Some(Box::new(shared.control_messages(rank, true, &words)?));
        }
        pending.theirs = Some(theirs);
        self.establish(rank);
        Ok(())
    }

    pub(super) fn refused(&mut self, rank: Rank, said: &[u8]) {
        let Some(pending) = self.pending.get_mut(&rank) else { return };
        let part = CmMessage::Reply { request: &pending.request };
        let reply = PrivateData::decode(&self.common.shared.identity, said, part);
        match reply {
            Ok((from, reply)) if from == rank && reply.kind == Kind::Crossed && pending.role.crossed() => {
                let (id, end) = (pending.id.take(), pending.end.take());
                self.withdraw(id, end);
            }
            Ok((from, reply)) if from == rank && reply.kind == Kind::Closed => {
                let Some(pending) = self.pending.remove(&rank) else { return };
                self.withdraw(pending.id, pending.end);
                let link = pending.link;
                self.common.shared.notices.post(|notices| notices.closed.push(link));
            }
            Ok((from, reply)) if from == rank && reply.kind == Kind::Unable => {
                self.fail(rank, "it could not make its end of a connection".to_owned());
            }
            _ => self.fail(rank, "no process listens at its address".to_owned()),
        }
    }
}
