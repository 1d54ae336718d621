//! The passive side: accepts connection requests.

use std::sync::Arc;

use super::super::common::LocalEnd;
use super::super::private_data::{CmMessage, Kind, PRIVATE_DATA, PrivateData};
use super::super::role::{ConnectRole, Verdict};
use super::super::wire::Refusal;
use super::RdmacmConnector;
use crate::NAME;
use crate::link::Link;
use crate::verbs::{ConnectRequest, Param};

impl RdmacmConnector {
    /// Handles a connection request of a peer or of a foreign process.
    pub(super) fn handle_request(&mut self, incoming: ConnectRequest) {
        let shared = Arc::clone(&self.common.shared);
        let read =
            PrivateData::decode(&shared.identity, &incoming.private_data, CmMessage::Request { card: &self.card });
        let read = read.and_then(|(rank, theirs)| match self.seen.is_new(rank, theirs.number) {
            true => Ok((rank, theirs)),
            false => Err(format!("it is request {} of rank {rank}, which was heard before", theirs.number)),
        });
        let (rank, theirs) = match read {
            Ok(read) => read,
            Err(reason) => {
                log::debug!("{NAME}: a request is refused: {reason}");
                return incoming.id.reject(&[]);
            }
        };
        let request = incoming.private_data[..PRIVATE_DATA].to_vec();
        let refuse = |kind| {
            let part = CmMessage::Reply { request: &request };
            match PrivateData::refusal(kind).encode(&shared.identity, rank, part) {
                Ok(reply) => incoming.id.reject(&reply),
                Err(reason) => log::debug!("{NAME}: cannot tell rank {rank} why its request was rejected: {reason}"),
            }
        };
        let link = shared.link(rank);
        let ours = match self.pending.get_mut(&rank) {
            // The peer has withdrawn this request, or sends it again.
            _ if self.connected.contains_key(&rank) => return refuse(Kind::Crossed),
            Some(pending) => {
                if pending.role.handle_request() == Verdict::Reject {
                    return refuse(Kind::Crossed);
                }
                self.pending.remove(&rank)
            }
            None => match shared.admit_request(&link) {
                Ok(()) => None,
                Err(Refusal::Closed) => return refuse(Kind::Closed),
                Err(Refusal::Unable) => return refuse(Kind::Unable),
            },
        };
        if let Some(end) = ours.as_ref().and_then(|pending| pending.end.as_ref()) {
            self.common.unlist(end);
        }
        if let Err(reason) = self.agree(&link, incoming, request, theirs) {
            log::info!("{NAME}: connection request from rank {rank} failed: {reason}");
            shared.reset_link(&link);
        }
        // Withdraw the own request last: this may block until the peer has rejected it.
        if let Some(pending) = ours {
            self.withdraw(pending.id, pending.end);
        }
    }

    fn agree(
        &mut self,
        link: &Arc<Link>,
        incoming: ConnectRequest,
        request: Vec<u8>,
        theirs: PrivateData,
    ) -> Result<(), String> {
        let shared = Arc::clone(&self.common.shared);
        let address = *link.address.lock();
        address.map_or(Ok(()), |address| address.is_kept_by(theirs.size))?;
        let mut end = Some(self.common.begin(link, address.as_ref()).map_err(|error| error.to_string())?);
        let agreed = self.answer(link, &incoming, &request, &theirs, &mut end);
        if let Err(reason) = agreed {
            shared.clear_control(link);
            if let Some(end) = end {
                self.common.forget(end);
            }
            return Err(reason);
        }
        self.insert(link, (ConnectRole::passive(), request, Some(theirs)), incoming.id, end);
        Ok(())
    }

    fn answer(
        &self,
        link: &Link,
        incoming: &ConnectRequest,
        request: &[u8],
        theirs: &PrivateData,
        end: &mut Option<LocalEnd>,
    ) -> Result<(), String> {
        let shared = &self.common.shared;
        let Some(ours) = end.as_ref() else { return Ok(()) };
        let answer = shared.private_data(Kind::Accept, ours);
        let answer = answer.encode(&shared.identity, link.rank, CmMessage::Reply { request })?;
        shared.connect(ours, &incoming.id, incoming.reads)?;
        let reads = shared.reads(incoming.reads);
        let number = ours.number();
        if shared.port.context.is_iwarp() {
            // This must be set before the greeting can arrive.
            let mut control = shared.control_messages(link.rank, false, &[request, &answer])?;
            control.accepted =
                end.take().map(|end| end.connected(theirs.queues(), (theirs.credits, theirs.credits_key)));
            *link.control.lock() = Some(Box::new(control));
        }
        let param = Param { private_data: &answer, number, reads, retries: shared.settings.retries };
        incoming.id.accept(&param).map_err(|error| format!("cannot accept its connection request: {error}"))
    }
}
