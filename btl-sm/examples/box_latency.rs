//! Measures latency, message rate and bandwidth of the bare transport between two processes, each bound to a core:
//!
//! ```text
//! cargo run --release -p cableway-btl-sm --example box_latency
//! ```
//!
//! Reports medians of seven runs. One call of `send_inline` (or `get`) is measured, and `progress` with an upcall that
//! copies the message out, without matching or requests.

use std::cell::{Cell, RefCell};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Instant;

use cableway_base::{Parameters, Rank};
use cableway_btl::{
    Access, Btl, Endpoint, Error, FragmentKind, Job, Received, Region, Remote, RemoteHandle, Sent, Token, Transfer,
    Upcalls,
};
use cableway_btl_sm::SharedMemory;
use cableway_common_cuda::{Devices, Location, Order};

const RUNS: usize = 7;
const HEADER: [u8; 16] = [1; 16];

type Failure = Box<dyn std::error::Error>;

/// Counts messages and copies each to the same place.
struct Counting {
    count: Cell<usize>,
    last: RefCell<Vec<u8>>,
}

impl Upcalls for Counting {
    fn receive(&self, _peer: Rank, message: Received<'_>) {
        let mut last = self.last.borrow_mut();
        let copied = message.bytes().copy_to(&mut last[..]);
        std::hint::black_box(&last[..copied]);
        self.count.set(self.count.get() + 1);
    }
    fn completed(&self, _token: Token, _result: Result<(), Error>) {}
    fn peer_failed(&self, peer: Rank, error: Error) {
        eprintln!("rank {peer}: {error}");
        std::process::exit(1);
    }
    fn peer_left(&self, _peer: Rank) {}
}

struct Side {
    rank: Rank,
    btl: std::sync::Arc<SharedMemory>,
    endpoint: Box<dyn Endpoint>,
    heard: Counting,
    expected: usize,
}

impl Side {
    fn send(&mut self, payload: &[u8]) -> Result<(), Failure> {
        if HEADER.len() + payload.len() <= self.endpoint.capabilities().inline_limit {
            while self.endpoint.send_inline(&HEADER, payload)? == Sent::Busy {
                self.btl.progress(&self.heard);
            }
            return Ok(());
        }
        loop {
            if let Some(mut fragment) = self.endpoint.alloc(HEADER.len() + payload.len(), FragmentKind::Host)? {
                fragment.write(0, &HEADER);
                fragment.write(HEADER.len(), payload);
                return Ok(self.endpoint.send(fragment, HEADER.len() + payload.len())?);
            }
            self.btl.progress(&self.heard);
        }
    }

    /// Waits for `count` more messages.
    fn receive(&mut self, count: usize) {
        self.expected += count;
        while self.heard.count.get() < self.expected {
            self.btl.progress(&self.heard);
        }
    }

    fn ping_pong(&mut self, payload: &[u8], rounds: usize) -> Result<f64, Failure> {
        let start = Instant::now();
        for _ in 0..rounds {
            if self.rank == 0 {
                self.send(payload)?;
                self.receive(1);
            } else {
                self.receive(1);
                self.send(payload)?;
            }
        }
        Ok(start.elapsed().as_secs_f64() / rounds as f64 / 2.0)
    }

    fn stream(&mut self, payload: &[u8], count: usize) -> Result<f64, Failure> {
        let start = Instant::now();
        if self.rank == 0 {
            for _ in 0..count {
                self.send(payload)?;
            }
            self.receive(1);
        } else {
            self.receive(count);
            self.send(b"done")?;
        }
        Ok(start.elapsed().as_secs_f64() / count as f64)
    }

    /// Rank 1 fetches from rank 0.
    fn get(&mut self, len: usize, piece: usize, count: usize) -> Result<f64, Failure> {
        let mut memory = vec![self.rank as u8; len];
        let region = Region { address: memory.as_mut_ptr(), len, location: Location::HOST, order: Order::None };
        if self.rank == 0 {
            // SAFETY: the memory lives until rank 1 reports the end.
            let registration = unsafe { self.endpoint.register(region, Access::RemoteRead)? };
            let registration = registration.ok_or("single copy does not work here")?;
            let mut message = registration.handle().as_bytes().to_vec();
            message.resize(128, 0);
            self.send(&message)?;
            self.receive(1);
            return Ok(0.0);
        }
        self.receive(1);
        let handle = RemoteHandle::new(&self.heard.last.borrow()[16..16 + 17]).ok_or("no handle came")?;
        let start = Instant::now();
        for _ in 0..count {
            for offset in (0..len).step_by(piece) {
                let to = Region { address: memory[offset..].as_mut_ptr(), len: piece.min(len - offset), ..region };
                // SAFETY: the memory belongs to this process, and a `get` of this transport completes before it
                // returns.
                let done = unsafe { self.endpoint.get(&to.into(), &Remote::at(&handle, offset as u64), Token(0))? };
                assert_eq!(done, Transfer::Done);
            }
        }
        let time = start.elapsed().as_secs_f64() / count as f64;
        assert!(memory.iter().all(|&byte| byte == 0));
        self.send(b"done")?;
        Ok(time)
    }
}

fn median(mut runs: Vec<f64>) -> f64 {
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

fn measure(side: &mut Side) -> Result<(), Failure> {
    let report = |line: String| {
        if std::env::var_os("CABLEWAY_TEST_CARD").is_none() {
            println!("{line}");
        }
    };
    for _ in 0..20 {
        side.ping_pong(&[0; 8], 200)?;
    }
    for len in [8, 40, 64, 128, 200, 256, 512, 1000, 2048, 4000, 16_000] {
        let payload = vec![5; len];
        let runs = (0..RUNS).map(|_| side.ping_pong(&payload, 10_000)).collect::<Result<_, _>>()?;
        report(format!("latency   {len:6} B  {:8.1} ns", median(runs) * 1e9));
    }
    for len in [8, 40, 64, 128, 200, 256, 512, 1000, 4000, 32_000] {
        let payload = vec![5; len];
        let runs = (0..RUNS).map(|_| side.stream(&payload, 100_000)).collect::<Result<_, _>>()?;
        let time = median(runs);
        let (rate, bandwidth) = (1e-6 / time, len as f64 * 1e-9 / time);
        report(format!("stream    {len:6} B  {rate:8.2} M/s  {bandwidth:6.2} GB/s"));
    }
    for (len, piece) in [
        (16 << 10, 1 << 20),
        (64 << 10, 1 << 20),
        (256 << 10, 1 << 20),
        (4 << 20, 64 << 10),
        (4 << 20, 256 << 10),
        (4 << 20, 1 << 20),
        (4 << 20, 4 << 20),
        (64 << 20, 256 << 10),
        (64 << 20, 1 << 20),
        (64 << 20, 64 << 20),
    ] {
        let count = ((64 << 20) / len).min(500);
        let runs = (0..RUNS).map(|_| side.get(len, piece, count)).collect::<Result<_, _>>()?;
        let time = median(runs);
        if side.rank == 1 {
            let bandwidth = len as f64 * 1e-9 / time;
            eprintln!("get {:6} KiB in pieces of {:6} KiB  {bandwidth:6.2} GB/s", len >> 10, piece.min(len) >> 10);
        }
    }
    Ok(())
}

fn bind(core: usize) -> Result<(), Failure> {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &cores)?)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Result<Vec<u8>, Failure> {
    (0..text.len() / 2).map(|at| Ok(u8::from_str_radix(&text[2 * at..2 * at + 2], 16)?)).collect()
}

fn main() -> Result<(), Failure> {
    let card_of_zero = std::env::var("CABLEWAY_TEST_CARD").ok();
    let rank = Rank::from(card_of_zero.is_some());
    bind(rank as usize)?;
    let job = Job::new("box_latency".to_owned(), [1; 32], rank, 2, 2);
    let parameters = Parameters::from_environment()?;
    let btl = SharedMemory::new(&job, &parameters, &Devices::none())?;
    let mut child = None;
    let peer_card = match &card_of_zero {
        Some(card) => {
            println!("{}", to_hex(&btl.card()));
            from_hex(card)?
        }
        None => {
            let mut command = Command::new(std::env::current_exe()?);
            command.env("CABLEWAY_TEST_CARD", to_hex(&btl.card())).stdout(Stdio::piped());
            let started = child.insert(command.spawn()?);
            let mut line = String::new();
            BufReader::new(started.stdout.as_mut().ok_or("no pipe")?).read_line(&mut line)?;
            from_hex(line.trim())?
        }
    };
    let endpoint = btl.connect(1 - rank, &peer_card)?.pop().ok_or("the two processes cannot share memory")?;
    let heard = Counting { count: Cell::new(0), last: RefCell::new(vec![0; 1 << 20]) };
    measure(&mut Side { rank, btl, endpoint, heard, expected: 0 })?;
    std::io::stdout().flush()?;
    if let Some(mut child) = child {
        child.wait()?;
    }
    Ok(())
}
