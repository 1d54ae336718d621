//! Messages in the order of a stream.

mod alone;
pub(crate) mod command;
mod ends;
mod graphs;
mod order;
mod pingpong;
mod prepared;
mod puts;
mod queues;
mod random;
mod small;
mod together;

use std::error::Error;
use std::ffi::c_void;

use cableway::{RawBuffer, StreamRef, StreamWord, Vendor, World};

use crate::device_programs::app::{App, Handle};
use crate::faults::survived_all;
use crate::support::{Driver, Role, Test, finish, libdir_option, over, role_job, transports};

pub(crate) const TESTS: &[Test] = &[
    ("streams::messages_go_there_and_back_with_work_between", || {
        everywhere(2, &[], &[], "streams_pingpong");
    }),
    ("streams::a_stream_that_waits_holds_up_no_copy_of_the_engine", || {
        everywhere(2, &["default_stream_order=legacy"], &[], "streams_pingpong");
        everywhere(2, &[], &[("CUDA_DEVICE_MAX_CONNECTIONS", "2")], "streams_pingpong");
    }),
    ("streams::one_hardware_queue_is_refused", queues::one_is_refused),
    ("streams::as_many_waiting_streams_as_queues_are_warned_of", queues::are_counted),
    ("streams::random_programs_give_what_a_model_gives", || {
        for (ranks, seed) in [(2, "1"), (2, "2"), (3, "3")] {
            everywhere(ranks, &[], &[("STREAMS_SEED", seed), ("SIM_CUDA_SEED", seed)], "streams_random");
        }
    }),
    ("streams::small_messages_pass_through_host_memory", || {
        let amd = sim_cuda::Vendor::tested() == sim_cuda::Vendor::Amd;
        let by_engines: &[(&str, &str)] = &[("STREAMS_BY_ENGINES", "1")];
        everywhere(2, &[], if amd { by_engines } else { &[] }, "streams_small");
        everywhere(2, &["device_kernels=no"], by_engines, "streams_small");
        everywhere(2, &["device_protocols=copy"], by_engines, "streams_small");
        let all = if amd { by_engines[0] } else { ("SIM_CUDA_SEED", "3") };
        everywhere(2, &[], &[("SIM_CUDA_KERNEL_DELAY_US", "300"), all], "streams_small");
    }),
    ("streams::a_thousand_calls_are_made_behind_a_wait", || everywhere(2, &[], &[], "streams_thousand")),
    ("streams::streams_wait_for_each_other_through_messages", || everywhere(2, &[], &[], "streams_each_other")),
    ("streams::errors_release_the_stream_and_are_told", || everywhere(2, &[], &[], "streams_errors")),
    ("streams::the_thread_sleeps_while_no_stream_has_work", || {
        everywhere(2, &[], &[], "streams_idle");
        everywhere(2, &[], &[], "streams_idle_prepared");
    }),
    ("streams::a_rank_that_dies_releases_every_stream", || dies("streams_dies")),
    ("streams::prepared_operations_go_there_and_back", || {
        everywhere(2, &[], &[], "streams_prepared");
        everywhere(2, &["device_protocols=copy"], &[("STREAMS_BY_THREAD", "1")], "streams_prepared");
    }),
    ("streams::prepared_operations_match_by_tag", || {
        for seed in ["1", "2"] {
            everywhere(2, &[], &[("SIM_CUDA_SEED", seed)], "streams_prepared_many");
        }
        everywhere(2, &["device_protocols=copy"], &[("STREAMS_BY_THREAD", "1")], "streams_prepared_many");
    }),
    ("streams::prepared_operations_that_end_release_the_stream", || {
        everywhere(2, &[], &[], "streams_prepared_refusals");
    }),
    ("streams::a_rank_that_dies_releases_prepared_operations", || dies("streams_prepared_dies")),
    ("streams::calls_reach_the_stream_together", || everywhere(2, &[], &[], "streams_together")),
    ("streams::graphs_are_replayed_against_a_peers", graphs),
    ("streams::puts_and_signals_go_there_and_back", || {
        everywhere(2, &[], &[], "streams_puts");
        everywhere(2, &["default_stream_order=legacy"], &[], "streams_puts");
    }),
    ("streams::a_thousand_puts_are_made_behind_a_wait", || everywhere(2, &[], &[], "streams_puts_gate")),
    ("streams::puts_that_fail_release_the_stream_and_are_told", || everywhere(2, &[], &[], "streams_puts_refused")),
    ("streams::a_rank_that_dies_releases_waits_for_signals", || dies("streams_puts_die")),
    ("streams::streams_put_alone", || {
        over_sm(&[], &[], "streams_alone");
        over_sm(&["default_stream_order=legacy"], &[("SIM_CUDA_SEED", "7")], "streams_alone");
    }),
    ("streams::a_thread_puts_what_streams_cannot", || {
        over_sm(&["device_protocols=copy"], &[("STREAMS_BY_THREAD", "1")], "streams_alone");
        over_sm(&[], &[], "streams_alone_choices");
        over_sm(&[], &[], "streams_alone_pools");
        if transports().iter().any(|btl| btl == "tcp") {
            only("tcp", &[], &[("STREAMS_BY_THREAD", "1")], "streams_alone");
        }
    }),
    ("streams::the_end_of_a_registration_waits_for_puts", || {
        for seed in ["1", "2"] {
            over_sm(&[], &[("SIM_CUDA_SEED", seed)], "streams_alone_deregistered");
        }
    }),
    ("streams::memory_is_mapped_for_puts_again_and_again", || over_sm(&[], &[], "streams_alone_again")),
    ("streams::a_rank_that_dies_ends_puts_of_streams", || dies_over("sm", "streams_alone_dies")),
    ("streams::a_destroyed_context_releases_the_program", destroyed),
    ("streams::a_kernel_that_faults_releases_the_program", faulted),
];

pub(crate) const ROLES: &[Role] = &[
    ("streams_pingpong", pingpong::there_and_back),
    ("streams_random", random::random),
    ("streams_small", small::small),
    ("streams_thousand", order::thousand),
    ("streams_each_other", order::each_other),
    ("streams_many", queues::many),
    ("streams_errors", ends::errors),
    ("streams_idle", ends::idle),
    ("streams_idle_prepared", ends::idle_beside_prepared),
    ("streams_dies", ends::dies),
    ("streams_prepared", prepared::there_and_back),
    ("streams_prepared_many", prepared::many),
    ("streams_prepared_refusals", prepared::refusals),
    ("streams_together", together::together),
    ("streams_graphs", graphs::replayed),
    ("streams_prepared_dies", prepared::dies),
    ("streams_puts", puts::there_and_back),
    ("streams_puts_gate", puts::behind_a_gate),
    ("streams_puts_refused", puts::refusals),
    ("streams_puts_die", puts::dies),
    ("streams_alone", alone::there_and_back),
    ("streams_alone_choices", alone::choices),
    ("streams_alone_pools", alone::pools),
    ("streams_alone_deregistered", alone::deregistered),
    ("streams_alone_again", alone::again),
    ("streams_alone_dies", alone::dies),
    ("streams_destroyed", ends::destroyed),
    ("streams_faulted", ends::faulted),
    ("streams_prepared_faulted", prepared::faulted),
];

type Outcome = Result<(), Box<dyn Error>>;

/// Runs a role over every transport with the driver.
fn everywhere(ranks: u32, settings: &[&str], variables: &[(&str, &str)], role: &str) {
    for btl in transports() {
        job(ranks, &btl, settings, variables, role);
    }
}

/// Runs a role of two ranks over shared memory, whose processes map each other's device memory.
fn over_sm(settings: &[&str], variables: &[(&str, &str)], role: &str) {
    only("sm", settings, variables, role);
}

/// Runs a role of two ranks over one transport.
fn only(btl: &str, settings: &[&str], variables: &[(&str, &str)], role: &str) {
    job(2, btl, settings, variables, role);
}

fn job(ranks: u32, btl: &str, settings: &[&str], variables: &[(&str, &str)], role: &str) {
    let driver = Driver::find().folder.to_string_lossy().into_owned();
    let mut options = over(btl);
    options.extend([libdir_option().to_owned(), driver]);
    options.extend(settings.iter().flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    finish(role_job(ranks, &options, role).envs(variables.iter().copied())).assert_success();
}

fn dies(role: &str) {
    transports().iter().for_each(|btl| dies_over(btl, role));
}

fn dies_over(btl: &str, role: &str) {
    let driver = Driver::find().folder.to_string_lossy().into_owned();
    let mut options = over(btl);
    options.extend([libdir_option().to_owned(), driver, "--keep-going".to_owned()]);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    survived_all(btl, finish(&mut role_job(3, &options, role)));
}

fn graphs() {
    if sim_cuda::Vendor::tested() == sim_cuda::Vendor::Amd {
        return crate::support::skip("graphs of AMD's library contain no operations on words");
    }
    let launches = std::env::var("CABLEWAY_TEST_GRAPHS").unwrap_or_else(|_| "300".to_owned());
    for seed in ["1", "2"] {
        everywhere(2, &[], &[("SIM_CUDA_SEED", seed), ("STREAMS_LAUNCHES", &launches)], "streams_graphs");
    }
}

/// A real driver may wait for the context's work.
fn destroyed() {
    if !Driver::find().simulated || sim_cuda::Vendor::tested() == sim_cuda::Vendor::Amd {
        return crate::support::skip("a context with work is destroyed on the simulated driver only");
    }
    everywhere(2, &[], &[], "streams_destroyed");
}

fn faulted() {
    if sim_cuda::Vendor::tested() == sim_cuda::Vendor::Amd {
        return crate::support::skip("the kernel that faults is text for NVIDIA's devices");
    }
    everywhere(2, &[], &[], "streams_faulted");
    over_sm(&[], &[], "streams_prepared_faulted");
}

/// A rank, its driver, and the streams that it makes.
struct Program {
    world: World,
    app: App,
    me: u32,
}

impl Program {
    fn start() -> Result<Program, Box<dyn Error>> {
        let world = World::init()?;
        world.devices().initialise()?;
        let folder = std::env::var_os(sim_cuda::Vendor::tested().variable()).ok_or("the job names no driver")?;
        let app = App::load(Some(folder.as_ref())).ok_or("no driver")?;
        app.use_device((world.rank() % app.device_count()).try_into()?);
        let me = world.rank();
        Ok(Program { world, app, me })
    }

    /// The stream lives as long as the process.
    fn describe(&self, stream: Handle) -> Result<StreamRef, cableway::Error> {
        let vendor = match sim_cuda::Vendor::tested() {
            sim_cuda::Vendor::Nvidia => Vendor::Nvidia,
            sim_cuda::Vendor::Amd => Vendor::Amd,
        };
        // SAFETY: no role destroys its streams.
        unsafe { self.world.stream(vendor, std::ptr::with_exposed_provenance_mut::<c_void>(stream)) }
    }

    /// Allocates host memory that the device accesses, filled with zeros. It is never freed.
    fn word(&self) -> Result<Gate, Box<dyn Error>> {
        let mut address = std::ptr::null_mut();
        // Portable and mapped.
        self.app.cuMemHostAlloc(&raw mut address, 64, 3).map_err(answered)?;
        // SAFETY: 64 bytes of host memory.
        unsafe { address.write_bytes(0, 64) };
        Ok(Gate(address.cast()))
    }

    /// Adds to the stream: sets all bytes of device memory.
    fn fill(&self, stream: Handle, address: u64, value: u8, len: usize) -> Outcome {
        Ok(self.app.cuMemsetD8Async(address, value, len, stream).map_err(answered)?)
    }

    /// Adds to the stream: copies device memory.
    fn copy(&self, stream: Handle, to: u64, from: u64, len: usize) -> Outcome {
        Ok(self.app.cuMemcpyAsync(to, from, len, stream).map_err(answered)?)
    }
}

/// A word of host memory that streams wait for, opened by the CPU.
struct Gate(*mut u64);

impl Gate {
    fn word(&self) -> StreamWord {
        // With unified addresses the device uses the same one.
        StreamWord::Bits64(self.0 as u64)
    }

    fn address(&self) -> u64 {
        self.0 as u64
    }

    fn open(&self, value: u64) {
        // SAFETY: an aligned word of memory that is never freed.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.0) }.store(value, std::sync::atomic::Ordering::Release);
    }

    fn load(&self) -> u64 {
        // SAFETY: as above.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.0) }.load(std::sync::atomic::Ordering::Acquire)
    }
}

/// Describes device memory of the program, which is never freed.
fn raw(address: u64, len: usize) -> RawBuffer<'static> {
    // SAFETY: the callers use it in one stream at a time.
    unsafe { RawBuffer::new(std::ptr::with_exposed_provenance_mut(address as usize), len as u64) }
}

fn answered(code: i32) -> String {
    format!("the driver answered {code}")
}

fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(77)) >> 13) as u8).collect()
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}").into()) }
}

/// Compares bytes, and names the first one that differs.
fn expect_bytes(what: &str, found: &[u8], expected: &[u8]) -> Outcome {
    expect(found.len(), expected.len())?;
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => Err(format!("{what}: byte {at} is {} instead of {}", found[at], expected[at]).into()),
    }
}

/// A sequence of numbers that a seed gives.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at as u64 + 1) as usize);
        }
    }

    /// Lets the calling thread fall behind, or not.
    fn skew(&mut self) {
        for _ in 0..self.below(4) * self.below(20_000) {
            std::hint::spin_loop();
        }
    }
}
