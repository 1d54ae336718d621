//! Collective calls: performed, or made possible for MPI by host copies.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use cableway_base::warn_once;
use cableway_coll::{Call, Element, Error, Memory, Operands, Operation, ReduceOperation};
use cableway_datatype::{StagedBlock, Staging};
use cableway_pml::Engine;

use crate::boundary::{CallDescription, Code, Side, kind};
use crate::groups::Members;
use crate::guard::{guarded, is_poisoned};
use crate::process::{self, Process};

/// How long a call waits until what it has sent has left.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// The number of idle polls of the engine between two polls of MPI, in which other members may wait for this one.
const POLLS_PER_MPI_PROGRESS: u32 = 64;

unsafe extern "C" {
    fn shim_progress();
}

/// # Safety
/// The side is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_device_of(side: *const Side) -> u64 {
    guarded(0, || {
        let Some(Process { devices, .. }) = process::process() else { return 0 };
        if !devices.present() {
            return 0;
        }
        // SAFETY: the caller's promise.
        let blocks = unsafe { (*side).blocks() };
        blocks.iter().find_map(|block| device_of(block, devices)).unwrap_or(0)
    })
}

/// Returns the number of the device of a block, 1 if the driver does not tell it; `None` for host memory.
fn device_of(block: &StagedBlock, devices: &cableway_common_cuda::Devices) -> Option<u64> {
    if !Staging::needed(std::slice::from_ref(block), devices) {
        return None;
    }
    let address = std::ptr::with_exposed_provenance::<u8>(block.address);
    let location = match &block.layout {
        None => devices.classify(address, 1),
        Some(layout) => layout.classify(address, block.count, devices),
    };
    Some(location.device.and_then(|device| devices.number(device)).unwrap_or(1))
}

#[unsafe(no_mangle)]
extern "C" fn cableway_reduces(operation: c_int, element: c_int) -> bool {
    guarded(false, || numbered(operation, element).is_some_and(|(operation, element)| operation.applies_to(element)))
}

fn numbered(operation: c_int, element: c_int) -> Option<(ReduceOperation, Element)> {
    let operation = ReduceOperation::ALL.get(usize::try_from(operation).ok()?)?;
    let element = Element::ALL.get(usize::try_from(element).ok()?)?;
    Some((*operation, *element))
}

/// # Safety
/// `members` is from [`cableway_group_new`](crate::groups), the description is valid, and so is its memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_run(members: *const Members, description: *const CallDescription) -> c_int {
    let code = guarded(Code::Internal, || {
        if is_poisoned() {
            log::error!("a collective call failed, because an earlier one ended in a panic");
            return Code::Internal;
        }
        // SAFETY: the caller's promise.
        let (members, description) = unsafe { (&*members, &*description) };
        // SAFETY: as above.
        let result = unsafe { call(description, members.on.group().len()) }
            .ok_or_else(|| "the call is of an unknown kind".to_owned())
            // SAFETY: as above.
            .and_then(|call| unsafe { members.group.start_blocking(&call) }.map_err(|error| error.to_string()));
        match result.map(wait) {
            Ok(Ok(())) => Code::Ok,
            Ok(Err(error)) => {
                log::warn!("{error}");
                if matches!(error, Error::NoMemory { .. }) { Code::NoMemory } else { Code::Internal }
            }
            Err(reason) => {
                log::warn!("{reason}");
                Code::Internal
            }
        }
    });
    code as c_int
}

/// # Safety
/// The description is valid as long as the result is used.
unsafe fn call<'a>(description: &CallDescription, size: usize) -> Option<Call<'a>> {
    // SAFETY: the caller's promise.
    let (send, receive) = unsafe { (description.send.memory(), description.receive.memory()) };
    let first = |list: &[Memory<'a>]| list.first().copied();
    // MPI refuses a negative rank.
    let root = u32::try_from(description.root).ok()?;
    Some(match description.kind {
        kind::BROADCAST => {
            let nothing = Memory::bytes(std::ptr::null_mut(), 0);
            Call::Broadcast { memory: first(&receive).unwrap_or(nothing), root }
        }
        kind::GATHER => Call::Gather { send: first(&send), receive, root },
        kind::SCATTER => Call::Scatter { send, receive: first(&receive), root },
        kind::ALLGATHER => Call::Allgather { send: first(&send), receive },
        kind::ALLTOALL => Call::Alltoall { send: (!description.in_place).then_some(send), receive, even: false },
        kind::ALLREDUCE => Call::Allreduce(operands(description)?),
        kind::REDUCE => Call::Reduce { operands: operands(description)?, root },
        kind::REDUCE_SCATTER => {
            // SAFETY: the caller's promise.
            let counts = unsafe { description.counts(size) };
            Call::ReduceScatter { operands: operands(description)?, counts }
        }
        kind::SCAN => Call::Scan(operands(description)?),
        kind::EXCLUSIVE_SCAN => Call::ExclusiveScan(operands(description)?),
        _ => return None,
    })
}

fn operands(description: &CallDescription) -> Option<Operands> {
    let (operation, element) = numbered(description.operation, description.element)?;
    let input = (!description.in_place).then_some(description.input.cast());
    Some(Operands { operation, element, count: description.elements, input, output: description.output.cast() })
}

/// Waits for an operation. Then flushes what it has sent: afterwards this process may be in MPI for long, where nobody polls
/// the engine.
fn wait(mut operation: Operation) -> Result<(), Error> {
    let engine = operation.engine().clone();
    let mut result = Ok(());
    poll_until(&engine, || match operation.poll() {
        Ok(over) => over,
        Err(error) => {
            result = Err(error);
            true
        }
    });
    if !engine.drain(Duration::ZERO) {
        let end = Instant::now() + FLUSH_LIMIT;
        poll_until(&engine, || engine.drain(Duration::ZERO) || Instant::now() > end);
        if Instant::now() > end {
            warn_once("mpich/flush", || format!("messages of a collective call have not left after {FLUSH_LIMIT:?}"));
        }
    }
    result
}

/// Polls the engine, and MPI now and then, until `over` returns true.
fn poll_until(engine: &Engine, mut over: impl FnMut() -> bool) {
    let mut idle: u32 = 0;
    while !over() {
        if engine.progress() != 0 {
            idle = 0;
            continue;
        }
        idle = idle.wrapping_add(1);
        if idle.is_multiple_of(POLLS_PER_MPI_PROGRESS) {
            engine.waited(idle.into());
            // SAFETY: MPI runs, and this thread is in a call of it.
            unsafe { shim_progress() };
            std::thread::yield_now();
        }
    }
}

/// # Safety
/// `copies` is valid for writes; the sides are valid, and so is their memory; `bases` holds two addresses.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_stage(
    copies: *mut *mut Staging,
    sides: *const *const Side,
    bases: *mut *mut c_void,
) -> c_int {
    let code = guarded(Code::Internal, || {
        let Some(Process { devices, pool, .. }) = process::process() else { return Code::Ok };
        let mut staging = Staging::default();
        let mut needed = false;
        for at in 0..2 {
            // SAFETY: the caller's promise, here and below.
            let (blocks, base) = unsafe { ((**sides.add(at)).blocks(), &mut *bases.add(at)) };
            if !Staging::needed(&blocks, devices) {
                continue;
            }
            needed = true;
            match staging.add(*base as usize, blocks, pool) {
                Ok(address) => *base = std::ptr::with_exposed_provenance_mut(address),
                Err(error) => return report(&error),
            }
        }
        if needed {
            // SAFETY: as above.
            if let Err(error) = unsafe { staging.fill(devices, pool) } {
                return report(&error);
            }
            // SAFETY: as above.
            unsafe { copies.write(Box::into_raw(Box::new(staging))) };
        }
        Code::Ok
    });
    code as c_int
}

/// # Safety
/// `copies` is from [`cableway_stage`], and used only once. The program's memory is still valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_unstage(copies: *mut Staging, failed: bool) -> c_int {
    let code = guarded(Code::Internal, || {
        // SAFETY: the caller's promise.
        let mut staging = unsafe { Box::from_raw(copies) };
        let Some(Process { devices, pool, .. }) = process::process() else { return Code::Internal };
        if failed {
            return Code::Ok;
        }
        // SAFETY: as above.
        unsafe { staging.drain(devices, pool) }.map_or_else(|error| report(&error), |()| Code::Ok)
    });
    code as c_int
}

fn report(error: &cableway_datatype::Error) -> Code {
    log::warn!("{error}");
    if matches!(error, cableway_datatype::Error::NoMemory { .. }) { Code::NoMemory } else { Code::Internal }
}
