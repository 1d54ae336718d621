//! A transport of one rank.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_btl::{Btl, Endpoint, Error, Rank, Received, Remains, Retain, SharedBytes, Token, Upcalls};
use parking_lot::Mutex;

use super::Net;
use super::endpoint::{NetEndpoint, gone};
use super::state::{Bytes, Severed, State};

pub(super) struct NetBtl {
    pub(super) net: Arc<Net>,
    pub(super) rank: Rank,
    pub(super) index: usize,
    pub(super) inside: Mutex<()>,
}
struct Keep(Bytes);

impl Retain for Keep {
    fn retain(&self) -> Box<dyn Send> {
        Box::new(self.0.clone())
    }
}

impl Btl for NetBtl {
    fn name(&self) -> &'static str {
        self.net.links[self.index].name
    }
    fn card(&self) -> Vec<u8> {
        vec![0]
    }
    fn place(&self, _peer: Rank) -> Option<u8> {
        Some(self.net.links[self.index].place)
    }
    fn connect(&self, peer: Rank, _card: &[u8]) -> Result<Vec<Box<dyn Endpoint>>, Error> {
        let link = self.net.links[self.index];
        let endpoint = |at| {
            let (net, rank, btl) = (self.net.clone(), self.rank, self.index);
            Box::new(NetEndpoint { net, rank, peer, btl, at, link }) as Box<dyn Endpoint>
        };
        Ok((0..link.count).map(endpoint).collect())
    }

    fn progress(&self, upcalls: &dyn Upcalls) -> usize {
        let Some(_inside) = self.inside.try_lock() else { return 0 };
        if self.net.state.lock().held == Some(self.index) {
            return 0;
        }
        let mut events = 0;
        let operations: Vec<_> = {
            let mut state = self.net.state.lock();
            let (mine, others) = std::mem::take(&mut state.operations)
                .into_iter()
                .partition(|operation| operation.0 == self.rank && operation.1 == self.index);
            state.operations = others;
            mine
        };
        for (_, _, token, copy, to, from) in operations {
            upcalls.completed(token, self.net.carry_out(&copy, &to, &from));
            events += 1;
        }
        for _ in 0..16 {
            let next = {
                let mut state = self.net.state.lock();
                let (rank, index) = (self.rank, self.index);
                let mut keys: Vec<_> = state
                    .queues
                    .iter()
                    .filter(|(key, queue)| key.1 == rank && key.2 == index && !queue.is_empty())
                    .map(|(&key, _)| key)
                    .collect();
                keys.sort_unstable();
                if keys.is_empty() {
                    break;
                }
                state.tick(self.index);
                if state.is_severed(self.index) {
                    break;
                }
                let which = if self.net.shuffle.load(Ordering::Relaxed) { state.random(keys.len()) } else { 0 };
                let key = keys[which];
                if let Some((_, handed)) = state.history.get_mut(&(key.0, key.1, key.2)) {
                    *handed += 1;
                }
                state.queues.get_mut(&key).and_then(VecDeque::pop_front).map(|bytes| (key.0, bytes))
            };
            let Some((from, bytes)) = next else { break };
            let keep = Keep(bytes.clone());
            let retain = self.net.links[self.index].retains.then_some(&keep as &dyn Retain);
            upcalls.receive(from, Received::new(SharedBytes::from_private(&bytes), retain));
            events += 1;
        }
        let failing: Vec<Token> = {
            let mut state = self.net.state.lock();
            let me = self.rank;
            let to_report = |severed: &&mut Severed| {
                severed.btl == self.index && severed.told.contains(&me) && !severed.reported.contains(&me)
            };
            match state.severed.iter_mut().find(to_report) {
                Some(severed) => {
                    severed.reported.push(me);
                    let (mine, others) = std::mem::take(&mut severed.failing).into_iter().partition(|one| one.0 == me);
                    severed.failing = others;
                    mine.into_iter().map(|one: (Rank, Token)| one.1).chain([SEVERED]).collect()
                }
                _ => Vec::new(),
            }
        };
        for token in failing {
            match token {
                SEVERED if self.net.state.lock().blaming == Some(self.rank) => {
                    let reason = "it sent malformed bytes".into();
                    upcalls.peer_failed(1 - self.rank, Error::Malformed { btl: "net", peer: 1 - self.rank, reason });
                }
                SEVERED => upcalls.peer_failed(1 - self.rank, gone(1 - self.rank)),
                token => upcalls.completed(token, Err(gone(1 - self.rank))),
            }
            events += 1;
        }
        let dead: Vec<Rank> = {
            let mut state = self.net.state.lock();
            let me = (self.rank, self.index);
            let dead = state.dead.iter_mut().filter_map(|(&dead, told)| {
                let at = told.iter().position(|&other| other == me)?;
                told.remove(at);
                Some(dead)
            });
            dead.collect()
        };
        for peer in dead {
            upcalls.peer_failed(peer, gone(peer));
            events += 1;
        }
        let left: Vec<Rank> = {
            let mut state = self.net.state.lock();
            let State { left, queues, .. } = &mut *state;
            let me = (self.rank, self.index);
            let left = left.iter_mut().filter_map(|(&peer, told)| {
                // Deliver its earlier messages first.
                let empty = |at| queues.get(&(peer, self.rank, self.index, at)).is_none_or(VecDeque::is_empty);
                let all = (0..self.net.links[self.index].count).all(empty);
                let at = told.iter().position(|&other| all && other == me)?;
                told.remove(at);
                Some(peer)
            });
            left.collect()
        };
        for peer in left {
            upcalls.peer_left(peer);
            events += 1;
        }
        events
    }

    fn is_connected(&self, peer: Rank) -> bool {
        let state = self.net.state.lock();
        let told =
            |list: Option<&Vec<(Rank, usize)>>| list.is_some_and(|told| !told.contains(&(self.rank, self.index)));
        !told(state.dead.get(&peer)) && !told(state.left.get(&peer))
    }

    fn break_off(&self, peer: Rank) {
        let mut state = self.net.state.lock();
        let me = self.rank;
        let concerned = |severed: &&mut Severed| severed.btl == self.index && severed.is_broken() && peer == 1 - me;
        if let Some(severed) = state.severed.iter_mut().find(concerned)
            && !severed.told.contains(&me)
        {
            severed.told.push(me);
        }
    }

    fn remains(&self, peer: Rank) -> Option<Remains> {
        let mut state = self.net.state.lock();
        let (me, btl) = (self.rank, self.index);
        let severed = state.severed.iter_mut().find(|severed| severed.btl == btl && severed.reported.contains(&me))?;
        if severed.asked.contains(&me) {
            return None;
        }
        severed.asked.push(me);
        let received = state.history.get(&(peer, me, btl)).map_or(0, |history| history.1) as u64;
        let handed = state.history.get(&(me, peer, btl)).map_or(0, |history| history.1);
        let delivered = state.random(handed + 1);
        let sent = state.history.get(&(me, peer, btl)).map_or(&[][..], |history| &history.0);
        let uncertain = sent[delivered..].iter().map(|bytes| (**bytes).into()).collect();
        Some(Remains { received, delivered: delivered as u64, uncertain })
    }

    fn finalize(&self) -> bool {
        let mut state = self.net.state.lock();
        let others = (0..self.net.size).filter(|&other| other != self.rank);
        let told = state.left.entry(self.rank).or_default();
        told.retain(|other| other.1 != self.index);
        told.extend(others.map(|other| (other, self.index)));
        true
    }
}
/// The token of the report that a transport is broken.
const SEVERED: Token = Token(u64::MAX);
