//! This end is asked.

use std::sync::Arc;

use super::super::ends::End;
use super::super::introduction::{INTRODUCTION, Introduction, Kind, Part};
use super::super::meeting::{Meeting, Verdict};
use super::super::wire::Refusal;
use super::Maker;
use crate::NAME;
use crate::link::Link;
use crate::verbs::{Asked, Param};

impl Maker {
    /// A peer asks, or somebody else does.
    pub(super) fn asked(&mut self, asked: Asked) {
        let shared = Arc::clone(&self.ends.shared);
        let read = Introduction::decode(&shared.identity, &asked.said, Part::Question { card: &self.card });
        let read = read.and_then(|(rank, theirs)| match self.heard.is_new(rank, theirs.number) {
            true => Ok((rank, theirs)),
            false => Err(format!("it is question {} of rank {rank}, which was heard before", theirs.number)),
        });
        let (rank, theirs) = match read {
            Ok(read) => read,
            Err(reason) => {
                log::debug!("{NAME}: a question is refused: {reason}");
                return asked.id.refuse(&[]);
            }
        };
        let question = asked.said[..INTRODUCTION].to_vec();
        let refuse = |kind| {
            let part = Part::Reply { question: &question };
            match Introduction::refusal(kind).encode(&shared.identity, rank, part) {
                Ok(said) => asked.id.refuse(&said),
                Err(reason) => log::debug!("{NAME}: rank {rank} is not told why: {reason}"),
            }
        };
        let link = shared.link(rank);
        let ours = match self.pending.get_mut(&rank) {
            // What it has withdrawn, or asks a second time.
            _ if self.met.contains_key(&rank) => return refuse(Kind::Crossed),
            Some(pending) => {
                if pending.meeting.asked() == Verdict::Refuse {
                    return refuse(Kind::Crossed);
                }
                self.pending.remove(&rank)
            }
            None => match shared.welcome_question(&link) {
                Ok(()) => None,
                Err(Refusal::Closed) => return refuse(Kind::Closed),
                Err(Refusal::Unable) => return refuse(Kind::Unable),
            },
        };
        if let Some(end) = ours.as_ref().and_then(|pending| pending.end.as_ref()) {
            self.ends.unlist(end);
        }
        if let Err(reason) = self.agree(&link, asked, question, theirs) {
            log::info!("{NAME}: the question of rank {rank} comes to nothing: {reason}");
            shared.relent(&link);
        }
        // Our own, last: to end what is under way may take until the peer has refused it.
        if let Some(pending) = ours {
            self.withdraw(pending.id, pending.end);
        }
    }

    fn agree(&mut self, link: &Arc<Link>, asked: Asked, question: Vec<u8>, theirs: Introduction) -> Result<(), String> {
        let shared = Arc::clone(&self.ends.shared);
        let address = *link.address.lock();
        address.map_or(Ok(()), |address| address.is_kept_by(theirs.size))?;
        let mut end = Some(self.ends.begin(link, address.as_ref()).map_err(|error| error.to_string())?);
        let agreed = self.answer(link, &asked, &question, &theirs, &mut end);
        if let Err(reason) = agreed {
            shared.unsign(link);
            if let Some(end) = end {
                self.ends.forget(end);
            }
            return Err(reason);
        }
        self.insert(link, (Meeting::answering(), question, Some(theirs)), asked.id, end);
        Ok(())
    }

    fn answer(
        &self,
        link: &Link,
        asked: &Asked,
        question: &[u8],
        theirs: &Introduction,
        end: &mut Option<End>,
    ) -> Result<(), String> {
        let shared = &self.ends.shared;
        let Some(ours) = end.as_ref() else { return Ok(()) };
        let answer = shared.introduction(Kind::Answer, ours);
        let answer = answer.encode(&shared.identity, link.rank, Part::Reply { question })?;
        shared.connect(ours, &asked.id, asked.reads)?;
        let reads = shared.reads(asked.reads);
        let number = ours.number();
        if shared.port.context.is_iwarp() {
            // Before the greeting can come.
            let mut signs = shared.signs(link.rank, false, &[question, &answer])?;
            signs.accepted = end.take().map(|end| end.connected(theirs.queues(), (theirs.cell, theirs.cell_key)));
            *link.signs.lock() = Some(Box::new(signs));
        }
        let param = Param { said: &answer, number, reads, retries: shared.settings.retries };
        asked.id.accept(&param).map_err(|error| format!("it cannot be answered: {error}"))
    }
}
