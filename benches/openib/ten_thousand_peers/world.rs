//! The assumed network and machines, the patterns of connections, and the result of a simulation.

use std::time::Duration;

/// The assumed network and machines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    /// Latency of a datagram. A random part of up to the same length is added.
    pub(crate) latency: Duration,
    /// Lost datagrams per million.
    pub(crate) lost_per_million: u64,
    /// Period within which all processes start.
    pub(crate) skew: Duration,
    /// Datagrams that the device can buffer until the process polls.
    pub(crate) receives: usize,
    /// Time to create a queue pair.
    pub(crate) create: Duration,
    /// Time to connect a queue pair.
    pub(crate) connect: Duration,
    /// Time to read a datagram and check its proof.
    pub(crate) receive: Duration,
    /// Time to write a datagram with its proof and post it.
    pub(crate) send: Duration,
    /// Time without an answer after which a connection attempt fails.
    pub(crate) patience: Duration,
}

/// Selects the peers of each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Each process connects to its six neighbours on a torus.
    Neighbours,
    /// Each process connects to all others, beginning with the next.
    All,
    /// Each process connects to all others, beginning with rank 0.
    AllFromTheFirst,
    /// All processes connect to rank 0.
    Master,
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Pairs of processes that are connected, each at both ends.
    pub(crate) connections: u64,
    /// Ends of connections that failed.
    pub(crate) given_up: u64,
    /// Queue pairs of the process with most of them.
    pub(crate) most_queue_pairs: u32,
    pub(crate) hellos: u64,
    /// Hellos that were resent because no answer arrived.
    pub(crate) resent: u64,
    /// Hellos lost for lack of a receive buffer.
    pub(crate) overrun: u64,
    /// Hellos that the network lost.
    pub(crate) lost: u64,
    /// Longest queue of received datagrams at one process.
    pub(crate) longest_queue: usize,
    /// Time from the first start until the last end may send.
    pub(crate) last: Duration,
    /// Time until half of all ends may send.
    pub(crate) half: Duration,
}

impl World {
    /// Returns a network of today. Each thread has a processor of its own.
    pub(crate) fn usual() -> Self {
        let us = Duration::from_micros;
        World {
            latency: us(5),
            lost_per_million: 1000,
            skew: us(1000),
            receives: 128,
            create: us(200),
            connect: us(100),
            receive: us(5),
            send: us(15),
            patience: Duration::from_secs(10),
        }
    }
}

impl Pattern {
    pub(crate) fn peers(self, process: u32, processes: u32) -> Box<dyn Iterator<Item = u32>> {
        let others = (1..processes).map(move |step| (process + step) % processes);
        match self {
            Pattern::Neighbours => {
                let [x, y, z] = sides(processes);
                let place = [process % x, process / x % y, process / x / y];
                let neighbours = [0, 1, 2].into_iter().flat_map(move |axis| {
                    let sides = [x, y, z];
                    [1, sides[axis] - 1].map(|step| {
                        let mut there = place;
                        there[axis] = (there[axis] + step) % sides[axis];
                        there[0] + x * (there[1] + y * there[2])
                    })
                });
                Box::new(neighbours.filter(move |&peer| peer != process))
            }
            Pattern::All => Box::new(others),
            Pattern::AllFromTheFirst => Box::new((0..processes).filter(move |&peer| peer != process)),
            Pattern::Master => Box::new((process != 0).then_some(0).into_iter()),
        }
    }
}

/// Returns the sides of the most cubical torus.
fn sides(processes: u32) -> [u32; 3] {
    let divisor = |number: u32, near: u32| (1..=near).rev().find(|&side| number.is_multiple_of(side)).unwrap_or(1);
    let x = divisor(processes, (processes as f64).cbrt().round() as u32);
    let rest = processes / x;
    let y = divisor(rest, (rest as f64).sqrt().round() as u32);
    [x, y, rest / y]
}
