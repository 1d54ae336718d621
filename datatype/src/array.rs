//! Array datatypes: a part of an array, or one process's share of a distributed array.

use std::borrow::Cow;

use crate::assembly::Assembly;
use crate::datatype::Datatype;
use crate::error::Error;
use crate::regular::Repetition;

/// The dimension of an array that varies fastest in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArrayOrder {
    /// The last, as in C.
    C,
    /// The first, as in Fortran.
    Fortran,
}

/// The distribution of one dimension of an array over the processes along it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Not distributed: there is one process along this dimension.
    None,
    /// One block each, as even as possible, the last ones smaller.
    Block,
    /// One block each, of this many elements.
    BlockOf(i64),
    /// Single elements in turn.
    Cyclic,
    /// Blocks of this many elements in turn.
    CyclicOf(i64),
}

impl Datatype {
    /// A part of an array: `sizes` of the array, `subsizes` of the part and where the part `starts`, all in elements
    /// (`MPI_Type_create_subarray`). The extent is the whole array's.
    ///
    /// # Errors
    /// There is no dimension, arguments differ in length, the part is empty or exceeds the array, or the type is too
    /// large for 64 bits.
    pub fn subarray(
        sizes: &[i64],
        subsizes: &[i64],
        starts: &[i64],
        order: ArrayOrder,
        old: &Datatype,
    ) -> Result<Datatype, Error> {
        dimensions("subarray", sizes.len(), &[("the subsizes", subsizes.len()), ("the starts", starts.len())])?;
        for dimension in 0..sizes.len() {
            let (size, subsize, start) = (sizes[dimension], subsizes[dimension], starts[dimension]);
            if size < 1 || subsize < 1 || start < 0 || start > size.saturating_sub(subsize) || subsize > size {
                let reason = format!("{subsize} elements from {start} on exceed {size}");
                return Err(Error::Dimension { constructor: "subarray", dimension, reason });
            }
        }
        let mut steps = Steps::new("subarray", old);
        let mut displacement: i128 = 0;
        let mut repetitions = Vec::with_capacity(sizes.len());
        for dimension in fastest_first(sizes.len(), order) {
            repetitions.push(Repetition { count: subsizes[dimension] as u64, stride: steps.step });
            // Within the array's extent, which `advance` checks.
            let skipped = i128::from(starts[dimension]) * steps.step;
            steps.advance(sizes[dimension])?;
            displacement += skipped;
        }
        let mut assembly = Assembly::new("subarray");
        assembly.add(old, displacement, &repetitions)?;
        steps.spanning(&assembly.finish())
    }

    /// The share of process `rank` of `processes` in an array of `sizes` elements that is distributed over a grid of
    /// `grid` processes. The grid's last dimension varies fastest with the rank (`MPI_Type_create_darray`). The extent
    /// is the whole array's.
    ///
    /// # Errors
    /// There is no dimension, arguments differ in length, the grid does not have `processes` places, a distribution
    /// does not cover its dimension, or the type is too large for 64 bits.
    pub fn darray(
        processes: i64,
        rank: i64,
        sizes: &[i64],
        distributions: &[Distribution],
        grid: &[i64],
        order: ArrayOrder,
        old: &Datatype,
    ) -> Result<Datatype, Error> {
        let lengths = [("the distributions", distributions.len()), ("the grid", grid.len())];
        dimensions("darray", sizes.len(), &lengths)?;
        let coordinates = coordinates(processes, rank, grid)?;
        let mut steps = Steps::new("darray", old);
        let mut share = old.clone();
        for dimension in fastest_first(sizes.len(), order) {
            let size = sizes[dimension];
            let dealt =
                OwnedElements::new(dimension, size, distributions[dimension], grid[dimension], coordinates[dimension])?;
            share = dealt.share(&share, steps.step)?;
            steps.advance(size)?;
        }
        steps.spanning(&share)
    }
}

/// Returns the distances between neighbours along each dimension, the fastest first.
struct Steps {
    constructor: &'static str,
    step: i128,
}

impl Steps {
    fn new(constructor: &'static str, old: &Datatype) -> Self {
        Steps { constructor, step: old.extent().into() }
    }

    fn advance(&mut self, size: i64) -> Result<(), Error> {
        // At most 2^126: an extent that fits times a size.
        self.step *= i128::from(size);
        match i64::try_from(self.step) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Overflow { constructor: self.constructor, quantity: "extent" }),
        }
    }

    /// Gives `part` the bounds of the whole array.
    fn spanning(&self, part: &Datatype) -> Result<Datatype, Error> {
        let mut bounds = *part.bounds();
        bounds.markers = Some((0, self.step));
        if !bounds.fits() {
            return Err(Error::Overflow { constructor: self.constructor, quantity: "extent" });
        }
        Ok(part.derive(Cow::Borrowed(self.constructor), bounds))
    }
}

/// The elements of one dimension that one process owns: blocks of `block` elements at a distance of `cycle`, from
/// `first` on.
struct OwnedElements {
    first: i64,
    block: i64,
    cycle: i128,
    size: i64,
}

impl OwnedElements {
    fn new(
        dimension: usize,
        size: i64,
        distribution: Distribution,
        processes: i64,
        coordinate: i64,
    ) -> Result<Self, Error> {
        let refuse = |reason: String| Err(Error::Dimension { constructor: "darray", dimension, reason });
        if size < 1 {
            return refuse(format!("{size} elements"));
        }
        let covers = |block: i64| i128::from(block) * i128::from(processes) >= i128::from(size);
        let block = match distribution {
            Distribution::None if processes != 1 => {
                return refuse(format!("{processes} processes along a dimension that is not distributed"));
            }
            Distribution::None => size,
            Distribution::Block => (size - 1) / processes + 1,
            Distribution::BlockOf(block) if block < 1 || !covers(block) => {
                return refuse(format!("{processes} blocks of {block} do not cover {size} elements"));
            }
            Distribution::CyclicOf(block) if block < 1 => return refuse(format!("blocks of {block} elements")),
            Distribution::BlockOf(block) | Distribution::CyclicOf(block) => block,
            Distribution::Cyclic => 1,
        };
        let first = i128::from(coordinate) * i128::from(block);
        // A process beyond the end owns nothing, so the beginning of its share does not matter.
        let first = i64::try_from(first).unwrap_or(i64::MAX).min(size);
        Ok(OwnedElements { first, block, cycle: i128::from(block) * i128::from(processes), size })
    }

    /// Returns this share of a dimension whose elements are `old`, at a distance of `step` bytes.
    fn share(&self, old: &Datatype, step: i128) -> Result<Datatype, Error> {
        let left = i128::from(self.size - self.first);
        let block = i128::from(self.block);
        let whole = if left < block { 0 } else { (left - block) / self.cycle + 1 };
        let rest = (left - whole * self.cycle).clamp(0, block);
        let at = |element: i128| (i128::from(self.first) + element).checked_mul(step);
        let mut assembly = Assembly::new("darray");
        let too_far = || assembly.overflow("extent");
        let (Some(start), Some(end), Some(cycle)) = (at(0), at(whole * self.cycle), self.cycle.checked_mul(step))
        else {
            return Err(too_far());
        };
        // The number of elements fits in an `i64`.
        let along = |count: i128, stride: i128| Repetition { count: count as u64, stride };
        assembly.add(old, start, &[along(block, step), along(whole, cycle)])?;
        assembly.add(old, end, &[along(rest, step)])?;
        Ok(assembly.finish())
    }
}

/// Returns the coordinates of `rank` in the grid.
fn coordinates(processes: i64, rank: i64, grid: &[i64]) -> Result<Vec<i64>, Error> {
    let places = grid.iter().try_fold(1_i64, |places, &side| places.checked_mul(side).filter(|_| side > 0));
    if places != Some(processes) {
        return Err(Error::Grid(format!("a grid of {grid:?} does not have {processes} places")));
    }
    if !(0..processes).contains(&rank) {
        return Err(Error::Grid(format!("there is no rank {rank} among {processes} processes")));
    }
    let mut rest = rank;
    let mut coordinates: Vec<i64> = Vec::with_capacity(grid.len());
    for &side in grid.iter().rev() {
        coordinates.push(rest % side);
        rest /= side;
    }
    coordinates.reverse();
    Ok(coordinates)
}

fn fastest_first(dimensions: usize, order: ArrayOrder) -> impl Iterator<Item = usize> {
    (0..dimensions).map(move |i| match order {
        ArrayOrder::C => dimensions - 1 - i,
        ArrayOrder::Fortran => i,
    })
}

fn dimensions(constructor: &'static str, expected: usize, others: &[(&'static str, usize)]) -> Result<(), Error> {
    if expected == 0 {
        let reason = "an array has at least one dimension".to_owned();
        return Err(Error::Dimension { constructor, dimension: 0, reason });
    }
    match others.iter().find(|other| other.1 != expected) {
        Some(&(argument, found)) => Err(Error::Length { constructor, argument, expected, found }),
        None => Ok(()),
    }
}
