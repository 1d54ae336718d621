//! Registered memory is not asked about.

use cableway::{RawBuffer, World};

use super::{Outcome, Window, exchange, expect, expect_bytes, on_device, pattern, places};
use crate::driver_calls::DriverCalls;
use crate::support::{Driver, finish, over, role_job, skip};

const LEN: usize = 1 << 16;
/// The bytes of a put, and where they begin.
const SOME: usize = 4096;
const FIRST: usize = 64;
const ROUNDS: i64 = 10;

pub(super) fn job() {
    let driver = Driver::find();
    if !driver.simulated {
        return skip("only the simulated driver counts its calls");
    }
    let options = [over("sm"), driver.options()].concat();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    finish(&mut role_job(2, &options, "one_sided_questions")).assert_success();
}

/// Rank 0 puts from memory by its address, which it has registered or not.
pub(super) fn from_registered_memory() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let device = places(&world)?.into_iter().flatten().next().ok_or("there is no device")?;
    let bytes = pattern(LEN, world.rank());
    let (registered, other) = (on_device(&world, device, &bytes)?, on_device(&world, device, &bytes)?);
    let addresses = [registered.as_device_ptr(), other.as_device_ptr()];
    let source = world.register(registered)?;
    // So long that it lies in no heap.
    let in_host = world.register(vec![7_u8; 1 << 20])?;
    let window = [Window::new(&world, Some(device), LEN)?];
    let keys = exchange(on, &window)?;
    if world.rank() == 0 {
        let calls = DriverCalls::find()?;
        let asked = |address: *mut u8| -> Result<i64, cableway::Error> {
            // SAFETY: memory of a buffer that stays, and that no peer writes.
            let from = unsafe { RawBuffer::new(address.wrapping_add(FIRST).cast(), SOME as u64) };
            (0..4).try_for_each(|_| on.put(&from, keys[1].at(0)))?;
            let before = calls.questions();
            (0..ROUNDS).try_for_each(|_| on.put(&from, keys[1].at(0)))?;
            Ok(calls.questions() - before)
        };
        // SAFETY: an address, which is read from only.
        let host = unsafe { in_host.as_slice() }.as_ptr().cast_mut();
        expect(asked(host)?, 0)?;
        expect(asked(addresses[1])? >= ROUNDS, true)?;
        expect(asked(addresses[0])?, 0)?;
        // Once the registration has ended, the memory may be freed.
        let memory = source.into_memory();
        expect(asked(memory.as_device_ptr())? >= ROUNDS, true)?;
        let host = in_host.into_memory();
        expect(asked(host.as_ptr().cast_mut())? >= ROUNDS, true)?;
        (0..4).try_for_each(|_| asked(addresses[1]).map(drop))?;
    }
    on.barrier()?;
    if world.rank() == 1 {
        expect_bytes("what was put", &window[0].bytes(SOME)?, &pattern(LEN, 0)[FIRST..][..SOME])?;
    }
    Ok(on.barrier()?)
}
