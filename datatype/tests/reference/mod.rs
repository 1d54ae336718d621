//! A naive model of MPI datatypes: the type map, entry by entry, as the standard defines each constructor.

use cableway_datatype::{ArrayOrder, Datatype, Distribution, Error, Predefined};
use proptest::prelude::*;

/// A datatype as a program would build it.
#[derive(Clone, Debug)]
pub(crate) enum Spec {
    Basic(Predefined, u64, u64),
    Pair,
    Contiguous(i64, Box<Spec>),
    Vector(i64, i64, i64, Box<Spec>),
    Hvector(i64, i64, i64, Box<Spec>),
    Indexed(Vec<(i64, i64)>, Box<Spec>),
    Hindexed(Vec<(i64, i64)>, Box<Spec>),
    IndexedBlock(i64, Vec<i64>, Box<Spec>),
    HindexedBlock(i64, Vec<i64>, Box<Spec>),
    Structure(Vec<(i64, i64, Spec)>),
    /// Size, size of the part, start of the part.
    Subarray(Vec<(i64, i64, i64)>, ArrayOrder, Box<Spec>),
    /// Size, distribution, processes, coordinate.
    Darray(Vec<(i64, Distribution, i64, i64)>, ArrayOrder, Box<Spec>),
    Resized(i64, i64, Box<Spec>),
    Dup(Box<Spec>),
}

/// One entry of a type map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Data { size: i64, alignment: i64 },
    LowerBound,
    UpperBound,
}

/// A type map: entries and their displacements, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map(pub(crate) Vec<(i64, Entry)>);

impl Map {
    pub(crate) fn lb(&self) -> i64 {
        let marked = self.0.iter().filter(|e| e.1 == Entry::LowerBound).map(|e| e.0).min();
        marked.or_else(|| self.0.iter().map(|e| e.0).min()).unwrap_or(0)
    }

    pub(crate) fn ub(&self) -> i64 {
        if let Some(marked) = self.0.iter().filter(|e| e.1 == Entry::UpperBound).map(|e| e.0).max() {
            return marked;
        }
        let (mut end, mut most) = (None, 1);
        for (displacement, entry) in &self.0 {
            if let Entry::Data { size, alignment } = entry {
                end = end.max(Some(displacement + size));
                most = most.max(*alignment);
            }
        }
        let Some(end) = end else { return 0 };
        let extent = end - self.lb();
        self.lb() + extent + (most - extent.rem_euclid(most)) % most
    }

    pub(crate) fn extent(&self) -> i64 {
        self.ub() - self.lb()
    }

    /// Returns the offsets of every byte of `count` elements, in packing order.
    pub(crate) fn bytes(&self, count: i64) -> Vec<i64> {
        let extent = self.extent();
        let mut bytes = Vec::new();
        for i in 0..count {
            for (displacement, entry) in &self.0 {
                if let Entry::Data { size, .. } = entry {
                    bytes.extend((0..*size).map(|byte| i * extent + displacement + byte));
                }
            }
        }
        bytes
    }

    fn put(&mut self, old: &Map, displacement: i64) {
        self.0.extend(old.0.iter().map(|(at, entry)| (at + displacement, *entry)));
    }

    fn block(&mut self, old: &Map, length: i64, displacement: i64) {
        let extent = old.extent();
        for i in 0..length {
            self.put(old, displacement + i * extent);
        }
    }

    fn bounded(mut self, lb: i64, ub: i64) -> Map {
        self.0.retain(|entry| matches!(entry.1, Entry::Data { .. }));
        self.0.push((lb, Entry::LowerBound));
        self.0.push((ub, Entry::UpperBound));
        self
    }
}

impl Spec {
    /// Returns the type map by the standard's definitions.
    pub(crate) fn map(&self) -> Map {
        let mut map = Map::default();
        let data = |size: u64, alignment: u64| Entry::Data { size: size as i64, alignment: alignment as i64 };
        match self {
            Spec::Basic(_, size, alignment) => map.0.push((0, data(*size, *alignment))),
            Spec::Pair => map.0.extend([(0, data(8, 8)), (8, data(4, 4))]),
            Spec::Contiguous(count, old) => map.block(&old.map(), *count, 0),
            Spec::Vector(count, length, stride, old) => {
                let old = old.map();
                (0..*count).for_each(|i| map.block(&old, *length, i * stride * old.extent()));
            }
            Spec::Hvector(count, length, stride, old) => {
                let old = old.map();
                (0..*count).for_each(|i| map.block(&old, *length, i * stride));
            }
            Spec::Indexed(blocks, old) => {
                let old = old.map();
                blocks.iter().for_each(|(length, at)| map.block(&old, *length, at * old.extent()));
            }
            Spec::Hindexed(blocks, old) => {
                let old = old.map();
                blocks.iter().for_each(|(length, at)| map.block(&old, *length, *at));
            }
            Spec::IndexedBlock(length, displacements, old) => {
                let old = old.map();
                displacements.iter().for_each(|at| map.block(&old, *length, at * old.extent()));
            }
            Spec::HindexedBlock(length, displacements, old) => {
                let old = old.map();
                displacements.iter().for_each(|at| map.block(&old, *length, *at));
            }
            Spec::Structure(fields) => {
                fields.iter().for_each(|(length, at, old)| map.block(&old.map(), *length, *at));
            }
            Spec::Subarray(dimensions, order, old) => {
                let owned = |dimension: usize, index: i64| {
                    let (_, subsize, start) = dimensions[dimension];
                    (start..start + subsize).contains(&index)
                };
                let sizes: Vec<i64> = dimensions.iter().map(|dimension| dimension.0).collect();
                return array(&sizes, *order, &old.map(), owned);
            }
            Spec::Darray(dimensions, order, old) => {
                let owned = |dimension: usize, index: i64| {
                    let (size, distribution, processes, coordinate) = dimensions[dimension];
                    let block = match distribution {
                        Distribution::None => size,
                        Distribution::Block => (size + processes - 1) / processes,
                        Distribution::Cyclic => 1,
                        Distribution::BlockOf(block) | Distribution::CyclicOf(block) => block,
                    };
                    index / block % processes == coordinate
                };
                let sizes: Vec<i64> = dimensions.iter().map(|dimension| dimension.0).collect();
                return array(&sizes, *order, &old.map(), owned);
            }
            Spec::Resized(lb, extent, old) => return old.map().bounded(*lb, lb + extent),
            Spec::Dup(old) => return old.map(),
        }
        map
    }

    /// Returns an upper bound of the number of entries in its type map.
    fn entries(&self) -> i64 {
        let lengths = |blocks: &[(i64, i64)]| blocks.iter().map(|block| block.0).sum::<i64>();
        match self {
            Spec::Basic(..) => 1,
            Spec::Pair => 2,
            Spec::Contiguous(count, old) => count * old.entries(),
            Spec::Vector(count, length, _, old) | Spec::Hvector(count, length, _, old) => {
                count * length * old.entries()
            }
            Spec::Indexed(blocks, old) | Spec::Hindexed(blocks, old) => lengths(blocks) * old.entries(),
            Spec::IndexedBlock(length, displacements, old) | Spec::HindexedBlock(length, displacements, old) => {
                length * displacements.len() as i64 * old.entries()
            }
            Spec::Structure(fields) => fields.iter().map(|(length, _, old)| length * old.entries()).sum(),
            Spec::Subarray(dimensions, _, old) => {
                dimensions.iter().map(|dimension| dimension.0).product::<i64>() * old.entries() + 2
            }
            Spec::Darray(dimensions, _, old) => {
                dimensions.iter().map(|dimension| dimension.0).product::<i64>() * old.entries() + 2
            }
            Spec::Resized(_, _, old) => old.entries() + 2,
            Spec::Dup(old) => old.entries(),
        }
    }

    /// Builds the type with the library.
    pub(crate) fn build(&self) -> Result<Datatype, Error> {
        let split = |blocks: &[(i64, i64)]| -> (Vec<i64>, Vec<i64>) { blocks.iter().copied().unzip() };
        match self {
            Spec::Basic(kind, ..) => Ok(kind.datatype()),
            Spec::Pair => Ok(Predefined::DoubleInt.datatype()),
            Spec::Contiguous(count, old) => Datatype::contiguous(*count, &old.build()?),
            Spec::Vector(count, length, stride, old) => Datatype::vector(*count, *length, *stride, &old.build()?),
            Spec::Hvector(count, length, stride, old) => Datatype::hvector(*count, *length, *stride, &old.build()?),
            Spec::Indexed(blocks, old) => {
                let (lengths, displacements) = split(blocks);
                Datatype::indexed(&lengths, &displacements, &old.build()?)
            }
            Spec::Hindexed(blocks, old) => {
                let (lengths, displacements) = split(blocks);
                Datatype::hindexed(&lengths, &displacements, &old.build()?)
            }
            Spec::IndexedBlock(length, displacements, old) => {
                Datatype::indexed_block(*length, displacements, &old.build()?)
            }
            Spec::HindexedBlock(length, displacements, old) => {
                Datatype::hindexed_block(*length, displacements, &old.build()?)
            }
            Spec::Structure(fields) => {
                let lengths: Vec<i64> = fields.iter().map(|field| field.0).collect();
                let displacements: Vec<i64> = fields.iter().map(|field| field.1).collect();
                let types: Result<Vec<Datatype>, Error> = fields.iter().map(|field| field.2.build()).collect();
                Datatype::structure(&lengths, &displacements, &types?)
            }
            Spec::Subarray(dimensions, order, old) => {
                let sizes: Vec<i64> = dimensions.iter().map(|dimension| dimension.0).collect();
                let subsizes: Vec<i64> = dimensions.iter().map(|dimension| dimension.1).collect();
                let starts: Vec<i64> = dimensions.iter().map(|dimension| dimension.2).collect();
                Datatype::subarray(&sizes, &subsizes, &starts, *order, &old.build()?)
            }
            Spec::Darray(dimensions, order, old) => {
                let sizes: Vec<i64> = dimensions.iter().map(|dimension| dimension.0).collect();
                let dealt: Vec<Distribution> = dimensions.iter().map(|dimension| dimension.1).collect();
                let grid: Vec<i64> = dimensions.iter().map(|dimension| dimension.2).collect();
                let rank = dimensions.iter().fold(0, |rank, dimension| rank * dimension.2 + dimension.3);
                Datatype::darray(grid.iter().product(), rank, &sizes, &dealt, &grid, *order, &old.build()?)
            }
            Spec::Resized(lb, extent, old) => Datatype::resized(&old.build()?, *lb, *extent),
            Spec::Dup(old) => Ok(old.build()?.dup()),
        }
    }
}

/// Returns the owned elements of an array, its slowest dimension outermost.
fn array(sizes: &[i64], order: ArrayOrder, old: &Map, owned: impl Fn(usize, i64) -> bool) -> Map {
    let mut map = Map::default();
    let total: i64 = sizes.iter().product();
    for element in 0..total {
        let mut rest = element;
        let mut all = true;
        let mut look = |dimension: usize| {
            all &= owned(dimension, rest % sizes[dimension]);
            rest /= sizes[dimension];
        };
        match order {
            ArrayOrder::C => (0..sizes.len()).rev().for_each(&mut look),
            ArrayOrder::Fortran => (0..sizes.len()).for_each(&mut look),
        }
        if all {
            map.put(old, element * old.extent());
        }
    }
    map.bounded(0, total * old.extent())
}

/// Generates types of moderate size.
pub(crate) fn spec() -> impl Strategy<Value = Spec> {
    let basic = prop_oneof![
        Just(Spec::Basic(Predefined::Byte, 1, 1)),
        Just(Spec::Basic(Predefined::Short, 2, 2)),
        Just(Spec::Basic(Predefined::Int, 4, 4)),
        Just(Spec::Basic(Predefined::Double, 8, 8)),
        Just(Spec::Basic(Predefined::LongDouble, 16, 16)),
        Just(Spec::Pair),
    ];
    basic
        .prop_recursive(4, 24, 3, |inner| {
            let order = prop_oneof![Just(ArrayOrder::C), Just(ArrayOrder::Fortran)];
            let old = inner.clone().prop_map(Box::new);
            // Zero from time to time.
            let count = |most: i64| prop_oneof![1 => Just(0), 15 => 1..=most];
            let blocks = |reach: i64| prop::collection::vec((count(3), -reach..reach), 1..6);
            let displacements = |reach: i64| prop::collection::vec(-reach..reach, 1..8);
            let fields = prop::collection::vec((count(3), -200..200_i64, inner.clone()), 1..4);
            let part = (1..5_i64).prop_flat_map(|size| {
                (1..=size).prop_flat_map(move |subsize| (Just(size), Just(subsize), 0..=size - subsize))
            });
            let (parts, shares) = (prop::collection::vec(part, 1..4), prop::collection::vec(dealt(), 1..4));
            prop_oneof![
                (count(5), old.clone()).prop_map(|(count, old)| Spec::Contiguous(count, old)),
                (count(5), count(4), -6..7_i64, old.clone()).prop_map(|(c, l, s, old)| Spec::Vector(c, l, s, old)),
                (count(40), count(2), -40..60_i64, old.clone()).prop_map(|(c, l, s, old)| Spec::Hvector(c, l, s, old)),
                (blocks(6), old.clone()).prop_map(|(blocks, old)| Spec::Indexed(blocks, old)),
                (blocks(200), old.clone()).prop_map(|(blocks, old)| Spec::Hindexed(blocks, old)),
                (count(3), displacements(8), old.clone()).prop_map(|(l, d, old)| Spec::IndexedBlock(l, d, old)),
                (count(3), displacements(300), old.clone()).prop_map(|(l, d, old)| Spec::HindexedBlock(l, d, old)),
                fields.prop_map(Spec::Structure),
                (parts, order.clone(), old.clone()).prop_map(|(parts, order, old)| Spec::Subarray(parts, order, old)),
                (shares, order, old.clone()).prop_map(|(shares, order, old)| Spec::Darray(shares, order, old)),
                (-50..50_i64, -20..200_i64, old.clone()).prop_map(|(lb, extent, old)| Spec::Resized(lb, extent, old)),
                old.prop_map(Spec::Dup),
            ]
        })
        .prop_filter("the naive packer is slow", |spec| spec.entries() <= 6000)
}

fn dealt() -> impl Strategy<Value = (i64, Distribution, i64, i64)> {
    (1..7_i64, 1..4_i64, 1..4_i64, 0..5).prop_flat_map(|(size, processes, block, kind)| {
        let (distribution, processes) = match kind {
            0 => (Distribution::None, 1),
            1 => (Distribution::Block, processes),
            2 => (Distribution::Cyclic, processes),
            3 => (Distribution::CyclicOf(block), processes),
            _ => (Distribution::BlockOf((size + processes - 1) / processes + block - 1), processes),
        };
        (Just(size), Just(distribution), Just(processes), 0..processes)
    })
}
