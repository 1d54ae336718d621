//! Simulates ten thousand processes that connect over verbs. Reports the time until all are connected, the datagrams
//! sent, the memory by the transport's own formula, and the receive buffers that many concurrent senders need. Network,
//! device and clock are simulated. The handshake, and the order of work within a process, are the transport's own code.
//! Equal seeds give equal results.
//!
//!   cargo run --release -p cableway-btl-openib --example ten_thousand_peers -- [PROCESSES [SEED]]

mod arriving;
mod connecting;
mod random;
mod world;

use std::time::Duration;

use arriving::Incast;
use cableway_base::Parameters;
use cableway_btl_openib::Footprint;
use world::{Outcome, Pattern, World};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual: u64| match arguments.next().map(|text| text.parse()) {
        None => usual,
        Some(Ok(number)) => number,
        Some(Err(_)) => {
            eprintln!("usage: ten_thousand_peers [PROCESSES [SEED]]");
            std::process::exit(2);
        }
    };
    let (processes, seed) = (number(10_000).clamp(2, 100_000) as u32, number(1));
    let world = World::usual();
    println!("# {processes} processes over verbs, simulated\n");
    println!(
        "Assumptions: a datagram takes {:?} to {:?}; 1 of {} is lost; a device buffers at most {}. A process takes {:?} to \
         create a queue pair, {:?} to connect it, {:?} to receive a datagram and {:?} to send one. Processes start within \
         {:?}. A peer that is silent for {:?} counts as dead. Seed {seed}.\n",
        world.latency,
        2 * world.latency,
        1_000_000 / world.lost_per_million,
        world.receives,
        world.create,
        world.connect,
        world.receive,
        world.send,
        world.skew,
        world.patience,
    );
    connections(processes, &world, seed);
    buffers(processes, seed);
}

fn connections(processes: u32, world: &World, seed: u64) {
    let footprint = Footprint::new(&Parameters::default()).expect("the defaults are possible");
    println!("## Connections made on first use\n");
    println!(
        "| pattern | connections | Hellos | a connection | resent | lost | no buffer | half connected, ms | all, ms | \
         given up | most queue pairs | memory there, MiB |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (name, pattern) in [
        ("nearest neighbours, 3-D", Pattern::Neighbours),
        ("all to one", Pattern::Master),
        ("all to all, each from its next on", Pattern::All),
        ("all to all, each from rank 0 on", Pattern::AllFromTheFirst),
    ] {
        let outcome = connecting::simulate(processes, pattern, world, seed);
        let Outcome { connections, hellos, resent, lost, overrun, given_up, most_queue_pairs, .. } = outcome;
        println!(
            "| {name} | {connections} | {hellos} | {:.2} | {resent} | {lost} | {overrun} | {:.1} | {:.1} | {given_up} | \
             {most_queue_pairs} | {:.0} |",
            hellos as f64 / connections as f64,
            milliseconds(outcome.half),
            milliseconds(outcome.last),
            footprint.of(most_queue_pairs as usize) as f64 / f64::from(1 << 20),
        );
    }
    println!("\n## Memory of one process, by the formula\n");
    println!("| peers | default, MiB | btl_openib_send_depth=7, MiB |");
    println!("|---:|---:|---:|");
    let mut shallow = Parameters::default();
    shallow.assign_internal("btl_openib_send_depth=7").expect("it is a parameter");
    let shallow = Footprint::new(&shallow).expect("it is possible");
    for peers in [1, 10, 100, 1000, 10_000] {
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        println!("| {peers} | {:.1} | {:.1} |", mib(footprint.of(peers)), mib(shallow.of(peers)));
    }
}

fn buffers(processes: u32, seed: u64) {
    println!("\n## All send to one at once, which has S,64K,COUNT\n");
    println!(
        "The receiver's link takes 12.5 GB/s; it hands up a message in 0.3 us and copies 10 GB/s. All begin within \
         10 us; a sender that finds no buffer waits 0.64 ms (`btl_openib_min_rnr_timer`).\n"
    );
    println!(
        "| senders | messages of each | bytes | COUNT | refused (RNR) | for each message | all there, ms | of the ideal |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (messages, size) in [(1, 64), (1, 8 << 10), (32, 8 << 10)] {
        for buffers in [64, 256, 1024, 4096, 16384] {
            let incast = Incast {
                senders: processes - 1,
                messages,
                size,
                buffers,
                link: 12_500_000_000,
                latency: Duration::from_micros(2),
                handle: Duration::from_nanos(300),
                copy: 10_000_000_000,
                pause: Duration::from_micros(640),
                skew: Duration::from_micros(10),
            };
            let arrived = arriving::simulate(&incast, seed);
            println!(
                "| {} | {messages} | {size} | {buffers} | {} | {:.2} | {:.2} | {:.2} |",
                incast.senders,
                arrived.refused,
                arrived.refused as f64 / (f64::from(incast.senders) * f64::from(messages)),
                milliseconds(arrived.last),
                arrived.last.as_secs_f64() / arrived.ideal.as_secs_f64(),
            );
        }
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
