//! Calls with wrong arguments. Nothing is sent, so that the program can correct them.

use cableway::{Complex, Datatype, ErrorKind, Neighbors, Parts, Predefined, ReduceOperation, TypedSliceMut, World};

use super::{Outcome, expect};

fn says(result: Result<(), cableway::Error>, texts: &[&str]) -> Outcome {
    let Err(error) = result else { return Err(format!("no error: {texts:?}").into()) };
    let text = error.to_string();
    if !matches!(error.kind(), ErrorKind::Collective { .. } | ErrorKind::BadCollective { .. }) {
        return Err(format!("of another kind: {text}").into());
    }
    match texts.iter().find(|part| !text.contains(**part)) {
        None => Ok(()),
        Some(part) => Err(format!("'{text}' lacks '{part}'").into()),
    }
}

pub(super) fn mistakes() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let (sum, me) = (ReduceOperation::Sum, on.rank());
    let (two, three, mut four) = ([1_u64; 2], [1_u64; 3], [0_u64; 4]);
    // Only rank 0 makes mistakes. The others wait for it at the end, in their first operation.
    if me == 0 {
        says(on.broadcast(&mut four, 2), &["broadcast of 32 bytes, root 2", "invalid root 2: there are 2 ranks"])?;
        says(on.gather(&two, 7, Some(&mut four)), &["gather", "invalid root 7"])?;
        says(on.gather(&two, 0, None::<&mut [u64]>), &["gather of 16 bytes, root 0", "the root needs a buffer"])?;
        says(on.gather(&three, 0, Some(&mut four)), &["sends 24 bytes where it receives 16"])?;
        says(on.allgather(&two, &mut [0_u64; 3]), &["3 elements cannot be divided evenly among 2 ranks"])?;
        let outside = Parts::new(&[2, 3]);
        says(on.allgatherv(&two, &mut four, outside), &["the part of rank 1 ends at element 5", "has 4"])?;
        let overlapping = Parts::at(&[2, 2], &[0, 1]);
        says(on.allgatherv(&two, &mut four, overlapping), &["the parts of ranks 0 and 1 overlap"])?;
        says(on.allgatherv(&two, &mut four, Parts::new(&[4])), &["list of counts has 1 entries"])?;
        let wraps = Parts::at(&[2, 2], &[0, usize::MAX]);
        says(on.scatterv(Some((&three, wraps)), 0, &mut four[..2]), &["the part of rank 1 ends"])?;
        says(on.alltoall(&two, &mut four), &["sends 8 bytes where it receives 16"])?;
        says(on.allreduce(&two, &mut four, sum), &["allreduce of 16 bytes", "4 elements: pass one of 2 elements"])?;
        says(on.reduce(&two, sum, 0, None::<&mut [u64]>), &["the root needs a buffer for the result"])?;
        says(on.reduce_scatter_block(&three, &mut four, sum), &["cannot be divided evenly"])?;
        says(on.reduce_scatter(&three, &mut four, &[1, 1], sum), &["add up to 2 elements, not to 3"])?;
        says(on.scan(&two, &mut four, sum), &["scan"])?;
        let neighbors = |sends: &[(u32, u16)], receives: &[(u32, u16)]| {
            let (mut rooms, mut calls) = ([[0_u64; 2]; 2], Neighbors::new());
            for &(rank, number) in sends {
                calls.send(&two, rank, number)?;
            }
            for (&(rank, number), room) in receives.iter().zip(&mut rooms) {
                calls.receive(room, rank, number)?;
            }
            on.neighbor_alltoall(calls)
        };
        says(neighbors(&[(2, 0)], &[]), &["neighbor_alltoall of 16 bytes", "2 ranks"])?;
        says(neighbors(&[], &[(9, 0)]), &["neighbor_alltoall", "rank 9"])?;
        says(neighbors(&[(1, 5), (1, 5)], &[]), &["two messages to rank 1 have the number 5"])?;
        says(neighbors(&[], &[(1, 6), (1, 6)]), &["two messages from rank 1 have the number 6"])?;
        says(neighbors(&[(0, 1)], &[(0, 2)]), &["does not receive message 1 of 16 bytes"])?;
        says(neighbors(&[], &[(0, 2)]), &["does not send message 2 of 16 bytes"])?;
        let mut numbers = [Complex { re: 1.0_f32, im: 0.0 }];
        says(on.allreduce_in_place(&mut numbers, ReduceOperation::Max), &["Max is not defined", "Complex32"])?;
        says(on.scope(|scope| scope.allreduce(&two, &mut four, sum)?.wait()), &["allreduce of 16 bytes"])?;
    }
    let mut sums = [0; 2];
    on.allreduce(&two, &mut sums, sum)?;
    expect(sums, [2, 2])?;
    // Both ranks expect another length: both get an error, and no message is left.
    for len in [1, 100_000] {
        let mut data = vec![u64::from(me); len + me as usize];
        let other = on.allgather_in_place(&mut vec![0_u64; 2 * data.len()]);
        says(other, &["allgather_in_place", "bytes where"])?;
        on.broadcast(&mut data[..len], 1)?;
        expect(data, vec![1; len + me as usize])?;
    }
    interleaved(&world)?;
    Ok(on.barrier()?)
}

/// Columns of a matrix as parts: they interleave, and messages write to them at the same time.
fn interleaved(world: &World) -> Outcome {
    let double = Predefined::Double.datatype();
    let column = Datatype::resized(&Datatype::vector(4, 1, 2, &double)?, 0, 8)?.commit();
    let mut matrix = [0.0_f64; 8];
    let Ok(mut columns) = TypedSliceMut::new(&mut matrix, 2, &column) else { return Ok(()) };
    says(world.communicator().allgather(&[1.0_f64; 4], &mut columns), &["overlap"])
}
