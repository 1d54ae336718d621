//! Simulates processes that connect to each other by the transport's own handshake. Network and machines are simulated.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use ahash::AHashMap;
use cableway_btl_openib::simulation::{Due, Handshake, Work, WorkQueue};

use crate::random::Random;
use crate::world::{Outcome, Pattern, World};

/// The width of a histogram bin, in nanoseconds.
const BIN: u64 = 100_000;

#[derive(Clone, Copy, Debug)]
struct Hello {
    from: u32,
    number: u32,
    knows: u32,
    asks: bool,
}

enum Event {
    Arrives {
        to: u32,
        hello: Hello,
    },
    /// The process starts.
    Begins(u32),
    /// The process's thread has finished a piece of work.
    Free(u32),
    /// The pause of a handshake has ended.
    Due {
        process: u32,
        peer: u32,
    },
}

struct Process {
    /// The datagrams in the device's buffers.
    arrived: VecDeque<Hello>,
    work_queue: WorkQueue<Hello, u32>,
    pending: AHashMap<u32, Handshake>,
    /// Peers whose handshake pause has ended.
    due: VecDeque<u32>,
    /// Connected peers, one bit each.
    connected: Vec<u64>,
    queue_pairs: u32,
    busy: bool,
}

/// Simulates the connections of this many processes.
pub(crate) fn simulate(processes: u32, pattern: Pattern, world: &World, seed: u64) -> Outcome {
    let mut simulation = Simulation::new(processes, *world, seed);
    for process in 0..processes {
        let at = simulation.random.below(world.skew.as_nanos() as u64 + 1);
        let peers = &mut simulation.processes[process as usize].work_queue;
        pattern.peers(process, processes).for_each(|peer| peers.connect(peer));
        simulation.at(at, Event::Begins(process));
    }
    simulation.run();
    simulation.outcome()
}

struct Simulation {
    world: World,
    random: Random,
    start: Instant,
    now: u64,
    /// Events by time, then in the order of their creation, each as an index into `slots`.
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Event>,
    unused: Vec<usize>,
    count: u64,
    processes: Vec<Process>,
    /// The number of ends that became able to send, for each 0.1 ms.
    established: Vec<u64>,
    outcome: Outcome,
}

impl Simulation {
    fn new(processes: u32, world: World, seed: u64) -> Self {
        let process = || Process {
            arrived: VecDeque::new(),
            work_queue: WorkQueue::default(),
            pending: AHashMap::new(),
            due: VecDeque::new(),
            connected: vec![0; processes.div_ceil(64) as usize],
            queue_pairs: 0,
            busy: true,
        };
        Simulation {
            world,
            random: Random::new(seed),
            start: Instant::now(),
            now: 0,
            events: BinaryHeap::new(),
            slots: Vec::new(),
            unused: Vec::new(),
            count: 0,
            processes: (0..processes).map(|_| process()).collect(),
            established: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        let place = match self.unused.pop() {
            Some(place) => {
                self.slots[place] = event;
                place
            }
            None => {
                self.slots.push(event);
                self.slots.len() - 1
            }
        };
        self.count += 1;
        self.events.push(Reverse((time, self.count, place)));
    }

    fn run(&mut self) {
        while let Some(Reverse((time, _, place))) = self.events.pop() {
            self.now = time;
            let event = std::mem::replace(&mut self.slots[place], Event::Free(0));
            self.unused.push(place);
            let process = match event {
                Event::Arrives { to, hello } => {
                    let process = &mut self.processes[to as usize];
                    if process.arrived.len() == self.world.receives {
                        self.outcome.overrun += 1;
                    } else {
                        process.arrived.push_back(hello);
                    }
                    to
                }
                Event::Due { process, peer } => {
                    self.processes[process as usize].due.push_back(peer);
                    process
                }
                Event::Begins(process) | Event::Free(process) => {
                    self.processes[process as usize].busy = false;
                    process
                }
            };
            if !self.processes[process as usize].busy {
                self.work(process);
            }
        }
    }

    /// Does what `DatagramConnector` does: receives all waiting datagrams, then does one piece of work.
    fn work(&mut self, number: u32) {
        let mut took = Duration::ZERO;
        let process = &mut self.processes[number as usize];
        while let Some(hello) = process.arrived.pop_front() {
            process.work_queue.receive(hello.from, hello);
            took += self.world.receive;
        }
        let pending = process.work_queue.pending_messages();
        self.outcome.longest_queue = self.outcome.longest_queue.max(pending);
        let due = if pending == 0 { process.due.pop_front() } else { None };
        if let Some(peer) = due {
            self.check(number, peer, &mut took);
        } else {
            match process.work_queue.take() {
                Some(Work::Receive(_, hello)) => self.receive(number, hello, &mut took),
                Some(Work::Connect(peer)) => {
                    if !self.knows(number, peer) {
                        self.begin(number, peer, &mut took);
                        self.send_pending(number, peer, &mut took);
                    }
                }
                None => return,
            }
        }
        self.processes[number as usize].busy = true;
        self.at(self.now + took.as_nanos() as u64, Event::Free(number));
    }

    fn knows(&self, number: u32, peer: u32) -> bool {
        let process = &self.processes[number as usize];
        process.pending.contains_key(&peer) || process.is_connected(peer)
    }

    fn begin(&mut self, number: u32, peer: u32, took: &mut Duration) {
        *took += self.world.create;
        let now = self.instant(*took);
        let process = &mut self.processes[number as usize];
        process.queue_pairs += 1;
        let mut handshake = Handshake::new(peer + 1, now, self.world.patience, self.random.below(1 << 32) as u32);
        let due = handshake.due(now);
        process.pending.insert(peer, handshake);
        if let Due::At(next) = due {
            self.wake(number, peer, next);
        }
    }

    fn receive(&mut self, number: u32, hello: Hello, took: &mut Duration) {
        let peer = hello.from;
        if self.processes[number as usize].is_connected(peer) {
            if hello.asks {
                self.send(number, peer, hello.number, false, took);
            }
            return;
        }
        if !self.knows(number, peer) {
            self.begin(number, peer, took);
        }
        let Some(handshake) = self.processes[number as usize].pending.get_mut(&peer) else { return };
        let step = handshake
            .receive(hello.number, hello.knows, hello.asks)
            .expect("simulated peers never contradict themselves");
        if step.connect {
            *took += self.world.connect;
        }
        if step.answer {
            self.send_pending(number, peer, took);
        }
        if step.ready {
            let process = &mut self.processes[number as usize];
            process.pending.remove(&peer);
            process.connected[peer as usize / 64] |= 1 << (peer % 64);
            let bin = ((self.now + took.as_nanos() as u64) / BIN) as usize;
            self.established.resize(self.established.len().max(bin + 1), 0);
            self.established[bin] += 1;
        }
    }

    fn check(&mut self, number: u32, peer: u32, took: &mut Duration) {
        let now = self.instant(Duration::ZERO);
        let Some(handshake) = self.processes[number as usize].pending.get_mut(&peer) else { return };
        match handshake.due(now) {
            Due::Again => {
                let Due::At(next) = handshake.due(now) else { return };
                self.outcome.resent += 1;
                self.send_pending(number, peer, took);
                self.wake(number, peer, next);
            }
            Due::At(next) => self.wake(number, peer, next),
            Due::TooLate => {
                self.outcome.given_up += 1;
                self.processes[number as usize].pending.remove(&peer);
            }
        }
    }

    fn send_pending(&mut self, number: u32, peer: u32, took: &mut Duration) {
        let handshake = &self.processes[number as usize].pending[&peer];
        let (knows, asks) = (handshake.knows(), !handshake.ready());
        self.send(number, peer, knows, asks, took);
    }

    fn send(&mut self, from: u32, to: u32, knows: u32, asks: bool, took: &mut Duration) {
        *took += self.world.send;
        self.outcome.hellos += 1;
        if self.random.below(1_000_000) < self.world.lost_per_million {
            self.outcome.lost += 1;
            return;
        }
        let latency = self.world.latency.as_nanos() as u64;
        let at = self.now + took.as_nanos() as u64 + latency + self.random.below(latency + 1);
        self.at(at, Event::Arrives { to, hello: Hello { from, number: to + 1, knows, asks } });
    }

    fn wake(&mut self, process: u32, peer: u32, at: Instant) {
        let at = (at - self.start).as_nanos() as u64;
        self.at(at.max(self.now), Event::Due { process, peer });
    }

    fn instant(&self, later: Duration) -> Instant {
        self.start + Duration::from_nanos(self.now) + later
    }

    fn outcome(mut self) -> Outcome {
        let ends: u64 = self
            .processes
            .iter()
            .map(|process| process.connected.iter().map(|word| u64::from(word.count_ones())).sum::<u64>())
            .sum();
        self.outcome.connections = ends / 2;
        self.outcome.most_queue_pairs = self.processes.iter().map(|process| process.queue_pairs).max().unwrap_or(0);
        let mut before = 0;
        let half = self.established.iter().position(|count| {
            before += count;
            2 * before >= ends
        });
        let end = |bins: usize| Duration::from_nanos(bins as u64 * BIN);
        self.outcome.last = end(self.established.len());
        self.outcome.half = end(half.map_or(0, |bin| bin + 1));
        self.outcome
    }
}

impl Process {
    fn is_connected(&self, peer: u32) -> bool {
        self.connected[peer as usize / 64] >> (peer % 64) & 1 == 1
    }
}
