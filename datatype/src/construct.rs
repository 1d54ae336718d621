//! The constructors of derived datatypes, except arrays.
//!
//! Displacements in bytes and in extents, counts and block lengths are MPI's arguments, all with 64 bits. A type keeps
//! the types alive that it is built from.

use std::borrow::Cow;

use crate::assembly::Assembly;
use crate::datatype::Datatype;
use crate::error::Error;
use crate::node::Node;
use crate::regular::{Repetition, nest_of};

impl Datatype {
    /// `count` elements one after the other (`MPI_Type_contiguous`).
    ///
    /// # Errors
    /// A count is negative, or the type is too large for 64 bits. The same holds for every constructor.
    pub fn contiguous(count: i64, old: &Datatype) -> Result<Datatype, Error> {
        let mut assembly = Assembly::new("contiguous");
        let count = natural("contiguous", "the count", count)?;
        assembly.add(old, 0, &[Repetition { count, stride: old.extent().into() }])?;
        Ok(assembly.finish())
    }

    /// `count` blocks of `block_length` elements, `stride` extents apart (`MPI_Type_vector`).
    ///
    /// # Errors
    /// As [`contiguous`](Self::contiguous).
    pub fn vector(count: i64, block_length: i64, stride: i64, old: &Datatype) -> Result<Datatype, Error> {
        strided("vector", count, block_length, i128::from(stride) * i128::from(old.extent()), old)
    }

    /// As [`vector`](Self::vector), the stride in bytes (`MPI_Type_create_hvector`).
    ///
    /// # Errors
    /// As [`contiguous`](Self::contiguous).
    pub fn hvector(count: i64, block_length: i64, stride: i64, old: &Datatype) -> Result<Datatype, Error> {
        strided("hvector", count, block_length, stride.into(), old)
    }

    /// Blocks of the given lengths at the given displacements in extents (`MPI_Type_indexed`).
    ///
    /// # Errors
    /// As [`contiguous`](Self::contiguous), or the arguments differ in length.
    pub fn indexed(block_lengths: &[i64], displacements: &[i64], old: &Datatype) -> Result<Datatype, Error> {
        same_length("indexed", displacements.len(), block_lengths.len())?;
        blocks("indexed", block_lengths.iter().copied(), displacements, old.extent().into(), old)
    }

    /// As [`indexed`](Self::indexed), the displacements in bytes (`MPI_Type_create_hindexed`).
    ///
    /// # Errors
    /// As [`indexed`](Self::indexed).
    pub fn hindexed(block_lengths: &[i64], displacements: &[i64], old: &Datatype) -> Result<Datatype, Error> {
        same_length("hindexed", displacements.len(), block_lengths.len())?;
        blocks("hindexed", block_lengths.iter().copied(), displacements, 1, old)
    }

    /// Blocks of one length at the given displacements in extents (`MPI_Type_create_indexed_block`).
    ///
    /// # Errors
    /// As [`contiguous`](Self::contiguous).
    pub fn indexed_block(block_length: i64, displacements: &[i64], old: &Datatype) -> Result<Datatype, Error> {
        blocks("indexed_block", std::iter::repeat(block_length), displacements, old.extent().into(), old)
    }

    /// As [`indexed_block`](Self::indexed_block), the displacements in bytes (`MPI_Type_create_hindexed_block`).
    ///
    /// # Errors
    /// As [`contiguous`](Self::contiguous).
    pub fn hindexed_block(block_length: i64, displacements: &[i64], old: &Datatype) -> Result<Datatype, Error> {
        blocks("hindexed_block", std::iter::repeat(block_length), displacements, 1, old)
    }

    /// Blocks of different types at the given displacements in bytes (`MPI_Type_create_struct`).
    ///
    /// # Errors
    /// As [`indexed`](Self::indexed).
    pub fn structure(block_lengths: &[i64], displacements: &[i64], types: &[Datatype]) -> Result<Datatype, Error> {
        same_length("structure", displacements.len(), block_lengths.len())?;
        if types.len() != block_lengths.len() {
            let (expected, found) = (block_lengths.len(), types.len());
            return Err(Error::Length { constructor: "structure", argument: "the types", expected, found });
        }
        let mut assembly = Assembly::new("structure");
        for ((&length, &displacement), old) in block_lengths.iter().zip(displacements).zip(types) {
            let count = natural("structure", "a block length", length)?;
            assembly.add(old, displacement.into(), &[Repetition { count, stride: old.extent().into() }])?;
        }
        Ok(assembly.finish())
    }

    /// The same data with another lower bound and extent (`MPI_Type_create_resized`).
    ///
    /// # Errors
    /// As [`contiguous`](Self::contiguous).
    pub fn resized(old: &Datatype, lb: i64, extent: i64) -> Result<Datatype, Error> {
        let mut bounds = *old.bounds();
        bounds.markers = Some((lb.into(), i128::from(lb) + i128::from(extent)));
        if !bounds.fits() {
            return Err(Error::Overflow { constructor: "resized", quantity: "extent" });
        }
        Ok(old.derive(Cow::Borrowed("resized"), bounds))
    }

    /// The same type again (`MPI_Type_dup`).
    pub fn dup(&self) -> Datatype {
        self.derive(Cow::Borrowed("dup"), *self.bounds())
    }
}

fn strided(
    constructor: &'static str,
    count: i64,
    block_length: i64,
    stride: i128,
    old: &Datatype,
) -> Result<Datatype, Error> {
    let count = natural(constructor, "the count", count)?;
    let length = natural(constructor, "the block length", block_length)?;
    let mut assembly = Assembly::new(constructor);
    let block = Repetition { count: length, stride: old.extent().into() };
    assembly.add(old, 0, &[block, Repetition { count, stride }])?;
    Ok(assembly.finish())
}

fn blocks(
    constructor: &'static str,
    lengths: impl Iterator<Item = i64> + Clone,
    displacements: &[i64],
    unit: i128,
    old: &Datatype,
) -> Result<Datatype, Error> {
    let mut assembly = Assembly::new(constructor);
    if let Some((length, repetitions)) = regular(lengths.clone(), displacements, unit, old) {
        let count = natural(constructor, "a block length", length)?;
        let block = Repetition { count, stride: old.extent().into() };
        let all: Vec<_> = std::iter::once(block).chain(repetitions).collect();
        assembly.add(old, i128::from(displacements[0]) * unit, &all)?;
        return Ok(assembly.finish());
    }
    for (&displacement, length) in displacements.iter().zip(lengths) {
        let count = natural(constructor, "a block length", length)?;
        let block = Repetition { count, stride: old.extent().into() };
        assembly.add(old, i128::from(displacement) * unit, &[block])?;
    }
    Ok(assembly.finish())
}

/// Returns the common length of blocks, and their repetitions, if they are runs of bytes at regular distances.
fn regular(
    mut lengths: impl Iterator<Item = i64>,
    displacements: &[i64],
    unit: i128,
    old: &Datatype,
) -> Option<(i64, Vec<Repetition>)> {
    let length = lengths.next()?;
    let dense = i128::from(old.extent()) == i128::from(old.size());
    let one_block = old.pattern().is_some_and(|pattern| matches!(pattern.node, Node::Block(_)));
    if length <= 0 || !dense || !one_block || !lengths.take(displacements.len() - 1).all(|other| other == length) {
        return None;
    }
    let len = i128::from(length) * i128::from(old.size());
    Some((length, nest_of(displacements, unit, len)?))
}

fn natural(constructor: &'static str, argument: &'static str, value: i64) -> Result<u64, Error> {
    u64::try_from(value).map_err(|_| Error::Negative { constructor, argument, value })
}

fn same_length(constructor: &'static str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Length { constructor, argument: "the displacements", expected, found })
}
