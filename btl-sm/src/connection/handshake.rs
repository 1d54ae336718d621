//! Handles the packets of a connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use cableway_base::Rank;
use cableway_common_cuda::{Answer, DescriptorRequest, PieceDescriptor};

use super::socket::{self, Credentials};
use super::wire::{self, Hello, Packet, Refusal, WireAnswer, WireDescriptorRequest};
use super::{Attached, COLLISION_PAUSE, Connections, Event, Stage, tell};
use crate::NAME;
use crate::device::DeviceMapping;
use crate::inner::Inner;
use crate::peer::{Link, Peer, Status};
use crate::segment::{DeviceGeometry, Memory};
use crate::single_copy::{self, Remote};

impl Connections {
    /// Handles one packet. An error is the peer's fault and ends the connection.
    pub(super) fn handle(
        &mut self,
        inner: &Inner,
        key: usize,
        packet: Packet,
        mut files: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let Some(connection) = self.all.get_mut(key) else { return Ok(()) };
        let file = match packet {
            Packet::DescriptorAnswer(..) => None,
            _ if files.len() > 1 => return Err("a packet brings too many files".to_owned()),
            _ => files.pop(),
        };
        match (packet, connection.stage) {
            (Packet::Hello(hello), Stage::Accepted) => {
                let rank = check_greeting(inner, connection.credentials, &hello)?;
                self.answer(inner, key, rank, &hello, file)
            }
            (Packet::Reply(hello), Stage::Called) => {
                let rank = check_greeting(inner, connection.credentials, &hello)?;
                let Some(peer) = connection.peer.clone() else { return Ok(()) };
                if rank != peer.rank {
                    return Err(format!("rank {rank} answers in the place of rank {}", peer.rank));
                }
                let link = link(inner, &peer, connection.credentials, &hello, file)?;
                connection.stage = Stage::Open;
                self.attach(peer, link, true);
                Ok(())
            }
            (Packet::Ready { single_copy }, Stage::Answered | Stage::Open) => {
                connection.stage = Stage::Open;
                if let Some(peer) = &connection.peer {
                    peer.single_copy_checked(single_copy);
                    peer.advance(Status::Open);
                }
                Ok(())
            }
            (Packet::Goodbye, Stage::Answered | Stage::Open) => {
                if let Some(peer) = connection.peer.clone().filter(|peer| peer.advance(Status::Departed)) {
                    self.events.push_back(Event::Left(peer));
                }
                Ok(())
            }
            (Packet::Refuse(Refusal::Collision), Stage::Called) => {
                if let Some(peer) = connection.peer.take() {
                    self.by_rank.remove(&peer.rank);
                    self.to_call.push_back((peer, Instant::now() + COLLISION_PAUSE));
                }
                self.remove(key);
                Ok(())
            }
            (Packet::Refuse(reason), Stage::Called) => Err(format!("it refused the connection: {reason:?}")),
            (Packet::Device(geometry), Stage::Open) => {
                let Some(peer) = connection.peer.clone() else { return Ok(()) };
                let taken = take_device(inner, &peer, geometry, file);
                if let Err(reason) = &taken {
                    log::warn!("{NAME}: the device segment of rank {} was not taken: {reason}", peer.rank);
                }
                tell(connection, &Packet::DeviceReady { taken: taken.is_ok() }, None);
                Ok(())
            }
            (Packet::DeviceReady { taken }, Stage::Open) => {
                self.offers = self.offers.saturating_sub(1);
                if let Some(peer) = &connection.peer {
                    peer.device.answered(taken);
                }
                Ok(())
            }
            (Packet::Gone { buffer_id }, Stage::Open) => {
                if let Some(peer) = &connection.peer {
                    inner.device_copies.forget(peer.rank, buffer_id);
                }
                Ok(())
            }
            (Packet::DescriptorRequest(wanted), Stage::Open) => {
                let Some(peer) = &connection.peer else { return Ok(()) };
                let wanted = DescriptorRequest::from(&wanted);
                let (gift, given) = match inner.device_copies.answer(peer.rank, &wanted) {
                    Answer::Descriptors(given) => {
                        (WireAnswer::Pieces(given.iter().map(|piece| piece.len).collect()), given)
                    }
                    Answer::Gone => (WireAnswer::Gone, Vec::new()),
                    Answer::Refused => (WireAnswer::Refused, Vec::new()),
                };
                let give = Packet::DescriptorAnswer(WireDescriptorRequest::from(&wanted), gift).to_bytes();
                let files: Vec<_> = given.iter().map(|piece| piece.descriptor.as_fd()).collect();
                if let Err(error) = socket::send_with(connection.socket.as_fd(), &give, &files) {
                    // For example, too many descriptors are in flight.
                    log::debug!("{NAME}: no descriptor can be passed to rank {}: {error}", peer.rank);
                    tell(
                        connection,
                        &Packet::DescriptorAnswer(WireDescriptorRequest::from(&wanted), WireAnswer::Gone),
                        None,
                    );
                }
                Ok(())
            }
            (Packet::DescriptorAnswer(wanted, gift), Stage::Open) if connection.asked > 0 => {
                connection.asked -= 1;
                let Some(peer) = &connection.peer else { return Ok(()) };
                let answer = match gift {
                    WireAnswer::Pieces(lens) if lens.len() == files.len() => {
                        let given =
                            files.into_iter().zip(lens).map(|(descriptor, len)| PieceDescriptor { descriptor, len });
                        Answer::Descriptors(given.collect())
                    }
                    WireAnswer::Refused => Answer::Refused,
                    // The descriptors were sent, but this process has no room for as many.
                    WireAnswer::Pieces(_) | WireAnswer::Gone => Answer::Gone,
                };
                inner.device_copies.supply(peer.rank, &DescriptorRequest::from(&wanted), answer);
                Ok(())
            }
            _ => Err("a packet came out of turn".to_owned()),
        }
    }

    /// Handles the call of another process.
    fn answer(
        &mut self,
        inner: &Inner,
        key: usize,
        rank: Rank,
        hello: &Hello,
        file: Option<OwnedFd>,
    ) -> Result<(), String> {
        let peer = inner.peer(rank);
        if !matches!(peer.status(), Status::Idle | Status::Connecting) || peer.link.get().is_some() {
            // Two calls crossed. The peer answered this process's call and dropped its own, which is still queued here.
            log::debug!("{NAME}: turned away {}: rank {rank} is connected already", self.who(key));
            self.remove(key);
            return Ok(());
        }
        if let Some(&ours) = self.by_rank.get(&rank) {
            if inner.job.own_name() < hello.from.get() {
                return self.refuse(key, Refusal::Collision);
            }
            self.remove(ours);
            self.by_rank.remove(&rank);
        }
        let Some(index) = inner.index_of(rank) else {
            log::warn!("{NAME}: more processes call than the job has on this node");
            return self.refuse(key, Refusal::Full);
        };
        let Some(reply) = inner.hello(rank, index) else { return self.refuse(key, Refusal::Full) };
        let Some(connection) = self.all.get_mut(key) else { return Ok(()) };
        let link = match link(inner, &peer, connection.credentials, hello, file) {
            Ok(link) => link,
            Err(reason) => {
                let _ = self.refuse(key, Refusal::Segment);
                return Err(reason);
            }
        };
        connection.stage = Stage::Answered;
        connection.peer = Some(peer.clone());
        self.by_rank.insert(rank, key);
        peer.advance(Status::Connecting);
        tell(connection, &Packet::Reply(reply), inner.memory.file());
        self.watch_process(key);
        self.attach(peer, link, false);
        Ok(())
    }

    /// Records that both segments are mapped on this side.
    fn attach(&mut self, peer: Arc<Peer>, link: Link, may_send: bool) {
        let single_copy = match &link.remote {
            None => false,
            Some(remote) => remote.check().inspect_err(single_copy::explain).is_ok(),
        };
        peer.single_copy_checked(single_copy);
        let link = Arc::new(link);
        let _ = peer.link.set(link.clone());
        if may_send {
            peer.advance(Status::Open);
        }
        if let Some(connection) = self.by_rank.get(&peer.rank).and_then(|&key| self.all.get(key)) {
            tell(connection, &Packet::Ready { single_copy }, None);
        }
        self.attached.push_back(Attached { peer, link });
    }

    fn refuse(&mut self, key: usize, reason: Refusal) -> Result<(), String> {
        if let Some(connection) = self.all.get(key) {
            tell(connection, &Packet::Refuse(reason), None);
        }
        self.remove(key);
        Ok(())
    }
}

/// Authenticates the other process: it must belong to this user, and to this job or to a permitted other job.
fn check_greeting(inner: &Inner, credentials: Credentials, hello: &Hello) -> Result<Rank, String> {
    if credentials.uid != inner.uid {
        return Err(format!("it is of user {}, this process of user {}", credentials.uid, inner.uid));
    }
    let (from, to, own) = (hello.from.get(), hello.to.get(), inner.job.own_name());
    let strange = || format!("process {from:#x} wants process {to:#x}, this is process {own:#x}");
    if to != own || from == own {
        return Err(strange());
    }
    if !inner.job.secret_from(from).is_some_and(|secret| wire::same_secret(&hello.secret, &secret)) {
        return Err("it does not know the job's secret".to_owned());
    }
    inner.job.rank_of(from).ok_or_else(strange)
}

fn link(
    inner: &Inner,
    peer: &Peer,
    credentials: Credentials,
    hello: &Hello,
    file: Option<OwnedFd>,
) -> Result<Link, String> {
    let layout = hello.geometry.layout()?;
    let our_index = u16::try_from(hello.index.get()).ok().filter(|&index| usize::from(index) < layout.peers);
    let our_index = our_index.ok_or("its number for us is out of range")?;
    let index = inner.index_of(peer.rank).ok_or("more processes than the job has on this node")?;
    let file = file.ok_or("its segment did not come along")?;
    let memory = Memory::open(file, layout.len).map_err(|error| error.to_string())?;
    let remote = inner.single_copy_allowed(credentials.pid, &hello.node).then(|| Remote {
        pid: credentials.pid,
        cookie_address: hello.cookie_address.get(),
        cookie: hello.cookie.get(),
    });
    let device = OnceLock::new();
    Ok(Link { memory: Arc::new(memory), layout, our_index, index, remote, device })
}

fn take_device(inner: &Inner, peer: &Peer, geometry: DeviceGeometry, file: Option<OwnedFd>) -> Result<(), String> {
    let link = peer.link.get().ok_or("it came too early")?;
    let (classes, len) = geometry.layout()?;
    let memory = Memory::open(file.ok_or("the segment did not come along")?, len).map_err(|error| error.to_string())?;
    let mapping = DeviceMapping::new(memory, classes, &inner.devices);
    link.device.set(mapping).map_err(|_| "it came a second time".to_owned())
}
