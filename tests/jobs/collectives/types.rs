//! Every type of elements, in slices and as views of device memory.

use cableway::{
    BufferKind, Communicator, Complex, DeviceBuffer, DeviceSliceMut, ElementsMut, Located, ReduceOperation, Reducible,
    World, f16,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::rooms::Rooms;
use super::{Outcome, expect};

const LEN: usize = 300;

pub(super) fn types() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let (me, size) = (on.rank(), on.size());
    let total = u64::from(size * (size + 1) / 2);
    let one = me + 1;
    let all = All { on, operation: ReduceOperation::Sum };
    all.sum(one as i8, total as i8)?;
    all.sum(one as i16, total as i16)?;
    all.sum(one as i32, total as i32)?;
    all.sum(i64::from(one), total as i64)?;
    all.sum(one as u8, total as u8)?;
    all.sum(one as u16, total as u16)?;
    all.sum(one, total as u32)?;
    all.sum(f16::from_f32(one as f32), f16::from_f32(total as f32))?;
    all.sum(one as f32, total as f32)?;
    all.sum(f64::from(one), total as f64)?;
    all.sum(Complex { re: one as f32, im: 1.0 }, Complex { re: total as f32, im: size as f32 })?;
    all.sum(Complex { re: f64::from(one), im: 1.0 }, Complex { re: total as f64, im: f64::from(size) })?;
    // All values but those of ranks 0 and 1 are equal and largest. Of these the least index counts.
    let (value, winner) = (me.min(2), size.min(3) - 1);
    let all = All { on, operation: ReduceOperation::MaxLoc };
    all.sum(Located { value: value as f32, index: me as i32 }, Located { value: winner as f32, index: winner as i32 })?;
    all.sum(
        Located { value: f64::from(value), index: me as i32 },
        Located { value: f64::from(winner), index: winner as i32 },
    )?;
    all.sum(
        Located { value: i64::from(value), index: me as i32 },
        Located { value: i64::from(winner), index: winner as i32 },
    )?;
    all.sum(Located { value: value as i32, index: me as i32 }, Located { value: winner as i32, index: winner as i32 })?;
    all.sum(Located { value: value as i16, index: me as i32 }, Located { value: winner as i16, index: winner as i32 })?;
    all.sum(Located { value: value as f32, index: me as f32 }, Located { value: winner as f32, index: winner as f32 })?;
    all.sum(
        Located { value: f64::from(value), index: f64::from(me) },
        Located { value: f64::from(winner), index: f64::from(winner) },
    )?;
    let rooms = Rooms::new(&world)?;
    if let Some(device) = rooms.device() {
        let mut memory = DeviceBuffer::new(world.devices(), device, BufferKind::Device, 1 << 20)?;
        in_device_memory(on, &mut memory, &vec![one as f32; 100_000], &vec![total as f32; 100_000])?;
        in_device_memory(on, &mut memory, &vec![f64::from(one); 333], &vec![total as f64; 333])?;
        in_device_memory(on, &mut memory, &vec![one as u8; 5000], &vec![total as u8; 5000])?;
        let misaligned = ElementsMut::<f32>::new(&mut DeviceSliceMut::new(&mut memory, 2..10)?).map(drop);
        expect(misaligned.is_err_and(|error| error.to_string().contains("misaligned")), true)?;
    }
    Ok(on.barrier()?)
}

struct All<'c> {
    on: &'c Communicator,
    operation: ReduceOperation,
}

impl All<'_> {
    /// Reduces many copies of a value.
    fn sum<T: Reducible + PartialEq + std::fmt::Debug>(&self, mine: T, expected: T) -> Outcome {
        let (values, mut results) = ([mine; LEN], vec![mine; LEN]);
        self.on.allreduce(&values, &mut results, self.operation)?;
        expect(&results, &vec![expected; LEN])?;
        let mut values = vec![mine; LEN];
        self.on.reduce_in_place(&mut values[..], self.operation, 0)?;
        let expected = if self.on.rank() == 0 { expected } else { mine };
        expect(&values, &vec![expected; LEN])
    }
}

fn in_device_memory<T>(on: &Communicator, memory: &mut DeviceBuffer, mine: &[T], expected: &[T]) -> Outcome
where
    T: Reducible + FromBytes + IntoBytes + Immutable + PartialEq + std::fmt::Debug,
{
    // At an odd element, so that kernels cannot use vectors only.
    let from = size_of::<T>();
    let end = from + size_of_val(mine);
    memory.copy_from_host(from, mine.as_bytes())?;
    {
        let mut slice = DeviceSliceMut::new(memory, from..end)?;
        on.allreduce_in_place(&mut ElementsMut::<T>::new(&mut slice)?, ReduceOperation::Sum)?;
    }
    let mut found = mine.to_vec();
    memory.copy_to_host(from, bytes_mut(&mut found))?;
    expect(&found[..], expected)
}

fn bytes_mut<T: FromBytes + IntoBytes>(values: &mut [T]) -> &mut [u8] {
    values.as_mut_bytes()
}
