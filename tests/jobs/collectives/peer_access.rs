//! Operations by peer access move no data by messages, and need no scratch memory.

use cableway::{
    BufferKind, Datatype, DeviceBuffer, DeviceSlice, DeviceSliceMut, Elements, ElementsMut, Predefined,
    ReduceOperation, TypedSliceMut, World,
};

use super::rooms::Rooms;
use super::{Outcome, expect};

/// Elements of each rank's buffer.
const LEN: usize = 1 << 16;

/// How often each operation is performed. In the first half the members agree, and map each other's memory.
const ROUNDS: usize = 8;

/// Performs each operation several times in the same device memory. The handshakes alone are messages.
pub(super) fn moves_nothing_by_messages() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let (me, size) = (u64::from(on.rank()), on.size() as usize);
    let rooms = Rooms::new(&world)?;
    let Some(device) = rooms.device() else { return Err("there is no device".into()) };
    let devices = world.devices().facts()?.devices.len();
    if devices < size {
        println!("SKIPPED: {size} ranks on {devices} devices do not access each other's memory");
        return Ok(on.barrier()?);
    }
    let buffer_of = |bytes| DeviceBuffer::new(world.devices(), device, BufferKind::Device, bytes);
    let (mut input, mut output) = (buffer_of(8 * LEN)?, buffer_of(8 * LEN)?);
    let values = |rank: u64| (0..LEN as u64).map(move |index| index * 31 + rank * 1_000_003);
    let bytes: Vec<u8> = values(me).flat_map(u64::to_le_bytes).collect();
    let sums: Vec<u64> =
        (0..LEN).map(|index| (0..size as u64).map(|r| index as u64 * 31 + r * 1_000_003).sum()).collect();
    let share = LEN / size;
    for round in 0..ROUNDS {
        input.copy_from_host(0, &bytes)?;
        output.copy_from_host(0, &vec![0; 8 * LEN])?;
        on.barrier()?;
        let before = world.counters();
        on.allreduce(&Elements::<u64>::new(&input)?, &mut ElementsMut::<u64>::new(&mut output)?, ReduceOperation::Sum)?;
        expect(read(&output)? == sums, true)?;
        // Rank `r` gets element `share * me + i` of all others as its block `me`.
        on.alltoall(&Elements::<u64>::new(&input)?, &mut ElementsMut::<u64>::new(&mut output)?)?;
        let got = read(&output)?;
        for rank in 0..size {
            let from: Vec<u64> = values(rank as u64).skip(share * me as usize).take(share).collect();
            expect(got[rank * share..][..share] == from, true)?;
        }
        on.allgather(
            &Elements::<u64>::new(&DeviceSlice::new(&input, 0..8 * share)?)?,
            &mut ElementsMut::<u64>::new(&mut DeviceSliceMut::new(&mut output, 0..8 * share * size)?)?,
        )?;
        let got = read(&output)?;
        for rank in 0..size {
            let from: Vec<u64> = values(rank as u64).take(share).collect();
            expect(got[rank * share..][..share] == from, true)?;
        }
        // Every second word of the output.
        let half = share / 2;
        let double = Predefined::Double.datatype();
        let spread = Datatype::resized(&Datatype::vector(half as i64, 1, 2, &double)?, 0, 16 * half as i64)?.commit();
        output.copy_from_host(0, &vec![0; 8 * LEN])?;
        on.allgather(
            &Elements::<u64>::new(&DeviceSlice::new(&input, 0..8 * half)?)?,
            &mut TypedSliceMut::new(&mut output, size as u64, &spread)?,
        )?;
        let got = read(&output)?;
        for rank in 0..size {
            let spread = values(rank as u64).take(half).flat_map(|value| [value, 0]);
            expect(got[rank * 2 * half..].iter().copied().take(2 * half).eq(spread), true)?;
        }
        // The output has room for this rank's share alone.
        let mut own = buffer_of(8 * share)?;
        on.reduce_scatter_block(
            &Elements::<u64>::new(&input)?,
            &mut ElementsMut::<u64>::new(&mut own)?,
            ReduceOperation::Sum,
        )?;
        expect(read(&own)? == sums[share * me as usize..][..share], true)?;
        let after = world.counters();
        let moved = |counters: &cableway::Counters| {
            counters.bytes_get.get() + counters.bytes_put.get() + counters.bytes_fragments.get()
        };
        if round >= ROUNDS / 2 {
            expect(moved(&after) - moved(&before), 0)?;
            expect(after.collective_scratch.get() - before.collective_scratch.get(), 0)?;
            // The alltoall and both allgathers.
            expect(after.collective_moves.get() - before.collective_moves.get(), 3)?;
            let eager = after.bytes_eager.get() - before.bytes_eager.get();
            expect(eager < 8192, true)?;
        }
    }
    Ok(on.barrier()?)
}

fn read(buffer: &DeviceBuffer) -> Result<Vec<u64>, Box<dyn std::error::Error>> {
    let mut bytes = vec![0; buffer.len()];
    buffer.copy_to_host(0, &mut bytes)?;
    Ok(bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes"))).collect())
}
