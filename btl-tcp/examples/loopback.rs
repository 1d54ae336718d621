//! Two pinned processes over 127.0.0.1: 8-byte latency, and bandwidth by messages in place and by puts, at the level
//! of the transport. For comparison with Open MPI's ob1 on the same two cores:
//! `mpirun -np 2 --bind-to core --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo ...`
//!
//! `cargo run --release -p cableway-btl-tcp --example loopback -- [LARGEST]`

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use cableway_base::parameters::parse_size;
use cableway_base::{Parameters, Rank, Source};
use cableway_btl::{
    Access, Btl, Endpoint, Error as BtlError, Job, Received, Region, Remote, RemoteHandle, Sent, Token, Transfer,
    Upcalls,
};
use cableway_btl_tcp::Tcp;
use cableway_common_cuda::{Devices, Location, Order};

/// Messages in flight before the receiver answers.
const WINDOW: usize = 64;
/// Bytes of one bandwidth measurement.
const VOLUME: usize = 1 << 30;
const PINGS: u32 = 20_000;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => parent("64M"),
        [largest] => parent(largest),
        ["--second", largest, cpu, card] => {
            Process::new(1, parse_size(largest)? as usize, cpu.parse()?)?.run(&unhex(card)?)
        }
        _ => Err("usage: loopback [LARGEST]".into()),
    }
}

/// Starts the second process and exchanges cards with it.
fn parent(largest: &str) -> Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let mut cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let (Some(first), Some(second)) = (cpus.next(), cpus.next()) else {
        return Err("two processors are needed".into());
    };
    let process = Process::new(0, parse_size(largest)? as usize, first)?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--second", largest, &second.to_string(), &hex(&process.tcp.card())])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("the child has no output")?).read_line(&mut line)?;
    process.run(&unhex(line.trim())?)?;
    child.wait()?;
    Ok(())
}

struct Process {
    rank: Rank,
    largest: usize,
    tcp: std::sync::Arc<Tcp>,
    told: Told,
}

/// What has arrived. Payloads are copied out, as `pml` would.
struct Told {
    messages: Cell<usize>,
    bytes: Cell<usize>,
    sink: RefCell<Vec<u8>>,
    last: RefCell<Vec<u8>>,
    completed: Cell<usize>,
}

impl Upcalls for Told {
    fn receive(&self, _: Rank, message: Received<'_>) {
        let bytes = message.bytes();
        self.messages.set(self.messages.get() + 1);
        if bytes.len() <= RemoteHandle::MAX {
            let mut last = self.last.borrow_mut();
            last.resize(bytes.len(), 0);
            bytes.copy_to(&mut last);
            return;
        }
        let mut sink = self.sink.borrow_mut();
        let at = self.bytes.get() % sink.len();
        let room = sink.len() - at;
        bytes.copy_to(&mut sink[at..at + room.min(bytes.len())]);
        self.bytes.set(self.bytes.get() + bytes.len());
    }

    fn completed(&self, _: Token, result: std::result::Result<(), BtlError>) {
        if let Err(error) = result {
            eprintln!("a transfer failed: {error}");
        }
        self.completed.set(self.completed.get() + 1);
    }

    fn peer_failed(&self, peer: Rank, error: BtlError) {
        eprintln!("peer {peer} failed: {error}");
        std::process::exit(1);
    }
    fn peer_left(&self, _peer: Rank) {}
}

impl Process {
    fn new(rank: Rank, largest: usize, cpu: usize) -> Result<Self> {
        let mut cpus = rustix::thread::CpuSet::new();
        cpus.set(cpu);
        rustix::thread::sched_setaffinity(None, &cpus)?;
        let mut parameters = Parameters::from_environment()?;
        parameters.assign("btl_tcp_if_include=127.0.0.1/8", Source::Program)?;
        let job = Job::new("loopback".to_owned(), [7; 32], rank, 2, 2);
        let told = Told {
            messages: Cell::new(0),
            bytes: Cell::new(0),
            sink: RefCell::new(vec![0; largest]),
            last: RefCell::default(),
            completed: Cell::new(0),
        };
        Ok(Process { rank, largest, tcp: Tcp::new(&job, &parameters, &Devices::none())?, told })
    }

    fn run(&self, card: &[u8]) -> Result<()> {
        if self.rank == 1 {
            println!("{}", hex(&self.tcp.card()));
            std::io::stdout().flush()?;
        }
        let mut endpoints = self.tcp.connect(1 - self.rank, card)?;
        let endpoint = &mut **endpoints.first_mut().ok_or("no route over loopback")?;
        self.latency(endpoint)?;
        let mut size = 64 << 10;
        while size <= self.largest {
            self.messages_in_place(endpoint, size)?;
            self.puts(endpoint, size)?;
            size *= 2;
        }
        drop(endpoints);
        while !self.tcp.finalize() {
            self.tcp.progress(&self.told);
        }
        Ok(())
    }

    fn send(&self, endpoint: &mut dyn Endpoint, bytes: &[u8]) -> Result<()> {
        while endpoint.send_inline(bytes, &[])? == Sent::Busy {
            self.tcp.progress(&self.told);
        }
        Ok(())
    }

    fn await_messages(&self, count: usize) {
        while self.told.messages.get() < count {
            self.tcp.progress(&self.told);
        }
        self.told.messages.set(self.told.messages.get() - count);
    }

    fn latency(&self, endpoint: &mut dyn Endpoint) -> Result<()> {
        let mut start = Instant::now();
        for ping in 0..PINGS + 1000 {
            if ping == 1000 {
                start = Instant::now();
            }
            if self.rank == 0 {
                self.send(endpoint, &[1; 8])?;
            }
            self.await_messages(1);
            if self.rank == 1 {
                self.send(endpoint, &[1; 8])?;
            }
        }
        if self.rank == 0 {
            println!("8 B latency {:.2} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(2 * PINGS));
        }
        Ok(())
    }

    /// Starts a transfer, waiting while the link is busy. Returns whether a completion is to come.
    fn start(&self, mut begin: impl FnMut() -> std::result::Result<Transfer, BtlError>) -> Result<usize> {
        loop {
            match begin()? {
                Transfer::Busy => self.tcp.progress(&self.told),
                Transfer::Done => return Ok(0),
                Transfer::Started => return Ok(1),
            };
        }
    }

    fn await_completions(&self, count: usize) {
        while self.told.completed.get() < count {
            self.tcp.progress(&self.told);
        }
        self.told.completed.set(0);
    }

    fn rounds(size: usize) -> (usize, usize) {
        let window = WINDOW.min((VOLUME / 4 / size).max(1));
        (window, (VOLUME / (window * size)).max(1))
    }

    fn messages_in_place(&self, endpoint: &mut dyn Endpoint, size: usize) -> Result<()> {
        let piece = endpoint.capabilities().max_send_size - 24;
        let (window, rounds) = Self::rounds(size);
        let mut source = vec![1u8; size];
        let pieces = size.div_ceil(piece);
        let mut start = Instant::now();
        for round in 0..=rounds {
            if round == 1 {
                start = Instant::now();
            }
            if self.rank == 0 {
                let mut started = 0;
                for _ in 0..window {
                    for chunk in source.chunks_mut(piece) {
                        // SAFETY: the source lives and stays unwritten until all is completed below.
                        started +=
                            self.start(|| unsafe { endpoint.send_in_place(&[0; 24], region(chunk), Token(0)) })?;
                    }
                }
                self.await_completions(started);
                self.await_messages(1);
            } else {
                self.await_messages(window * pieces);
                self.send(endpoint, &[1; 8])?;
            }
        }
        self.report("messages in place", size, window * rounds, start);
        Ok(())
    }

    fn puts(&self, endpoint: &mut dyn Endpoint, size: usize) -> Result<()> {
        let (window, rounds) = Self::rounds(size);
        let mut memory = vec![1u8; size];
        if self.rank == 1 {
            // SAFETY: the memory outlives the registration and is not looked at.
            let registration = unsafe { endpoint.register(region(&mut memory), Access::RemoteWrite) }?
                .ok_or("host memory cannot be registered")?;
            self.send(endpoint, registration.handle().as_bytes())?;
            for _ in 0..=rounds {
                self.await_messages(1);
                self.send(endpoint, &[1; 8])?;
            }
            return Ok(());
        }
        self.await_messages(1);
        let handle = RemoteHandle::new(&self.told.last.borrow()).ok_or("no handle")?;
        let mut start = Instant::now();
        for round in 0..=rounds {
            if round == 1 {
                start = Instant::now();
            }
            let mut started = 0;
            for _ in 0..window {
                // SAFETY: the memory lives and stays unwritten until all is completed below.
                started += self.start(|| unsafe {
                    endpoint.put(&region(&mut memory).into(), &Remote::at(&handle, 0), Token(0))
                })?;
            }
            self.await_completions(started);
            self.send(endpoint, &[1; 8])?;
            self.await_messages(1);
        }
        self.report("puts", size, window * rounds, start);
        Ok(())
    }

    fn report(&self, what: &str, size: usize, count: usize, start: Instant) {
        if self.rank == 0 {
            let rate = (size * count) as f64 / start.elapsed().as_secs_f64() / 1e9;
            println!("{:>8} KiB {what:18} {rate:6.2} GB/s", size >> 10);
        }
    }
}

fn region(memory: &mut [u8]) -> Region {
    Region { address: memory.as_mut_ptr(), len: memory.len(), location: Location::HOST, order: Order::None }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    (0..text.len() / 2).map(|at| Ok(u8::from_str_radix(text.get(2 * at..2 * at + 2).ok_or("no card")?, 16)?)).collect()
}
