//! Programs that send from and to device memory.

use std::error::Error;

use cableway::{
    Any, BufferKind, Communicator, Datatype, DeviceBuffer, DeviceIndex, DeviceSlice, DeviceSliceMut, EngineError,
    Predefined, RawBuffer, TypedSlice, TypedSliceMut, World,
};

use crate::support::{Driver, Role, Test, finish, role_job, shell_job, skip, this, transports};

pub(crate) const TESTS: &[Test] = &[
    ("device::whole_buffers_and_slices_are_sent", || every_transport("device_buffers")),
    ("device::foreign_pointers_and_datatypes_are_sent", || every_transport("device_pointers")),
    ("device::host_memory_with_datatypes_is_sent", || every_transport("host_datatypes")),
    ("device::scopes_and_threads_use_device_memory", || every_transport("device_scopes")),
    ("device::a_copy_that_fails_is_the_receivers_error", a_copy_that_fails),
    ("device::buffers_are_not_reused_before_late_copies_end", late_copies),
];

pub(crate) const ROLES: &[Role] = &[
    ("device_buffers", device_buffers),
    ("device_pointers", device_pointers),
    ("host_datatypes", host_datatypes),
    ("device_scopes", device_scopes),
    ("receivers_copies_fail", receivers_copies_fail),
    ("device_burst", device_burst),
];

type Outcome = Result<(), Box<dyn Error>>;

fn every_transport(role: &str) {
    let folder = Driver::find().folder;
    let folder = folder.to_string_lossy();
    for btl in transports().iter().map(|btl| format!("btl={btl}")) {
        finish(&mut role_job(2, &[crate::support::libdir_option(), &folder, "--set", &btl], role)).assert_success();
    }
}

/// With few buffers and many messages, the data shows if a receive buffer was reused before the device had copied from
/// it, or if copies overtook each other.
fn late_copies() {
    let folder = Driver::find().folder;
    let folder = folder.to_string_lossy();
    for btl in transports().iter().map(|btl| format!("btl={btl}")) {
        let few = "btl_openib_receive_queues=S,8K,16,4,8";
        let options =
            [crate::support::libdir_option(), &folder, "--set", &btl, "--set", few, "--set", "device_chunk_size=8K"];
        finish(&mut role_job(2, &options, "device_burst")).assert_success();
    }
}

/// Rank 1's driver refuses every copy.
fn a_copy_that_fails() {
    let Driver { folder, simulated, .. } = Driver::find();
    if !simulated {
        return skip("faults are injected into the simulated driver only");
    }
    let folder = folder.to_string_lossy();
    let [program, role] = this("receivers_copies_fail");
    let script = r#"if [ "$CABLEWAY_JOB_RANK" = 1 ]; then export SIM_CUDA_FAIL=cuMemcpyAsync:1; fi; exec "$0" "$1""#;
    for btl in ["btl=sm", "btl=tcp"] {
        let mut command = shell_job(2, &[crate::support::libdir_option(), &folder, "--set", btl], script);
        finish(command.args([&program, &role])).assert_success();
    }
}

fn receivers_copies_fail() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    // Small and large messages, received before they are sent and after.
    for (tag, (len, posted)) in (0..).zip([(100, true), (100, false), (700_000, true), (700_000, false)]) {
        if world.rank() == 0 {
            if posted {
                on.recv(&mut [0_u8], 1, 50)?;
            }
            let message = bytes(0, len);
            let sent = on.scope(|scope| {
                let sending = scope.isend(&message, 1, tag)?;
                if !posted {
                    on.send(&[0_u8], 1, 50)?;
                }
                sending.wait().map(drop)
            });
            // The sender of a small message has not waited. The sender of a large one gets the error.
            match sent {
                Ok(()) if len == 100 => {}
                Err(error)
                    if len != 100 && matches!(error.engine_error(), Some(EngineError::PeerAborted { peer: 1, .. })) => {
                }
                other => return Err(format!("message {tag}: the sender heard {other:?}").into()),
            }
            continue;
        }
        let mut inbox = DeviceBuffer::new(world.devices(), device(&world)?, BufferKind::Device, len)?;
        let received = if posted {
            on.scope(|scope| {
                let receiving = scope.irecv(&mut inbox, 0, tag)?;
                on.send(&[0_u8], 0, 50)?;
                receiving.wait()
            })
        } else {
            on.recv(&mut [0_u8], 0, 50)?;
            on.recv(&mut inbox, 0, tag)
        };
        match received {
            Err(error) if matches!(error.engine_error(), Some(EngineError::Device { .. })) => {}
            other => return Err(format!("message {tag}: the receiver heard {other:?}").into()),
        }
    }
    // Nothing else may be affected.
    let (me, peer) = (world.rank(), 1 - world.rank());
    let mut host = vec![0; 300_000];
    on.sendrecv(&bytes(me, 300_000), (peer, 60), &mut host, (peer, 60))?;
    expect_bytes(&host, &bytes(peer, 300_000))?;
    Ok(on.barrier()?)
}

fn bytes(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

fn expect_bytes(found: &[u8], expected: &[u8]) -> Outcome {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None if found.len() == expected.len() => Ok(()),
        None => Err(format!("{} bytes instead of {}", found.len(), expected.len()).into()),
        Some(at) => Err(format!("byte {at} of {}: {} instead of {}", found.len(), found[at], expected[at]).into()),
    }
}

/// Returns the device of this rank; ranks take turns.
fn device(world: &World) -> Result<DeviceIndex, cableway::Error> {
    world.devices().initialise()?;
    Ok(DeviceIndex(world.rank() % world.devices().facts()?.devices.len() as u32))
}

fn download(buffer: &DeviceBuffer) -> Result<Vec<u8>, cableway::Error> {
    let mut host = vec![0; buffer.len()];
    buffer.copy_to_host(0, &mut host)?;
    Ok(host)
}

fn device_buffers() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let device = device(&world)?;
    for len in [1, 3000, 100_000, 700_000] {
        for kind in crate::support::kinds() {
            let mut out = DeviceBuffer::new(world.devices(), device, kind, len)?;
            let mut inbox = DeviceBuffer::new(world.devices(), device, BufferKind::Device, len)?;
            out.copy_from_host(0, &bytes(me, len))?;
            let status = on.sendrecv(&out, (peer, 0), &mut inbox, (peer, 0))?;
            expect_bytes(&download(&inbox)?, &bytes(peer, len))?;
            if status.bytes != len as u64 {
                return Err(format!("{status:?}").into());
            }
            // A part of the buffer; the rest must not change.
            let (first, last) = (len / 3, len - len / 4);
            inbox.copy_from_host(0, &vec![0; len])?;
            {
                let part = DeviceSlice::new(&out, first..last)?;
                let mut room = DeviceSliceMut::new(&mut inbox, first..last)?;
                on.sendrecv(&part, (peer, 1), &mut room, (peer, 1))?;
            }
            let mut expected = vec![0; len];
            expected[first..last].copy_from_slice(&bytes(peer, len)[first..last]);
            expect_bytes(&download(&inbox)?, &expected)?;
            if DeviceSlice::new(&out, first..len + 1).is_ok() {
                return Err("a slice reaches beyond its buffer".into());
            }
        }
    }
    Ok(on.barrier()?)
}

fn device_pointers() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let device = device(&world)?;
    // Columns of a matrix of bytes: 1000 rows of 64, of which bytes 8 to 24.
    let (rows, width) = (1000, 64);
    let column = Datatype::vector(rows as i64, 16, width as i64, &Predefined::Byte.datatype())?.commit();
    let matrix = bytes(me, rows * width);
    let mut out = DeviceBuffer::new(world.devices(), device, BufferKind::Device, rows * width)?;
    let inbox = DeviceBuffer::new(world.devices(), device, BufferKind::Device, rows * width)?;
    out.copy_from_host(0, &matrix)?;
    // SAFETY: both buffers outlive their views, and nobody touches them meanwhile.
    let (send, mut receive) = unsafe {
        (
            RawBuffer::typed(out.as_device_ptr().add(8).cast(), 1, &column),
            RawBuffer::new(inbox.as_device_ptr().cast(), 16 * rows as u64),
        )
    };
    on.sendrecv(&send, (peer, 0), &mut receive, (peer, 0))?;
    let theirs = bytes(peer, rows * width);
    let packed: Vec<u8> = theirs.chunks(width).flat_map(|row| &row[8..24]).copied().collect();
    expect_bytes(&download(&inbox)?[..16 * rows], &packed)?;
    // Back into a column of a host matrix, whose gaps must not change.
    let mut host = vec![0xee; rows * width];
    let mut column_of_host = TypedSliceMut::new(&mut host[8..], 1, &column)?;
    on.sendrecv(&receive, (peer, 1), &mut column_of_host, (peer, 1))?;
    let mut expected = vec![0xee; rows * width];
    for (row, mine) in expected.chunks_mut(width).zip(matrix.chunks(width)) {
        row[8..24].copy_from_slice(&mine[8..24]);
    }
    expect_bytes(&host, &expected)?;
    Ok(on.barrier()?)
}

fn host_datatypes() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let double = Predefined::Double.datatype();
    let every_third = Datatype::vector(500, 1, 3, &double)?.commit();
    let out: Vec<f64> = (0..1500).map(|i| f64::from(i) + f64::from(me) / 4.0).collect();
    let mut inbox = vec![-1.0; 1500];
    let mut room = TypedSliceMut::new(&mut inbox, 1, &every_third)?;
    on.sendrecv(&TypedSlice::new(&out, 1, &every_third)?, (peer, 0), &mut room, (peer, 0))?;
    for (i, &value) in inbox.iter().enumerate() {
        let expected = if i % 3 == 0 { i as f64 + f64::from(peer) / 4.0 } else { -1.0 };
        if value != expected {
            return Err(format!("value {i} is {value} instead of {expected}").into());
        }
    }
    // Beyond the slice, and before it.
    let before = Datatype::hindexed(&[1], &[-8], &double)?.commit();
    if TypedSlice::new(&out, 2, &every_third).is_ok() || TypedSlice::new(&out, 1, &before).is_ok() {
        return Err("elements reach beyond their slice".into());
    }
    Ok(on.barrier()?)
}

/// Several concurrent messages, from threads that never used the device.
fn device_scopes() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let device = device(&world)?;
    let exchange = |on: &Communicator, thread: i32| -> Result<(), Box<dyn Error + Send + Sync>> {
        let (me, peer) = (on.rank(), 1 - on.rank());
        for len in [100, 50_000, 500_000] {
            let mut out = DeviceBuffer::new(world.devices(), device, BufferKind::Device, len)?;
            let mut inbox: Vec<_> = (0..4)
                .map(|_| DeviceBuffer::new(world.devices(), device, BufferKind::Device, len))
                .collect::<Result<_, _>>()?;
            out.copy_from_host(0, &bytes(me, len))?;
            on.scope(|scope| {
                let receives: Vec<_> =
                    inbox.iter_mut().map(|room| scope.irecv(room, Any, thread)).collect::<Result<_, _>>()?;
                let sends: Vec<_> = (0..4).map(|_| scope.isend(&out, peer, thread)).collect::<Result<_, _>>()?;
                receives.into_iter().chain(sends).try_for_each(|request| request.wait().map(drop))
            })?;
            for buffer in &inbox {
                expect_bytes(&download(buffer)?, &bytes(peer, len)).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    };
    let failed = std::thread::scope(|threads| {
        let running: Vec<_> = (0..3).map(|thread| threads.spawn(move || exchange(on, thread))).collect();
        running.into_iter().filter_map(|thread| thread.join().unwrap_or_else(|_| Err("panicked".into())).err()).last()
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(on.barrier()?),
    }
}

/// Many concurrent messages with different bytes, of sizes that take one or several internal buffers.
fn device_burst() -> Outcome {
    const SIZES: [usize; 4] = [40, 3_000, 7_900, 50_000];
    const MESSAGES: usize = 60;
    let world = World::init()?;
    let on = world.communicator();
    let device = device(&world)?;
    let (me, peer) = (on.rank(), 1 - on.rank());
    let seed = |from: u32, number: usize| from * 1000 + number as u32;
    let buffer =
        |number: usize| DeviceBuffer::new(world.devices(), device, BufferKind::Device, SIZES[number % SIZES.len()]);
    let mut out: Vec<_> = (0..MESSAGES).map(buffer).collect::<Result<_, _>>()?;
    let mut inbox: Vec<_> = (0..MESSAGES).map(buffer).collect::<Result<_, _>>()?;
    for (number, buffer) in out.iter_mut().enumerate() {
        buffer.copy_from_host(0, &bytes(seed(me, number), SIZES[number % SIZES.len()]))?;
    }
    on.scope(|scope| {
        let receives: Vec<_> = inbox.iter_mut().map(|room| scope.irecv(room, peer, 5)).collect::<Result<_, _>>()?;
        let sends: Vec<_> = out.iter().map(|buffer| scope.isend(buffer, peer, 5)).collect::<Result<_, _>>()?;
        receives.into_iter().chain(sends).try_for_each(|request| request.wait().map(drop))
    })?;
    for (number, buffer) in inbox.iter().enumerate() {
        expect_bytes(&download(buffer)?, &bytes(seed(peer, number), SIZES[number % SIZES.len()]))
            .map_err(|error| format!("message {number}: {error}"))?;
    }
    Ok(on.barrier()?)
}
