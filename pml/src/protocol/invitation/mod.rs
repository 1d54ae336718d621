//! Invitations: a receiver tells a sender where a posted receive has its buffer, before the message is announced.
//!
//! A message between devices that its sender stores is announced, and answered with the name of the receiver's buffer:
//! two passages, and all that is done in each, before the copy begins. But which message will go to a receive is known
//! as soon as that is posted, if no other receive fits that message: the next one of its source, provided that the tag
//! fits. So the receiver says that much, and its `Invite` is the answer to an announcement that is on its way, or has
//! yet to be made (in UCX and the literature: ready to receive, RTR).
//!
//! ```text
//! receiver: post ─ Invite(seq) ─┬─ default stream idle? ─ open ─┐    Rendezvous(seq, invitable): matched, nothing to answer
//! sender:                send ──┴─ Rendezvous(seq) ─────────────┴─ claim ─ copy ─ PutFin
//! ```
//!
//! All that follows is as if the receiver had asked for the data ([`Header::Put`](crate::wire::Header::Put)). Which of the two happened must be
//! known to both: a sender claims the `Offer` that comes with an invitation before it copies, and a receiver that
//! cancels the receive, or wants the data otherwise, withdraws it; one of the two can happen. While the receiver asks about
//! its default stream the offer is only prepared, so that the sender has all else done when it is opened. Where the announcement
//! says that the sender takes an invitation, and the receiver would answer it by a request to store all of it, the
//! invitation is this request, whether the sender has seen it yet or not.
//!
//! There is one at a time for each peer, whose stores of whole messages make another likely. Who posts several receives
//! at once waits for a window of messages, whose answers leave together, and whose copies are made together; the first
//! one is not to be made apart. So nobody is invited for a while then.

mod receiver;
mod sender;
mod state;

pub(crate) use receiver::{answer, end, expect, forget, invite, is_withdrawn, receive};
pub(crate) use sender::{advance, announced, invited};
pub(crate) use state::{Expected, Invitations, ReceiveKey, is_able, note_stored_whole};
