//! One-sided operations of the library.

mod direct;
mod ends;
mod examples;
mod keys;
mod layouts;
mod matrix;
mod moves;
mod posts;
mod questions;
mod stores;
mod words;

use std::error::Error;
use std::ops::Deref;

use cableway::{
    BufferKind, Communicator, Data, DeviceBuffer, DeviceIndex, RegisteredMemory, Registration, RemoteKey, SharedVec,
    World,
};
use zerocopy::IntoBytes;

use crate::support::{self, NO_DRIVER, Role, Test, finish, over, role_job};

pub(crate) const TESTS: &[Test] = &[
    ("one_sided::every_size_moves_between_every_pair_of_memories", || with_every_driver(2, "one_sided_moves")),
    ("one_sided::layouts_move_between_every_pair_of_memories", layouts::over_every_transport),
    ("one_sided::the_examples_on_device_memory", examples::over_every_transport),
    ("one_sided::the_page_has_the_code_of_the_examples", examples::the_page_has_the_code_of_the_examples),
    ("one_sided::requests_fences_and_scopes", || with_every_driver(2, "one_sided_scopes")),
    ("one_sided::threads_move_and_count", || with_every_driver(2, "one_sided_threads")),
    ("one_sided::data_comes_before_its_signal", || with_every_driver(2, "one_sided_signals")),
    ("one_sided::atomic_operations_of_all_ranks_add_up", || with_every_driver(4, "one_sided_counts")),
    ("one_sided::wrong_keys_are_errors_and_write_nothing", || with_every_driver(3, "one_sided_keys")),
    ("one_sided::ten_thousand_registrations_of_one_buffer", || with_every_driver(2, "one_sided_many")),
    ("one_sided::the_end_of_a_registration_waits_for_puts", || with_every_driver(2, "one_sided_dropped")),
    ("one_sided::a_target_that_dies_in_mid_put_is_an_error_soon", || {
        crate::faults::every_transport("one_sided_dies");
    }),
    ("one_sided::a_rank_that_leaves_keeps_its_memory", || with_every_driver(2, "one_sided_leaves")),
    ("one_sided::what_links_reach_is_moved_directly", direct::over_every_transport),
    ("one_sided::shared_memory_is_reached_by_loads_and_stores", || with_shared_memory(2, "one_sided_stores")),
    ("one_sided::a_direct_access_gives_a_signal_in_shared_memory", stores::signals_of_device_memory),
    ("one_sided::stores_wait_for_fences", || with_shared_memory(3, "one_sided_fenced_stores")),
    ("one_sided::the_end_of_a_registration_waits_for_stores", || with_shared_memory(2, "one_sided_ended_stores")),
    ("one_sided::a_target_of_stores_that_dies_is_an_error_soon", || {
        let options = [vec!["--keep-going".to_owned()], over("sm")].concat();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        crate::faults::survived_all("sm", finish(role_job(3, &options, "one_sided_dies").env(WINDOWS, "shared")));
    }),
    ("one_sided::very_many_puts_to_a_target_without_progress", posts::over_every_transport),
    ("one_sided::registered_memory_is_not_asked_about", questions::job),
    ("one_sided::matrix_of_puts", || matrix::jobs("one_sided_matrix_puts")),
    ("one_sided::matrix_of_puts_with_signals", || matrix::jobs("one_sided_matrix_signals")),
    ("one_sided::matrix_of_gets", || matrix::jobs("one_sided_matrix_gets")),
    ("one_sided::matrix_of_gets_with_signals", || matrix::jobs("one_sided_matrix_get_signals")),
    ("one_sided::matrix_of_atomic_operations", || matrix::jobs("one_sided_matrix_atomics")),
    ("one_sided::matrix_of_active_messages", || matrix::jobs("one_sided_matrix_active")),
    ("one_sided::matrix_of_messages", || matrix::jobs("one_sided_matrix_messages")),
    ("one_sided::a_progress_thread_serves_a_rank_that_computes", || with_every_driver(2, "one_sided_computes")),
];

pub(crate) const ROLES: &[Role] = &[
    ("one_sided_moves", moves::moves),
    ("one_sided_layouts", layouts::layouts_move),
    ("one_sided_example", examples::example),
    ("one_sided_scopes", moves::scopes),
    ("one_sided_threads", moves::threads),
    ("one_sided_computes", moves::computes),
    ("one_sided_signals", words::signals),
    ("one_sided_counts", words::counts),
    ("one_sided_keys", keys::keys),
    ("one_sided_many", keys::many),
    ("one_sided_dropped", ends::dropped),
    ("one_sided_dies", ends::dies),
    ("one_sided_leaves", ends::leaves),
    ("one_sided_direct", direct::direct),
    ("one_sided_stores", stores::alone),
    ("one_sided_mapped_signals", stores::signals),
    ("one_sided_fenced_stores", stores::fenced),
    ("one_sided_ended_stores", stores::ended),
    ("one_sided_outstanding", posts::outstanding),
    ("one_sided_questions", questions::from_registered_memory),
    ("one_sided_matrix_puts", matrix::puts),
    ("one_sided_matrix_signals", matrix::signals),
    ("one_sided_matrix_gets", matrix::gets),
    ("one_sided_matrix_get_signals", matrix::get_signals),
    ("one_sided_matrix_atomics", matrix::atomics),
    ("one_sided_matrix_active", matrix::active),
    ("one_sided_matrix_messages", matrix::messages),
];

/// Set to `shared` if windows in host memory are memory that ranks share.
const WINDOWS: &str = "CABLEWAY_TEST_WINDOWS";

type Outcome = Result<(), Box<dyn Error>>;

/// Runs a job over shared memory, with windows that ranks share.
fn with_shared_memory(ranks: u32, role: &str) {
    let options = over("sm");
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut job = role_job(ranks, &options, role);
    finish(job.env("CABLEWAY_CUDA_LIBDIR", NO_DRIVER).env(WINDOWS, "shared")).assert_success();
}

/// Runs jobs over every transport, with host memory only and with device memory, too. Over shared memory, ranks also share
/// their windows.
fn with_every_driver(ranks: u32, role: &str) {
    support::with_every_driver(ranks, role);
    with_shared_memory(ranks, role);
}

/// Registered memory on the host or a device.
enum Window {
    Host(Registration<Vec<u64>>),
    Shared(Registration<SharedVec<u64>>),
    Device(Registration<DeviceBuffer>),
}

impl Deref for Window {
    type Target = RegisteredMemory;

    fn deref(&self) -> &RegisteredMemory {
        match self {
            Window::Host(registration) => registration,
            Window::Shared(registration) => registration,
            Window::Device(registration) => registration,
        }
    }
}

impl Window {
    /// Registers `len` bytes of zeros, which are aligned to 8, on the device if there is one.
    fn new(world: &World, device: Option<DeviceIndex>, len: usize) -> Result<Self, Box<dyn Error>> {
        let Some(device) = device else {
            let (shared, words) = (std::env::var(WINDOWS).is_ok_and(|kind| kind == "shared"), len.div_ceil(8));
            return Ok(match shared {
                true => Window::Shared(world.register(world.shared_vec(words)?)?),
                false => Window::Host(world.register(vec![0; words])?),
            });
        };
        Ok(Window::Device(world.register(on_device(world, device, &vec![0; len.next_multiple_of(8)])?)?))
    }

    /// Returns the bytes as they are in memory, which no peer writes now.
    fn bytes(&self, len: usize) -> Result<Vec<u8>, Box<dyn Error>> {
        let mut bytes = vec![0; len];
        match self {
            // SAFETY: the callers have synchronised with the peers.
            Window::Host(memory) => bytes.copy_from_slice(&unsafe { memory.as_slice() }.as_bytes()[..len]),
            // SAFETY: as above.
            Window::Shared(memory) => bytes.copy_from_slice(&unsafe { memory.as_slice() }.as_bytes()[..len]),
            Window::Device(memory) => memory.read(0, &mut bytes)?,
        }
        Ok(bytes)
    }
}

fn on_device(world: &World, device: DeviceIndex, bytes: &[u8]) -> Result<DeviceBuffer, Box<dyn Error>> {
    let mut buffer = DeviceBuffer::new(world.devices(), device, BufferKind::Device, bytes.len().max(1))?;
    buffer.copy_from_host(0, bytes)?;
    Ok(buffer)
}

/// Returns the places of memory to test: the host, and this rank's device if there is one.
fn places(world: &World) -> Result<Vec<Option<DeviceIndex>>, Box<dyn Error>> {
    if std::env::var_os("CABLEWAY_CUDA_LIBDIR").is_some_and(|folder| folder == NO_DRIVER) {
        return Ok(vec![None]);
    }
    world.devices().initialise()?;
    let devices = world.devices().facts()?.devices.len() as u32;
    Ok(vec![None, Some(DeviceIndex(world.rank() % devices))])
}

/// Returns the keys of all ranks, those of one rank after another.
fn exchange(on: &Communicator, windows: &[Window]) -> Result<Vec<RemoteKey>, cableway::Error> {
    let mine: Vec<RemoteKey> = windows.iter().map(|window| *window.key()).collect();
    let mut all = vec![RemoteKey::default(); mine.len() * on.size() as usize];
    on.allgather(&mine, &mut all)?;
    Ok(all)
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
        Some(at) => {
            Err(format!("{what}: byte {at} of {} is {} instead of {}", found.len(), found[at], expected[at]).into())
        }
    }
}

/// Receives one value.
fn hear<T: Data + Default + Copy>(on: &Communicator, from: u32) -> Result<T, cableway::Error> {
    let mut value = [T::default()];
    on.recv(&mut value, from, 1)?;
    Ok(value[0])
}

fn tell<T: Data>(on: &Communicator, to: u32, value: T) -> Result<(), cableway::Error> {
    on.send(&[value], to, 1)
}
