//! The simulated network and machines, the patterns of connections, and what a simulation reports.

use std::time::Duration;

/// What a network and its machines are taken to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    /// Of a datagram, to which as much again is added by chance.
    pub(crate) latency: Duration,
    /// Of a million datagrams, so many are lost.
    pub(crate) lost_per_million: u64,
    /// Within which all processes begin.
    pub(crate) skew: Duration,
    /// Datagrams that may come before the process looks.
    pub(crate) receives: usize,
    /// To make a queue pair.
    pub(crate) create: Duration,
    /// To connect it.
    pub(crate) connect: Duration,
    /// To read a datagram and check its proof.
    pub(crate) hear: Duration,
    /// To write one with its proof, and to hand it to the device.
    pub(crate) say: Duration,
    /// A peer that does not answer for so long is given up.
    pub(crate) patience: Duration,
}

/// Who connects to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Each to its six neighbours on a torus.
    Neighbours,
    /// Each to all others, beginning with the next.
    All,
    /// Each to all others, beginning with rank 0.
    AllFromTheFirst,
    /// All to rank 0.
    Master,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Pairs of processes that are connected, each at both ends.
    pub(crate) connections: u64,
    /// Ends of connections that were given up.
    pub(crate) given_up: u64,
    /// Queue pairs of the process that has most.
    pub(crate) most_queue_pairs: u32,
    pub(crate) hellos: u64,
    /// Of these, because no answer had come.
    pub(crate) said_again: u64,
    /// Of these, because no buffer was there.
    pub(crate) overrun: u64,
    /// Of these, by the network.
    pub(crate) lost: u64,
    /// Datagrams that waited at one process to be heard.
    pub(crate) longest_queue: usize,
    /// From the first beginning to the last end that may send.
    pub(crate) last: Duration,
    /// By when half of all ends could.
    pub(crate) half: Duration,
}

impl World {
    /// A network of today, and a thread that shares its processor with nobody.
    pub(crate) fn usual() -> Self {
        let us = Duration::from_micros;
        World {
            latency: us(5),
            lost_per_million: 1000,
            skew: us(1000),
            receives: 128,
            create: us(200),
            connect: us(100),
            hear: us(5),
            say: us(15),
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

/// Of the most cubical torus.
fn sides(processes: u32) -> [u32; 3] {
    let divisor = |number: u32, near: u32| (1..=near).rev().find(|&side| number.is_multiple_of(side)).unwrap_or(1);
    let x = divisor(processes, (processes as f64).cbrt().round() as u32);
    let rest = processes / x;
    let y = divisor(rest, (rest as f64).sqrt().round() as u32);
    [x, y, rest / y]
}
