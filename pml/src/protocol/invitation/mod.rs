//! Invitations: a receiver tells a sender where a posted receive has its buffer, before the message is announced.
//!
//! A message between devices that its sender stores needs an announcement, and the receiver's remote key as the answer.
//! Both pass, and are handled, before the copy begins. But as soon as a receive is posted, its message is known if no
//! other receive fits that message: the next one of its source, provided that the tag fits. So the receiver sends an
//! `Invite` (an early RTR in UCX's terms), which answers an announcement that is on its way or yet to come.
//!
//! ```text
//! receiver: post ─ Invite(seq) ─┬─ default stream idle? ─ open ─┐    Rendezvous(seq, invitable): matched, nothing to answer
//! sender:                send ──┴─ Rendezvous(seq) ─────────────┴─ claim ─ copy ─ PutFin
//! ```
//!
//! The rest works as if the receiver had requested a PUT ([`Put`](super::put::Put)). Both sides must
//! know which of the two happened. A sender claims the `Offer` of an invitation before it copies. A receiver that
//! cancels the receive, or wants the data another way, withdraws the offer. Only one of the two can succeed. While the
//! receiver asks about its default stream, the offer is only prepared, so that the sender is ready when it opens. If
//! the announcement says that the sender accepts an invitation, and the receiver would request a PUT of the whole
//! message, the invitation is that request, whether the sender has seen it yet or not.
//!
//! There is at most one invitation for each peer that recently stored whole messages. A process that posts several
//! receives at once waits for a window of messages, whose answers leave together and whose copies are batched. The
//! first one should not be separated from them, so invitations pause for a while.

mod header;
mod receiver;
mod sender;
mod state;

pub(crate) use header::Invite;
pub(crate) use receiver::{answer, end, expect, forget, invite, receive, withdraw_before_cancel};
pub(crate) use sender::{advance, announced, invited};
pub(crate) use state::{Claimed, Expected, Invitations, ReceiveKey, is_able, note_stored_whole};
