//! The launcher's side of the modex: answers requests of ranks through their sockets. Never blocks.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use cableway_base::Rank;
use rustix::event::PollFlags;

use crate::modex::wire::{Reply, Request, VERSION, frame};
use crate::modex::{random_job_id, random_secret};

pub(super) struct Server {
    id: String,
    secret: [u8; 32],
    clients: Vec<Client>,
    values: HashMap<(Rank, String), Vec<u8>>,
    /// Ranks that left the job, in order.
    departed: Vec<Rank>,
    /// The reason why fences fail, once a rank has left.
    broken: Option<String>,
}

struct Client {
    /// None once the rank has left.
    socket: Option<UnixStream>,
    joined: bool,
    fencing: bool,
    received: Vec<u8>,
    unsent: Vec<u8>,
}

impl Server {
    /// Serves ranks 0, 1, ... through `sockets`.
    pub(super) fn new(sockets: Vec<UnixStream>) -> io::Result<Self> {
        let client = |socket: UnixStream| {
            socket.set_nonblocking(true)?;
            let socket = Some(socket);
            Ok(Client { socket, joined: false, fencing: false, received: Vec::new(), unsent: Vec::new() })
        };
        Ok(Server {
            id: random_job_id()?,
            secret: random_secret()?,
            clients: sockets.into_iter().map(client).collect::<io::Result<_>>()?,
            values: HashMap::new(),
            departed: Vec::new(),
            broken: None,
        })
    }

    /// Returns the events to poll for, for each rank still in the job.
    pub(super) fn interests(&self) -> impl Iterator<Item = (Rank, BorrowedFd<'_>, PollFlags)> {
        (0..).zip(&self.clients).filter_map(|(rank, client)| {
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, !client.unsent.is_empty());
            Some((rank, client.socket.as_ref()?.as_fd(), events))
        })
    }

    /// Reads and answers requests of `rank`, and writes as much as its socket accepts.
    pub(super) fn serve(&mut self, rank: Rank) {
        if let Err(reason) = self.receive(rank).and_then(|()| self.clients[rank as usize].flush()) {
            self.left(rank, &reason);
        }
    }

    /// Marks `rank` as gone, and answers the ranks that wait for it with an error.
    pub(super) fn left(&mut self, rank: Rank, reason: &str) {
        let client = &mut self.clients[rank as usize];
        if client.socket.take().is_none() {
            return;
        }
        client.fencing = false;
        self.departed.push(rank);
        let reason = self.broken.get_or_insert_with(|| format!("rank {rank} {reason}")).clone();
        self.end_fences(&Reply::Refused(reason));
    }

    /// Returns how many ranks left before this one. A rank that crashes leaves before its process ends: the system may
    /// still be dumping its memory when other ranks have noticed and ended.
    pub(super) fn departures_before(&self, rank: Rank) -> usize {
        self.departed.iter().take_while(|&&departed| departed != rank).count()
    }

    fn receive(&mut self, rank: Rank) -> Result<(), String> {
        let mut bytes = [0; 16 << 10];
        loop {
            let Some(socket) = &mut self.clients[rank as usize].socket else { return Ok(()) };
            match socket.read(&mut bytes) {
                Ok(0) => return Err("left the job".to_owned()),
                Ok(count) => self.clients[rank as usize].received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("cannot be reached: {error}")),
            }
            self.answer_all(rank)?;
        }
    }

    fn answer_all(&mut self, rank: Rank) -> Result<(), String> {
        let received = std::mem::take(&mut self.clients[rank as usize].received);
        let mut rest = &received[..];
        while let Some((content, length)) = frame(rest).map_err(|error| error.to_string())? {
            let request = Request::decode(content).map_err(|error| format!("sent an invalid request: {error}"))?;
            self.answer(rank, request);
            rest = &rest[length..];
        }
        self.clients[rank as usize].received = rest.to_vec();
        Ok(())
    }

    fn answer(&mut self, rank: Rank, request: Request) {
        let size = self.clients.len() as u32;
        let client = &mut self.clients[rank as usize];
        let reply = match request {
            Request::Join { version } if version != VERSION => Reply::Refused(format!(
                "the launcher uses protocol version {VERSION} and this rank version {version}: use one version of cableway for both"
            )),
            Request::Join { .. } => {
                client.joined = true;
                Reply::Welcome { id: self.id.clone(), secret: self.secret, rank, size }
            }
            _ if !client.joined => Reply::Refused("this rank has not joined".to_owned()),
            Request::Put { key, value } => {
                self.values.insert((rank, key), value);
                return;
            }
            Request::Fence => {
                client.fencing = true;
                return self.check_fence();
            }
            Request::Get { peer, .. } if peer >= size => Reply::Refused(format!("this job has {size} ranks")),
            Request::Get { peer, key } => Reply::Value(self.values.get(&(peer, key)).cloned()),
        };
        client.unsent.extend(reply.encode());
    }

    fn check_fence(&mut self) {
        if let Some(reason) = &self.broken {
            self.end_fences(&Reply::Refused(reason.clone()));
        } else if self.clients.iter().all(|client| client.fencing) {
            self.end_fences(&Reply::AllCame);
        }
    }

    fn end_fences(&mut self, reply: &Reply) {
        for client in self.clients.iter_mut().filter(|client| client.fencing) {
            client.fencing = false;
            client.unsent.extend(reply.encode());
            // A write error is handled when the socket is polled next.
            let _ = client.flush();
        }
    }
}

impl Client {
    fn flush(&mut self) -> Result<(), String> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        while !self.unsent.is_empty() {
            match socket.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("cannot be reached: {error}")),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Peer(UnixStream);

    impl Peer {
        fn say(&mut self, request: &Request) {
            self.0.write_all(&request.encode()).unwrap();
        }

        fn hear(&mut self) -> Reply {
            let mut length = [0; 4];
            self.0.read_exact(&mut length).unwrap();
            let mut content = vec![0; u32::from_le_bytes(length) as usize];
            self.0.read_exact(&mut content).unwrap();
            Reply::decode(&content).unwrap()
        }

        fn nothing_to_hear(&mut self) -> bool {
            self.0.set_nonblocking(true).unwrap();
            let result = self.0.read(&mut [0]);
            self.0.set_nonblocking(false).unwrap();
            result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        }
    }

    fn job<const N: usize>() -> (Server, [Peer; N]) {
        let pairs: Vec<_> = (0..N).map(|_| UnixStream::pair().unwrap()).collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let mut server = Server::new(ours).unwrap();
        let peers: Vec<_> = (0..)
            .zip(theirs)
            .map(|(rank, socket)| {
                let mut peer = Peer(socket);
                peer.say(&Request::Join { version: VERSION });
                server.serve(rank);
                assert!(
                    matches!(peer.hear(), Reply::Welcome { rank: told, size, .. } if (told, size) == (rank, N as u32))
                );
                peer
            })
            .collect();
        (server, peers.try_into().unwrap_or_else(|_| unreachable!("as many as were made")))
    }

    #[test]
    fn a_fence_ends_when_everyone_came_and_values_are_there() {
        let (mut server, [mut a, mut b]) = job();
        a.say(&Request::Put { key: "card".into(), value: vec![7; 100_000] });
        a.say(&Request::Fence);
        while server.clients[0].received.len() < 1000 && !server.clients[0].fencing {
            server.serve(0);
        }
        server.serve(0);
        assert!(a.nothing_to_hear());
        b.say(&Request::Fence);
        server.serve(1);
        assert_eq!((a.hear(), b.hear()), (Reply::AllCame, Reply::AllCame));
        for (key, expected) in [("card", Some(vec![7; 100_000])), ("none", None)] {
            b.say(&Request::Get { peer: 0, key: key.into() });
            server.serve(1);
            assert_eq!(b.hear(), Reply::Value(expected));
        }
        b.say(&Request::Get { peer: 2, key: "card".into() });
        server.serve(1);
        assert!(matches!(b.hear(), Reply::Refused(_)));
    }

    #[test]
    fn a_rank_that_leaves_ends_fences_with_an_error_naming_it() {
        let (mut server, [mut a, b, mut c]) = job();
        a.say(&Request::Fence);
        server.serve(0);
        drop(b);
        server.serve(1);
        assert!(matches!(a.hear(), Reply::Refused(reason) if reason.contains("rank 1")));
        c.say(&Request::Fence);
        server.serve(2);
        assert!(matches!(c.hear(), Reply::Refused(reason) if reason.contains("rank 1")));
    }

    #[test]
    fn garbage_ends_the_rank_not_the_job() {
        let (mut server, [mut a, mut b]) = job();
        a.0.write_all(&[0xff; 64]).unwrap();
        server.serve(0);
        assert_eq!(server.interests().count(), 1);
        b.say(&Request::Get { peer: 0, key: "card".into() });
        server.serve(1);
        assert_eq!(b.hear(), Reply::Value(None));
    }

    #[test]
    fn a_rank_of_another_version_is_turned_away() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut server, mut peer) = (Server::new(vec![ours]).unwrap(), Peer(theirs));
        for request in [Request::Join { version: VERSION + 1 }, Request::Fence] {
            peer.say(&request);
            server.serve(0);
            assert!(matches!(peer.hear(), Reply::Refused(_)));
        }
    }
}
